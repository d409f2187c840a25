"""`olivelike report`: the HTML report of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from olivelike._text import did_you_mean, listed
from olivelike.cli import options as shared

if TYPE_CHECKING:
    from olivelike.model.records.run_record import RunRecord
    from olivelike.store import Store


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's id or its beginning, or a workflow's name for its last run; by default the last run.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write here, not beside the run's logs."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Also open it in the browser.")] = False,
    cache_dir: shared.StoreDir = None,
    json: shared.Json = False,
) -> None:
    """Write the report of a run again, and say where it is.

    It is one HTML file that needs no network: steps, operators, sizes, verification, environment.
    """
    from olivelike.cli.stdout import write_json, write_line
    from olivelike.errors import UsageError
    from olivelike.measure.bench.csv_file import require_writable
    from olivelike.measure.report import write_report

    if output is not None:
        require_writable(output)
    store = open_store(cache_dir)
    record = find_run(store, run)
    folder = store.run_folder(record.run_id)
    try:
        path = write_report(record, folder, output).absolute()
    except OSError as error:
        raise UsageError(f"{output or folder}: the report can't be written: {error.strerror}") from error
    if json:
        write_json({"run_id": record.run_id, "report": str(path)})
    else:
        write_line(str(path))
    if show:
        import webbrowser

        webbrowser.open(path.as_uri())


def open_store(cache_dir: Path | None) -> "Store":
    """Open the store of a command that names no workflow.

    Raises:
        StoreError: if there is none.
    """
    from olivelike.errors import StoreError
    from olivelike.store import Store

    path = shared.store_dir(cache_dir)
    if not path.is_dir():
        raise StoreError(f"there is no store in {path.absolute()}; name its folder with --cache-dir")
    return Store.open(path)


def find_run(store: "Store", wanted: str | None) -> "RunRecord":
    """Return the record of a run.

    Args:
        store: Where runs are recorded.
        wanted: An id, its beginning, or the name of a workflow, for its last run; `None` for the last of all.

    Raises:
        UsageError: if there is no such run, or several ids begin so; the message names the nearest.
    """
    from olivelike.engine.run_record import recorded_runs
    from olivelike.errors import UsageError

    workflows: dict[str, None] = {}
    begin_so: list[RunRecord] = []
    ids: list[str] = []
    for record in recorded_runs(store):
        if wanted is None or wanted in (record.run_id, record.workflow):
            return record
        ids.append(record.run_id)
        workflows[record.workflow] = None
        if record.run_id.startswith(wanted):
            begin_so.append(record)
    if not ids:
        raise UsageError(
            f"no run is recorded in {store.root}: none has done anything yet, or name another with --cache-dir"
        )
    if len(begin_so) == 1 and wanted:
        return begin_so[0]
    assert wanted is not None
    if begin_so:
        found = listed([record.run_id for record in begin_so], 5)
        raise UsageError(f"{len(begin_so)} runs begin with {wanted!r}: {found}")
    raise UsageError(
        f"{store.root} has no run {wanted!r}; {did_you_mean(wanted, [*workflows, *ids], 'workflows and runs')}"
    )


def last_writer(folder: Path, cache_dir: Path | None) -> "tuple[RunRecord, Path]":
    """Return the record of the last run that wrote an output folder, and the folder of its report.

    Raises:
        StoreError: if there is no store.
        UsageError: if no run in it wrote the folder.
    """
    from olivelike.engine.run_record import recorded_runs
    from olivelike.errors import UsageError

    store = open_store(cache_dir)
    for record in recorded_runs(store):
        if record.status == "ok" and folder.resolve() in {Path(path).resolve() for path in record.outputs}:
            return record, store.run_folder(record.run_id)
    raise UsageError(
        f"{store.root} has no run that wrote {folder}; name its store with --cache-dir, or leave out --report"
    )


def add_to_report(record: "RunRecord", place: Path, name: str, content: Any) -> Path:
    """Put JSON beside a report, and write the report again.

    Args:
        record: Of the run.
        place: The folder of its report; pictures that the content names are there already.
        name: `PROFILE_FILE` or `VERIFICATION_FILE`.
        content: JSON values.

    Returns:
        The path of the report.

    Raises:
        UsageError: if it can't be written.
    """
    from json import dumps

    from olivelike.errors import UsageError
    from olivelike.measure.report import write_report

    try:
        (place / name).write_text(dumps(content), encoding="utf-8")
        return write_report(record, place)
    except OSError as error:
        raise UsageError(f"{place}: the report can't be written: {error.strerror}") from error

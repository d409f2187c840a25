"""Finding the run that a report is of, and adding to its report what was measured later."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._text import did_you_mean, listed
from olivelike.engine.run_result import recorded_runs
from olivelike.errors import UsageError
from olivelike.measure.report.page import write_report

if TYPE_CHECKING:
    from olivelike.model.records.run_record import RunRecord
    from olivelike.store import Store


@dataclass(frozen=True)
class RecordedRun:
    """A run that a store has a record of."""

    record: RunRecord
    folder: Path
    """Folder of its logs and its report."""

    @property
    def id(self) -> str:
        """The run's id."""
        return self.record.run_id

    def write_report(self, output: str | Path | None = None) -> Path:
        """Write the report again, and return its absolute path. Raises `UsageError` if it can't be written.

        Args:
            output: The file; by default `report.html` in the run's folder.
        """
        try:
            return write_report(self.record, self.folder, output).absolute()
        except OSError as error:
            place = output or self.folder
            raise UsageError(f"{place}: the report can't be written: {error.strerror}") from error

    def add_to_report(self, name: str, content: Any) -> Path:
        """Put JSON beside the report, and write the report again. Raises `UsageError` if it can't be written.

        Args:
            name: `PROFILE_FILE`, `BENCH_FILE`, `FIDELITY_FILE` or `VERIFICATION_FILE`.
            content: JSON values; pictures that it names are there already.
        """
        try:
            (self.folder / name).write_text(json.dumps(content), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{self.folder}: the report can't be written: {error.strerror}") from error
        return self.write_report()


def find_run(store: Store, wanted: str | None = None) -> RecordedRun:
    """Return a run of a store.

    Args:
        store: Where runs are recorded.
        wanted: An id, its beginning, or the name of a workflow, for its last run; `None` for the last of all.

    Raises:
        UsageError: if there is no such run, or several ids begin so; the message names the nearest.
    """
    ids: list[str] = []
    workflows: dict[str, None] = {}
    begin_so: list[RunRecord] = []
    for record in recorded_runs(store):
        if wanted is None or wanted in (record.run_id, record.workflow):
            return _recorded(store, record)
        ids.append(record.run_id)
        workflows[record.workflow] = None
        if record.run_id.startswith(wanted):
            begin_so.append(record)
    if wanted is None or not ids:
        raise UsageError(
            f"no run is recorded in {store.root}: none has done anything yet, or name another with --cache-dir"
        )
    if len(begin_so) == 1 and wanted:
        return _recorded(store, begin_so[0])
    if begin_so:
        found = listed([record.run_id for record in begin_so], 5)
        raise UsageError(f"{len(begin_so)} runs begin with {wanted!r}: {found}")
    if of_matrix := [name for name in workflows if name.startswith(f"{wanted}@")]:
        raise UsageError(
            f"{wanted!r} has a `matrix`, and each combination a report of its own; name one: {listed(of_matrix, 5)}"
        )
    hint = did_you_mean(wanted, [*workflows, *ids[:5]], "workflows and latest runs")
    raise UsageError(f"{store.root} has no run {wanted!r}; {hint}")


def last_writer(store: Store, folder: str | Path) -> RecordedRun:
    """Return the last run that wrote an output folder.

    Raises:
        UsageError: if no run of the store wrote it.
    """
    folder = Path(folder)
    for record in recorded_runs(store):
        if record.status == "ok" and folder.resolve() in {Path(path).resolve() for path in record.outputs}:
            return _recorded(store, record)
    raise UsageError(
        f"{store.root} has no run that wrote {folder}; name its store with --cache-dir, or leave out --report"
    )


def _recorded(store: Store, record: RunRecord) -> RecordedRun:
    return RecordedRun(record, store.run_folder(record.run_id))

"""`olivelike ablate`: the variants of a sweep, made, measured and held against torch."""

import csv
import dataclasses
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike.cli import options as shared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from olivelike.engine import Options
    from olivelike.engine.execute.events import Event
    from olivelike.errors import OlivelikeError
    from olivelike.measure.bench.ablation import Row
    from olivelike.model.records.run_record import NodeRecord, RunRecord


def ablate(
    workflow: shared.Workflow,
    components: Annotated[
        list[str] | None,
        typer.Option(
            "--component", metavar="NAME", help="Network to show; unet by default. May be repeated."
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure latency and memory on this machine.")
    ] = True,
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", min=1, help="Measured runs of each variant.")
    ] = 10,
    warmup: Annotated[int, typer.Option("--warmup", metavar="N", min=0, help="Runs before them.")] = 2,
    dimensions: Annotated[
        list[str] | None,
        typer.Option(
            "--dimension",
            metavar="NAME=SIZE",
            help="Size of a dynamic dimension, such as unet_sample_height=96; may be repeated.",
        ),
    ] = None,
    providers: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            metavar="NAME[:KEY=VALUE,...]",
            help="What to measure on; by default the workflow's target.",
        ),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write the table to this file.")
    ] = None,
    overrides: shared.Overrides = None,
    plugins: shared.Plugins = None,
    allow_plugins: shared.AllowPlugins = False,
    loras: shared.Loras = None,
    output: shared.Output = None,
    cache_dir: shared.CacheDir = None,
    overwrite: shared.Overwrite = False,
    allow_pickle: shared.AllowPickle = False,
    json: shared.Json = False,
) -> None:
    """Make the variants of a `sweep`, and print what each costs.

    What variants have in common runs once, and what is stored does not run again. A variant that a step stops costs
    the others nothing; the exit status is then that of the step, such as 5 for `verify`.
    """
    from olivelike import engine
    from olivelike.cli.stdout import write_json, write_line, write_text_file
    from olivelike.measure.bench.ablation import measured_rows, verified_rows
    from olivelike.measure.bench.csv_file import require_writable
    from olivelike.runtime.pipeline.folder_target import target_settings
    from olivelike.runtime.sessions.session_settings import choose_providers, parse_dimensions

    sizes = parse_dimensions(dimensions or ())
    if csv_file is not None:
        require_writable(csv_file)
    chosen = dataclasses.replace(
        shared.selection(
            overrides=overrides,
            plugins=plugins,
            allow_plugins=allow_plugins,
            cache_dir=cache_dir,
            output=output,
            allow_pickle=allow_pickle,
            loras=loras,
        ),
        keep_going=True,
        overwrite=overwrite,
    )
    prepared = engine.prepare(workflow, chosen, writes=False)
    verified_rows(
        prepared, components or ()
    )  # What is wrong with the question is told before the answer is made.
    sessions = choose_providers(target_settings(prepared.workflow.workflow.target.choice()), providers or ())
    run_id, error = _run(workflow, chosen, quiet=json)
    prepared = engine.prepare(workflow, chosen, writes=False)
    results = _results(prepared.history, run_id) if error is not None else {}
    if error is not None and not any(result.status == "failed" for result in results.values()):
        raise error
    rows = verified_rows(prepared, components or (), results)
    if measure:
        rows = measured_rows(rows, prepared, sessions, sizes=sizes, runs=runs, warmup=warmup)
    if json:
        write_json({"workflow": prepared.workflow.workflow.name, "rows": [row.to_json() for row in rows]})
    else:
        for line in _lines(rows):
            write_line(line)
    if csv_file is not None:
        write_text_file(csv_file, _csv(rows))
    if error is not None:
        raise error


def _run(workflow: str, options: "Options", *, quiet: bool) -> "tuple[str, OlivelikeError | None]":
    """Run the workflow; return the run's id, and what it failed with."""
    from olivelike import engine
    from olivelike.cli.display.run_display import RunDisplay
    from olivelike.errors import MissingError, PassError, VerificationError
    from olivelike.measure.report import write_report

    run_id = ""
    with RunDisplay(live=sys.stdout.isatty()) as display:

        def listen(event: "Event") -> None:
            nonlocal run_id
            run_id = event.data.get("run_id", run_id)
            if not quiet:
                display(event)

        try:
            result = engine.run(workflow, options, listen, write_report)
        except (MissingError, PassError, VerificationError) as error:
            return run_id, error
        if not quiet:
            display.summarise(result)
    return run_id, None


def _results(history: "Iterable[RunRecord]", run_id: str) -> "dict[str, NodeRecord]":
    """Return how the nodes of a run ended, by id, as its record has it."""
    return {node.id: node for record in history if record.run_id == run_id for node in record.nodes}


def _csv(rows: "list[Row]") -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0].to_json()), lineterminator="\n")
    table.writeheader()
    table.writerows(row.to_json() for row in rows)
    return text.getvalue()


def _lines(rows: "list[Row]") -> list[str]:
    from olivelike.cli.display.text import size, table

    lines: list[str] = []
    for component in dict.fromkeys(row.component for row in rows):
        mine = [row for row in rows if row.component == component]
        first = mine[0].median_latency
        cells = [
            (
                row.variant,
                "" if row.median_latency is None else f"{row.median_latency * 1000:.1f} ms",
                "" if row.median_latency is None or first is None else f"{first / row.median_latency:.2f}x",
                size(memory) if (memory := row.device_memory_bytes or row.memory_bytes) is not None else "",
                "" if row.size_bytes is None else size(row.size_bytes),
                _error(row),
            )
            for row in mine
        ]
        lines += [
            "",
            *table((component, "latency", "speed", "memory", "files", "error"), cells, right={1, 2, 3, 4, 5}),
        ]
        notes = dict.fromkeys(row.note.partition("\n")[0] for row in mine if row.note)
        lines += [f"note: {note}" for note in notes]
    return lines


def _error(row: "Row") -> str:
    if row.verified is None:
        return "not verified"
    error = "not finite" if row.relative_error is None else f"{row.relative_error:.1e}"
    return error if row.verified else f"{error}, TOO FAR OFF"

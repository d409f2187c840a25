"""`olivelike ablate`: the variants of a sweep, made, measured and compared with torch."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike.cli import options as shared

if TYPE_CHECKING:
    from olivelike.measure.bench.ablation import Row


@shared.with_groups
def ablate(
    workflow: shared.Workflow,
    chosen: shared.WorkflowOptions,
    components: Annotated[
        list[str] | None,
        typer.Option("--component", metavar="NAME", help="Network to show; unet by default. May be repeated."),
    ] = None,
    measure: Annotated[bool, typer.Option(help="Measure latency and memory on this machine.")] = True,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Measured runs of each variant.")] = 10,
    warmup: Annotated[int, typer.Option(metavar="N", min=0, help="Runs before them.")] = 2,
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
            "--provider", metavar="NAME[:KEY=VALUE,...]", help="What to measure on; by default the workflow's target."
        ),
    ] = None,
    pictures: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Also draw N pictures by each variant, and compare time and pictures with the first's.",
        ),
    ] = 0,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write the table to this file.")
    ] = None,
    combination: shared.Combination = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
    json: shared.Json = False,
) -> None:
    """Make the variants of a `sweep`, and print what each costs.

    What variants have in common runs once, and what is stored does not run again. A variant that a step stops costs
    the others nothing; the exit status is then that of the step, such as 5 for `verify`.
    """
    from olivelike.cli.display.fidelity_table import method_lines
    from olivelike.cli.display.run_display import RunDisplay
    from olivelike.cli.stdout import write_found, write_text
    from olivelike.measure.bench.ablation import ablate as measure_variants
    from olivelike.measure.bench.bench_report import require_writable
    from olivelike.measure.report import write_report
    from olivelike.runtime.sessions.session_settings import parse_dimensions

    sizes = parse_dimensions(dimensions or ())
    if csv_file is not None:
        require_writable(csv_file)
    with RunDisplay(live=sys.stdout.isatty()) as display:
        found = measure_variants(
            workflow,
            shared.engine_options(chosen, combination=combination, output=output, overwrite=overwrite),
            (lambda _: None) if json else display,
            write_report,
            components=components or (),
            measure=measure,
            runs=runs,
            warmup=warmup,
            sizes=sizes,
            providers=providers or (),
            pictures=pictures,
            made=(lambda _: None) if json else display.summarise,
        )
    drawn = ["", *method_lines(found.fidelity)] if found.fidelity else []
    write_found(found.to_json(), [*_lines(found.rows), *drawn], json=json)
    if csv_file is not None:
        write_text(found.to_csv(), csv_file)
    if found.error is not None:
        raise found.error


def _lines(rows: "Sequence[Row]") -> list[str]:
    from olivelike.cli.display.text import size, table

    lines: list[str] = []
    for component in dict.fromkeys(row.component for row in rows):
        mine = [row for row in rows if row.component == component]
        first = mine[0].median_latency
        quantised = any(row.weights for row in mine)
        cells = [
            (
                row.variant,
                "" if row.median_latency is None else f"{row.median_latency * 1000:.1f} ms",
                "" if row.median_latency is None or first is None else f"{first / row.median_latency:.2f}x",
                size(memory) if (memory := row.device_memory_bytes or row.memory_bytes) is not None else "",
                "" if row.size_bytes is None else size(row.size_bytes),
                _error(row),
                *([row.weights or ""] if quantised else []),
            )
            for row in mine
        ]
        header = (component, "latency", "speed", "memory", "files", "error", *(["weights"] if quantised else []))
        lines += ["", *table(header, cells, right={1, 2, 3, 4, 5})]
        notes = dict.fromkeys(row.note.partition("\n")[0] for row in mine if row.note)
        lines += [f"note: {note}" for note in notes]
    return lines


def _error(row: "Row") -> str:
    if row.verified is None:
        return "not verified"
    error = "not finite" if row.relative_error is None else f"{row.relative_error:.1e}"
    return error if row.verified else f"{error}, TOO FAR OFF"

"""`olivelike bench`: latency and memory of engines, side by side."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from olivelike.cli import options as shared
from olivelike.cli.display.text import duration, fitted, terminal_width
from olivelike.cli.options import ProviderOptions
from olivelike.cli.stdout import write_error, write_found, write_text

if TYPE_CHECKING:
    from rich.table import Table

    from olivelike.measure.bench.bench_report import BenchReport, Comparison
    from olivelike.measure.bench.contest import Event
    from olivelike.measure.bench.row import Row
    from olivelike.runtime.sessions.session_settings import SessionSettings


@shared.with_groups
def bench(
    folder: shared.OutputFolder,
    reported: shared.ReportOptions,
    engines: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="onnxruntime, openvino, tensorrt, torch, torch-compile or xformers; may be repeated, all by default. "
            "What is not installed is left out.",
        ),
    ] = None,
    batch_sizes: Annotated[
        list[int] | None,
        typer.Option("--batch-size", metavar="N", help="Pictures made at once; may be repeated, 1 by default."),
    ] = None,
    height: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="By default what the UNet was trained on.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="By default what the UNet was trained on.")
    ] = None,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="Both at once, such as 512x768.")] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps of each picture.")] = 50,
    batch_count: Annotated[int, typer.Option(metavar="N", help="Measured batches of each prompt.")] = 5,
    num_prompts: Annotated[int, typer.Option(metavar="N", help="Prompts; ten are different, then they repeat.")] = 1,
    warmup_runs: Annotated[int, typer.Option(metavar="N", help="Batches before the measured ones.")] = 2,
    disable_safety_checker: Annotated[
        bool, typer.Option("--disable-safety-checker", help="Do not check the pictures.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="What torch runs: a diffusers folder, a .safetensors file or a hub id; by default what the folder was "
            "made of.",
        ),
    ] = None,
    torch_dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE", help="float32, float16 or bfloat16; by default the folder's on a GPU, float32 on the CPU."
        ),
    ] = None,
    interleave: Annotated[
        bool, typer.Option(help="Let engines take turns, all in memory at the same time; or one after the other.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="What an engine may take to open, or for one batch.")
    ] = 1800.0,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also add the rows to this file, with all columns.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write this file, which --against takes.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare medians with an earlier --json-file; status 5 if slower."),
    ] = None,
    threshold: Annotated[float, typer.Option(metavar="PERCENT", help="What a median may be higher by.")] = 5.0,
    json: shared.Json = False,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="[FOLDER] [OPTIONS]",
            help='In place of engines, compare a cheaper way of drawing, such as "--cache-interval 3", in time and '
            "fidelity with the folder as it is, and with fewer steps of it; may be repeated.",
        ),
    ] = None,
    cuda_graph: Annotated[
        bool, typer.Option(help="Record each network's work on the GPU once, and replay it.")
    ] = False,
    *,
    session: ProviderOptions,
) -> None:
    """Measure latency and memory, interleaved with torch.

    Each engine runs in a process of its own, and they take turns. An engine that fails, dies or hangs has its row
    marked, and the exit status is 3. Ctrl-C ends it with the rows so far.
    """
    from olivelike.errors import UsageError
    from olivelike.model.families import PIPELINE_FILE

    if (folder / PIPELINE_FILE).is_file():
        about_folders = {
            "--engine": engines, "--checkpoint": checkpoint, "--torch-dtype": torch_dtype, "--csv": csv,
            "--json-file": json_file, "--against": against, "--method": methods,
            "--disable-safety-checker": disable_safety_checker, "--cuda-graph": cuda_graph,
        }  # fmt: skip
        if refused := [option for option, value in about_folders.items() if value]:
            raise UsageError(f"{', '.join(refused)}: {folder} is one file, which runs as it is; leave that out")
        sides = shared.chosen_sides(size, width, height)
        _bench_one_file(
            folder, session.settings(folder), batch_sizes or [1], sides, steps, batch_count, warmup_runs, timeout, json
        )
        return
    from olivelike.cli.display.fidelity_table import method_lines
    from olivelike.measure.bench.bench_report import (
        append_rows,
        check_baseline,
        check_csv,
        compare,
        read_report,
        require_writable,
    )
    from olivelike.measure.bench.bench_settings import BenchSettings, check, parse_torch_dtype
    from olivelike.measure.bench.engines import ENGINES
    from olivelike.measure.bench.fidelity import compare_methods, read_method
    from olivelike.measure.bench.whole_pictures import BenchInterrupted, bench as run
    from olivelike.measure.report.page import BENCH_FILE, FIDELITY_FILE

    if not threshold >= 0:
        raise UsageError(f"--threshold: {threshold:g} is below 0")
    width, height = shared.chosen_sides(size, width, height)
    baseline = read_report(against) if against is not None else None
    if csv is not None:
        check_csv(csv)
    if json_file is not None:
        require_writable(json_file)
    recorded = reported.run(folder)
    sessions = replace(session.settings(folder), cuda_graph=cuda_graph)
    if methods:
        only_engines = {
            "--engine": engines, "--batch-size": batch_sizes, "--checkpoint": checkpoint, "--torch-dtype": torch_dtype,
            "--csv": csv, "--against": against,
        }  # fmt: skip
        if refused := [option for option, value in only_engines.items() if value]:
            raise UsageError(f"{', '.join(refused)}: is about engines, and --method compares methods")
        compared = compare_methods(
            folder,
            [read_method(text, folder) for text in methods],
            steps=steps,
            size=None if width is None or height is None else (width, height),
            pictures=num_prompts * batch_count,
            sessions=sessions,
            listen=write_error,
        )
        write_found(
            compared.to_json(),
            method_lines(compared),
            json=json,
            add_to_report=lambda: recorded.add_to_report(FIDELITY_FILE, compared.to_json()) if recorded else None,
        )
        if json_file is not None:
            write_text(f"{dumps(compared.to_json(), indent=1)}\n", json_file)
        return
    settings = BenchSettings(
        folder,
        tuple(engines or ENGINES),
        tuple(batch_sizes or (1,)),
        height,
        width,
        steps,
        batch_count,
        num_prompts,
        warmup_runs,
        not disable_safety_checker,
        sessions,
        checkpoint,
        None if torch_dtype is None else parse_torch_dtype(torch_dtype),
        interleave,
        timeout,
    )
    if baseline is not None:
        check_baseline(baseline, check(settings))
    write_error(
        f"measuring {', '.join(settings.engines)}: each is opened and warmed up, then all are measured in turns"
        + ("" if engines else "; --engine names fewer")
    )
    stopped: BenchInterrupted | None = None
    try:
        report = run(settings, show_event)
    except BenchInterrupted as interrupted:
        stopped, report = interrupted, interrupted.report
    comparisons = compare(report, baseline, threshold) if baseline is not None else ()
    write_found(
        {**report.to_json(), "comparisons": [comparison.to_json() for comparison in comparisons]},
        table_lines(report, comparisons),
        json=json,
        add_to_report=lambda: (
            recorded.add_to_report(BENCH_FILE, report.to_json()) if recorded and report.rows else None
        ),
    )
    if csv is not None:
        append_rows(csv, report.rows)
    if json_file is not None:
        write_text(f"{dumps(report.to_json(), indent=1)}\n", json_file)
    if stopped is not None:
        raise stopped
    _judge(report, comparisons, compared=baseline is not None)


def _bench_one_file(
    folder: Path,
    settings: "SessionSettings",
    batch_sizes: "list[int]",
    sides: tuple[int | None, int | None],
    steps: int,
    runs: int,
    warmup: int,
    limit: float,
    json: bool,
) -> None:
    """Time a pipeline in one file, in a process of its own."""
    from dataclasses import asdict

    from olivelike.cli.display.text import size
    from olivelike.measure.bench.whole_pictures import measure_folder

    found, lines = [], []
    for pictures in batch_sizes:
        sizes = {"batch_size": pictures, "steps": steps}
        sizes |= {name: side for name, side in zip(("width", "height"), sides, strict=True) if side is not None}
        measured = measure_folder(folder, settings, sizes=sizes, runs=runs, warmup=warmup, limit=limit)
        found.append({**sizes, **asdict(measured), "median": measured.median})
        lines.append(
            f"{folder}, {steps} steps, batches of {pictures}: {measured.median:.3f} s, of {runs} the median; opened in "
            f"{measured.load_seconds:.2f} s; {size(measured.peak_resident_bytes)} resident at most; "
            f"{measured.provider}, {measured.version}"
        )
    write_found({"folder": str(folder), "rows": found}, lines, json=json)


def _judge(report: "BenchReport", comparisons: "tuple[Comparison, ...]", *, compared: bool) -> None:
    """Raise what the exit status should tell."""
    from olivelike.errors import MissingError, SessionError, VerificationError
    from olivelike.measure.bench.bench_report import nothing_in_common

    if slower := [str(comparison) for comparison in comparisons if comparison.slower]:
        raise VerificationError(f"slower than the baseline by more than allowed: {'; '.join(slower)}")
    if report.failed:
        told = (f"{row.engine} (batch size {row.batch_size}): {row.status}" for row in report.failed)
        raise SessionError(f"not all engines could be measured: {', '.join(told)}; their rows say why")
    if not report.rows:
        told = (f"{skip.engine}: {skip.reason}" for skip in report.skipped)
        raise MissingError(f"no engine could be measured: {'; '.join(told)}")
    if compared and not comparisons:
        raise nothing_in_common()


_SHOWN: Final = (
    ("engine", "engine"),
    ("provider", "provider"),
    ("dtype", "dtype"),
    ("batch_size", "batch"),
    ("median_latency", "median s"),
    ("speed", "speed"),
    ("spread_percent", "spread"),
    ("p95_latency", "p95 s"),
    ("steps_per_second", "steps/s"),
    ("text_encoder_ms", "text ms"),
    ("step_ms", "step ms"),
    ("vae_decoder_ms", "VAE ms"),
    ("safety_checker_ms", "safety ms"),
    ("load_seconds", "load s"),
    ("first_step_seconds", "first step s"),
    ("rest_resident_MB", "at rest MB"),
    ("peak_resident_MB", "memory MB"),
    ("peak_device_MB", "device MB"),
)
"""Columns and their headings."""
_FIRST_TO_GO: Final = (
    "text_encoder_ms",
    "safety_checker_ms",
    "vae_decoder_ms",
    "rest_resident_MB",
    "first_step_seconds",
    "load_seconds",
    "p95_latency",
    "step_ms",
    "dtype",
    "steps_per_second",
    "peak_device_MB",
    "peak_resident_MB",
)
"""Columns that a narrow terminal does without, in this order."""
_TEXTS: Final = frozenset({"engine", "provider", "dtype"})
"""Columns of text; the others are numbers, flush right."""
_WIDE: Final = 1000
"""Columns in which any table has room."""


def show_event(event: "Event") -> None:
    """Tell on standard error what happens."""
    if event.name == "opened":
        write_error(f"{event.engine}: open after {duration(event.seconds)}")
    elif event.name == "warmed_up":
        write_error(f"{event.engine}: warmed up")
    elif event.name == "measuring":
        write_error(f"measuring: about {duration(event.seconds)}")
    elif event.name == "failed":
        write_error(f"{event.engine}: {event.text}")


def table_lines(report: "BenchReport", comparisons: "Sequence[Comparison]") -> "Iterator[str]":
    """Yield a table of the rows, and below it what was left out and what failed."""
    if report.rows:
        yield from _table(report.rows)
    for skip in report.skipped:
        yield f"left out: {skip.engine}: {skip.reason}"
    for row in report.failed:
        yield f"{row.status}: {row.engine}, batch size {row.batch_size}: {row.error}"
    for row in report.rows:
        if row.note:
            yield f"note: {row.engine}, batch size {row.batch_size}: {row.note}"
    for comparison in comparisons:
        yield f"against the baseline: {comparison}"


def _table(rows: "Sequence[Row]") -> "Iterator[str]":
    from rich.console import Console

    # A column that no row has anything in only takes room.
    shown = [name for name, _ in _SHOWN if any(row.value(name) is not None for row in rows)]
    terminal = terminal_width()
    left_out = []
    if terminal is not None:
        for name in _FIRST_TO_GO:
            if name in shown and _width(rows, shown) > terminal:
                shown.remove(name)
                left_out.append(name)
    console = Console(file=io.StringIO(), width=terminal or _width(rows, shown))
    console.print(_grid(rows, shown))
    assert isinstance(console.file, io.StringIO)
    yield from (line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())
    if left_out:
        titles = ", ".join(title for name, title in _SHOWN if name in left_out)
        yield fitted(f"left out on a narrow terminal (--csv has all): {titles}")


def _width(rows: "Sequence[Row]", shown: "Sequence[str]") -> int:
    """Return the columns that the table takes unfolded."""
    from rich.console import Console

    return Console(width=_WIDE).measure(_grid(rows, shown)).maximum


def _grid(rows: "Sequence[Row]", shown: "Sequence[str]") -> "Table":
    from rich import box
    from rich.table import Table

    first = rows[0]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{first.folder}: {first.width}x{first.height}, {first.steps} steps{_against(rows)}",
        title_justify="left",
    )
    for name, title in _SHOWN:
        if name in shown:
            justify: Literal["left", "right"] = "left" if name in _TEXTS else "right"
            table.add_column(title, justify=justify, overflow="fold", no_wrap=name == "engine")
    for row in rows:
        table.add_row(*(_cell(row, name) for name, _ in _SHOWN if name in shown))
    return table


def _against(rows: "Sequence[Row]") -> str:
    against = dict.fromkeys(str(row.speed_against) for row in rows if row.speed_against)
    return f", speed against {' and '.join(against)}" if against else ""


def _cell(row: "Row", name: str) -> str:
    value = row.value(name)
    if name == "speed":
        return "" if value is None else f"{value:.2f}x"
    if name == "spread_percent":
        return "" if value is None else f"{value:.0f}%"
    if name == "median_latency" and row.status != "ok":
        return str(row.status)
    if name == "provider":
        return str(value or "").removesuffix("ExecutionProvider")
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1 else f"{value:.2f}" if value < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)

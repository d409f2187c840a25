"""`olivelike bench`: latency and memory of engines, side by side."""

from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike.cli import options as shared
from olivelike.cli.session_options import ProviderOptions

if TYPE_CHECKING:
    from olivelike.measure.bench.baseline import Comparison
    from olivelike.measure.bench.bench_report import BenchReport


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
        typer.Option(
            "--batch-size", metavar="N", help="Pictures made at once; may be repeated, 1 by default."
        ),
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
    num_prompts: Annotated[
        int, typer.Option(metavar="N", help="Prompts; ten are different, then they repeat.")
    ] = 1,
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
            metavar="DTYPE",
            help="float32, float16 or bfloat16; by default the folder's on a GPU, float32 on the CPU.",
        ),
    ] = None,
    interleave: Annotated[
        bool,
        typer.Option(help="Let engines take turns, all in memory at the same time; or one after the other."),
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
    threshold: Annotated[
        float, typer.Option(metavar="PERCENT", help="What a median may be higher by.")
    ] = 5.0,
    json: shared.Json = False,
    cuda_graph: Annotated[
        bool, typer.Option(help="Record each network's work on the GPU once, and replay it.")
    ] = False,
    *,
    session: ProviderOptions,
) -> None:
    """Measure latency and memory, interleaved with torch.

    Each engine runs in a process of its own, and they take turns. An engine that fails, dies or hangs has its row
    marked, and the exit status is 3.
    """
    from olivelike.cli.display.bench_display import show_event, table_lines
    from olivelike.cli.stdout import write_found, write_text
    from olivelike.errors import UsageError
    from olivelike.measure.bench.baseline import check_baseline, compare
    from olivelike.measure.bench.bench_report import read_report
    from olivelike.measure.bench.bench_settings import BenchSettings, check, parse_torch_dtype
    from olivelike.measure.bench.csv_file import append_rows, check_csv, require_writable
    from olivelike.measure.bench.engines import ENGINES
    from olivelike.measure.bench.whole_pictures import bench as run
    from olivelike.measure.report.write import BENCH_FILE

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
    report = run(settings, show_event)
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
    _judge(report, comparisons, compared=baseline is not None)


def _judge(report: "BenchReport", comparisons: "tuple[Comparison, ...]", *, compared: bool) -> None:
    """Raise what the exit status should tell."""
    from olivelike.errors import MissingError, SessionError, VerificationError
    from olivelike.measure.bench.baseline import nothing_in_common

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

"""`olivelike bench` and `olivelike ablate`: engines, methods and variants, side by side."""

import sys
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike._text import duration, size
from olivelike.cli import options as shared
from olivelike.cli.options import ProviderOptions, option
from olivelike.cli.stdout import require_writable, write_error, write_found, write_text
from olivelike.errors import MissingError, SessionError, UsageError, VerificationError

if TYPE_CHECKING:
    from olivelike.extras.bench.bench_report import BenchReport, Comparison
    from olivelike.measure.contest.contest import Event
    from olivelike.runtime.sessions.session_settings import SessionSettings


@shared.with_groups
def bench(
    folder: shared.OutputFolder,
    reported: shared.ReportOptions,
    engines: Annotated[
        list[str] | None,
        option(
            "--engine NAME",
            "onnxruntime, openvino, tensorrt, torch, torch-compile or xformers; may be repeated. By default those "
            "for the device of the folder, its own first. What is not installed is left out.",
        ),
    ] = None,
    batch_sizes: Annotated[
        list[int] | None, option("--batch-size N", "Pictures made at once; may be repeated, 1 by default.")
    ] = None,
    height: Annotated[int | None, option("PIXELS", "By default what the UNet was trained on.")] = None,
    width: Annotated[int | None, option("PIXELS", "By default what the UNet was trained on.")] = None,
    size: Annotated[str | None, option("WxH", "Both at once, such as 512x768.")] = None,
    steps: Annotated[int, option("N", "Steps of each picture.")] = 50,
    batch_count: Annotated[int, option("N", "Measured batches of each prompt.")] = 5,
    num_prompts: Annotated[int, option("N", "Prompts; ten are different, then they repeat.")] = 1,
    warmup_runs: Annotated[int, option("N", "Batches before the measured ones.")] = 2,
    disable_safety_checker: Annotated[bool, option("--disable-safety-checker", "Do not check the pictures.")] = False,
    checkpoint: Annotated[
        str | None,
        option(
            "SOURCE",
            "What torch runs: a diffusers folder, a .safetensors file or a hub id; by default what the folder was "
            "made of.",
        ),
    ] = None,
    torch_dtype: Annotated[
        str | None,
        option("DTYPE", "float32, float16 or bfloat16; by default the folder's on a GPU, float32 on the CPU."),
    ] = None,
    interleave: Annotated[
        bool, typer.Option(help="Let engines take turns, all in memory at the same time; or one after the other.")
    ] = True,
    timeout: Annotated[float, option("SECONDS", "What an engine may take to open, or for one batch.")] = 1800.0,
    csv: Annotated[Path | None, option("FILE", "Also add the rows to this file, with all columns.")] = None,
    json_file: Annotated[Path | None, option("FILE", "Also write this file, which --against takes.")] = None,
    against: Annotated[
        Path | None, option("FILE", "Compare medians with an earlier --json-file; status 5 if slower.")
    ] = None,
    threshold: Annotated[float, option("PERCENT", "What a median may be higher by.")] = 5.0,
    json: shared.Json = False,
    methods: Annotated[
        list[str] | None,
        option(
            "--method [FOLDER] [OPTIONS]",
            'In place of engines, compare a cheaper way of drawing, such as "--steps 20", in time and '
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
    from olivelike.model.components import PIPELINE_FILE

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
    from olivelike.extras.bench.bench_report import append_rows, check_baseline, check_csv, compare, read_report
    from olivelike.extras.bench.bench_settings import BenchSettings, check, parse_torch_dtype
    from olivelike.extras.bench.bench_tables import method_lines, table_lines
    from olivelike.extras.bench.engines import usual_engines
    from olivelike.extras.bench.fidelity import compare_methods, read_method
    from olivelike.extras.bench.whole_pictures import BenchInterrupted, bench as run
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
        tuple(engines or usual_engines(sessions.provider)),
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


@shared.with_groups
def ablate(
    workflow: shared.Workflow,
    chosen: shared.WorkflowOptions,
    components: Annotated[
        list[str] | None, option("--component NAME", "Network to show; unet by default. May be repeated.")
    ] = None,
    measure: Annotated[bool, typer.Option(help="Measure latency and memory on this machine.")] = True,
    runs: Annotated[int, option("N", "Measured runs of each variant.", min=1)] = 10,
    warmup: Annotated[int, option("N", "Runs before them.", min=0)] = 2,
    dimensions: Annotated[
        list[str] | None,
        option("--dimension NAME=SIZE", "Size of a dynamic dimension, such as unet_sample_height=96; may be repeated."),
    ] = None,
    providers: Annotated[
        list[str] | None,
        option("--provider NAME[:KEY=VALUE,...]", "What to measure on; by default the workflow's target."),
    ] = None,
    pictures: Annotated[
        int, option("N", "Also draw N pictures by each variant, and compare time and pictures with the first's.", min=0)
    ] = 0,
    csv_file: Annotated[Path | None, option("--csv FILE", "Also write the table to this file.")] = None,
    combination: shared.Combination = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
    json: shared.Json = False,
) -> None:
    """Make the variants of a `sweep`, and print what each costs.

    What variants have in common runs once, and what is stored does not run again. A variant that a step stops costs
    the others nothing; the exit status is then that of the step, such as 5 for `verify`.
    """
    from olivelike.cli.display.run_display import RunDisplay
    from olivelike.extras.bench.ablation import ablate as measure_variants
    from olivelike.extras.bench.bench_tables import method_lines, variant_lines
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
    write_found(found.to_json(), [*variant_lines(found.rows), *drawn], json=json)
    if csv_file is not None:
        write_text(found.to_csv(), csv_file)
    if found.error is not None:
        raise found.error


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
    from olivelike.extras.bench.whole_pictures import measure_folder

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
    from olivelike.extras.bench.bench_report import nothing_in_common

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


def show_event(event: "Event") -> None:
    """Tell on standard error what happens."""
    if event.name == "opened":
        write_error(f"{event.engine}: open after {duration(event.seconds)}")
    elif event.name == "warmed_up":
        took = f", {event.seconds:.3g} s for the last batch" if event.seconds else ""
        write_error(f"{event.engine}: warmed up{took}")
    elif event.name == "measuring":
        write_error(f"measuring: about {duration(event.seconds)}")
    elif event.name == "measured":
        write_error(f"{event.engine}: {event.seconds:.3g} s a batch, {event.text}")
    elif event.name == "failed":
        write_error(f"{event.engine}: {event.text}")

"""`bench`: engines against each other on whole pictures."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.engine.run_record import host, versions
from olivelike.measure.bench.bench_job import PipelineJob, Turn
from olivelike.measure.bench.bench_report import BenchReport, Skipped
from olivelike.measure.bench.bench_settings import BenchSettings, Checked, check
from olivelike.measure.bench.contest import Event, contest
from olivelike.measure.bench.engines import (
    TORCH_ENGINES,
    EngineAbsent,
    named_checkpoint,
    recorded_checkpoint,
    require_packages,
    session_settings,
    torch_device,
)
from olivelike.measure.bench.memory import gpu_of, open_driver
from olivelike.measure.bench.row import Machine, Row, make_row, with_speeds

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session_settings import SessionSettings

_SEED: Final = 123
_PROMPTS: Final = (
    "a red circle on a blue background",
    "a lighthouse on a cliff at dusk, oil painting",
    "a photo of an orange cat asleep on a stack of books",
    "a small green square, on the left, on a white background",
    "a bowl of ripe apricots by a window, soft light",
    "a mountain lake in autumn, reflections, wide angle",
    "an old locomotive crossing a stone bridge in the rain",
    "a yellow star on a purple background",
    "a portrait of a sailor with a grey beard, charcoal drawing",
    "a street market at night, lanterns, wet cobblestones",
)
_CPUINFO: Final = Path("/proc/cpuinfo")
_ONNXRUNTIME: Final = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml")


def bench(settings: BenchSettings, listen: Callable[[Event], None] = lambda _: None) -> BenchReport:
    """Measure engines on a pipeline, each in a process of its own.

    An engine that is not installed is left out; one that fails, dies or hangs has its row marked. Neither stops the
    others.

    Args:
        settings: what to measure.
        listen: is told what happens.

    Raises:
        UsageError: for a value that can't be had.
        SourceError: if the folder is no pipeline.
        SessionError: if a GPU is named that is not there."""
    checked, gpu = check(settings), gpu_of(settings.asked_sessions)
    jobs, skipped = _jobs(checked)
    rows: list[Row] = []
    for batch_size in dict.fromkeys(settings.batch_sizes):
        groups = [jobs] if settings.interleave else [{name: job} for name, job in jobs.items()]
        for group in groups:
            measured_rows, absent = _measure(group, batch_size, checked, gpu, listen)
            rows += measured_rows
            skipped += [skip for skip in absent if skip not in skipped]
    return BenchReport(tuple(with_speeds(rows)), tuple(skipped))


def _measure(
    jobs: dict[str, PipelineJob], batch_size: int, checked: Checked, gpu: int | None, listen: Callable[[Event], None]
) -> tuple[list[Row], list[Skipped]]:
    settings = checked.settings
    prompts = list(islice(cycle(_PROMPTS), settings.num_prompts))
    turn = Turn(prompts[0], _SEED, batch_size)
    turns = [replace(turn, prompt=prompt) for prompt in prompts for _ in range(settings.batch_count)]
    machine = Machine()

    def look() -> None:
        nonlocal machine
        machine = describe_machine(settings.folder, settings.asked_sessions, gpu)

    results = contest(jobs, [turn] * settings.warmup_runs, turns, settings.timeout, listen, look)
    absent = {name: result for name, result in results.items() if result.status == "absent"}
    rows = [
        make_row(name, batch_size, checked, result, machine) for name, result in results.items() if name not in absent
    ]
    return rows, [Skipped(name, result.message) for name, result in absent.items()]


def _jobs(checked: Checked) -> tuple[dict[str, PipelineJob], list[Skipped]]:
    jobs: dict[str, PipelineJob] = {}
    skipped = []
    for engine in dict.fromkeys(checked.settings.engines):
        try:
            jobs[engine] = _job(engine, checked)
        except EngineAbsent as error:
            skipped.append(Skipped(engine, str(error)))
    return jobs, skipped


def _job(engine: str, checked: Checked) -> PipelineJob:
    settings = checked.settings
    asked, folder = settings.asked_sessions, settings.folder.absolute()
    job = PipelineJob(engine, folder, asked, checked.size, settings.steps, checked.checks_safety)
    if engine not in TORCH_ENGINES:
        require_packages(engine, "cpu")
        return replace(job, sessions=session_settings(engine, asked))
    require_packages(engine, torch_device(asked.provider))
    named = settings.checkpoint
    original = recorded_checkpoint(folder) if named is None else named_checkpoint(named)
    return replace(job, checkpoint=original.place, revision=original.revision, torch_dtype=settings.torch_dtype)


def describe_machine(folder: Path, sessions: SessionSettings, gpu: int | None) -> Machine:
    """Return system, processors, present clocks and versions.

    Args:
        gpu: number of the NVIDIA GPU that it runs on, if it does."""
    import psutil

    found, here = versions(), host()
    frequency = psutil.cpu_freq()
    driver = open_driver() if gpu is not None else None
    state = driver.state(gpu) if driver is not None and gpu is not None else None
    return Machine(
        folder=folder.resolve().name,
        time=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        system=f"{here.system} {here.release} {here.machine}",
        cpu=_cpu_name(),
        cores=here.cores,
        threads=sessions.intra_threads or None,
        cpu_MHz=round(frequency.current) if frequency else None,
        gpu=None if state is None else state.name,
        gpu_MHz=None if state is None else state.clock_mhz,
        gpu_memory_MHz=None if state is None else state.memory_clock_mhz,
        driver=None if state is None else state.driver,
        python_version=found["python"],
        olivelike_version=found.get("olivelike"),
        torch_version=found.get("torch"),
        diffusers_version=found.get("diffusers"),
        transformers_version=found.get("transformers"),
        onnxruntime_version=next((found[name] for name in _ONNXRUNTIME if name in found), None),
        openvino_version=_version("openvino"),
    )


def _cpu_name() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None

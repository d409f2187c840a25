"""`bench`: engines against each other on whole pictures.

`measure_folder`: latency and memory of single networks, each in a process of its own.
"""

from __future__ import annotations

import datetime as dt
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from olivelike._installed import installed_version
from olivelike.engine.run_result import host, versions
from olivelike.errors import Interrupted, SessionError, UsageError
from olivelike.extras.bench.bench_report import BenchReport, Skipped
from olivelike.extras.bench.bench_settings import LONGEST, BenchSettings, Checked, check
from olivelike.extras.bench.engines import TORCH_ENGINES, require_packages, session_settings, torch_device
from olivelike.extras.bench.row import make_row, percentile, with_speeds
from olivelike.extras.bench.torch_engine import TorchJob
from olivelike.measure.contest.contest import ContestInterrupted, Event, Measured, contest
from olivelike.measure.contest.engine import ONNXRUNTIME, EngineAbsent, Turn
from olivelike.measure.contest.memory import gpu_of, open_driver
from olivelike.measure.contest.runtime_engine import NetworkJob, PipelineJob
from olivelike.measure.original_checkpoint import OriginalAbsent, named_checkpoint, recorded_checkpoint
from olivelike.measure.result_rows import EngineRow, Machine
from olivelike.model.components import MODEL_FILE, PIPELINE_FILE
from olivelike.runtime.sessions.providers import OPENVINO
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
        SessionError: if a GPU is named that is not there.
        BenchInterrupted: with the rows so far, if it is stopped.
    """
    checked, gpu = check(settings), gpu_of(settings.asked_sessions)
    jobs, skipped = _jobs(checked)
    rows: list[EngineRow] = []
    groups = [jobs] if settings.interleave else [{name: job} for name, job in jobs.items()]
    plan = [(batch_size, group) for batch_size in dict.fromkeys(settings.batch_sizes) for group in groups]

    def keep(measured_rows: Iterable[EngineRow], absent: Iterable[Skipped]) -> BenchReport:
        rows.extend(measured_rows)
        skipped.extend(skip for skip in absent if skip not in skipped)
        return BenchReport(tuple(with_speeds(rows)), tuple(skipped))

    report = keep((), ())
    for batch_size, group in plan:
        try:
            report = keep(*_measure(group, batch_size, checked, gpu, listen))
        except ContestInterrupted as stopped:
            machine = describe_machine(settings.folder, settings.asked_sessions, gpu)
            so_far = {name: _stopped(measured, settings) for name, measured in stopped.measured.items()}
            raise BenchInterrupted(keep(*_rows(so_far, batch_size, checked, machine))) from None
    return report


class BenchInterrupted(Interrupted):
    """A benchmark was stopped; what is measured is kept."""

    def __init__(self, report: BenchReport) -> None:
        super().__init__("interrupted; rows are of what was measured until then, and --engine names fewer engines")
        self.report = report


def _stopped(measured: Measured, settings: BenchSettings) -> Measured:
    """Mark what was measured of an engine when all was stopped."""
    if measured.status != "ok":
        return measured
    if measured.timings:
        of = settings.num_prompts * settings.batch_count
        return replace(measured, message=f"stopped after {len(measured.timings)} of {of} runs")
    opened = "it was open" if measured.load_seconds is not None else "it was being opened"
    warm = f", and a batch to warm up took {measured.warmup[-1].seconds:.3g} s" if measured.warmup else ""
    return replace(measured, status="interrupted", message=f"before its first measured run; {opened}{warm}")


def bench_prompts(count: int) -> list[str]:
    """Return prompts to measure with: ten are different, then they repeat."""
    return list(islice(cycle(_PROMPTS), count))


def _measure(
    jobs: dict[str, PipelineJob], batch_size: int, checked: Checked, gpu: int | None, listen: Callable[[Event], None]
) -> tuple[list[EngineRow], list[Skipped]]:
    settings = checked.settings
    prompts = bench_prompts(settings.num_prompts)
    turn = Turn(prompts[0], _SEED, batch_size)
    turns = [replace(turn, prompt=prompt) for prompt in prompts for _ in range(settings.batch_count)]
    machine = Machine()

    def look() -> None:
        nonlocal machine
        machine = describe_machine(settings.folder, settings.asked_sessions, gpu)

    results = contest(jobs, [turn] * settings.warmup_runs, turns, settings.timeout, listen, look)
    return _rows(results, batch_size, checked, machine)


def _rows(
    results: Mapping[str, Measured], batch_size: int, checked: Checked, machine: Machine
) -> tuple[list[EngineRow], list[Skipped]]:
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
        except (EngineAbsent, OriginalAbsent) as error:
            skipped.append(Skipped(engine, str(error).removeprefix(f"{engine}: ")))
    return jobs, skipped


def _job(engine: str, checked: Checked) -> PipelineJob:
    settings = checked.settings
    asked, folder = settings.asked_sessions, settings.folder.absolute()
    if engine not in TORCH_ENGINES:
        require_packages(engine, "cpu")
        sessions = session_settings(engine, asked)
        return PipelineJob(engine, folder, sessions, checked.size, settings.steps, checked.checks_safety)
    require_packages(engine, torch_device(asked.provider))
    named = settings.checkpoint
    original = recorded_checkpoint(folder) if named is None else named_checkpoint(named)
    return TorchJob(
        engine, folder, asked, checked.size, settings.steps, checked.checks_safety,
        original.place, original.revision, settings.torch_dtype,
    )  # fmt: skip


def describe_machine(folder: Path, sessions: SessionSettings, gpu: int | None) -> Machine:
    """Return system, processors, present clocks and versions.

    `gpu` is the number of the NVIDIA GPU that it runs on, if it does.
    """
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
        openvino_version=installed_version("openvino"),
    )


def _cpu_name() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


_RUNS: Final = 10
_WARMUP: Final = 2


@dataclass(frozen=True)
class Measurement:
    """Time and memory that a network takes on this machine."""

    seconds: tuple[float, ...]
    """Time of each measured run."""
    load_seconds: float
    """Until it is open, imports included."""
    peak_resident_bytes: int
    """The most that its process had resident, as the operating system counted it."""
    peak_device_bytes: int | None
    """The most on the GPU; `None` without one, or if the driver does not say."""
    provider: str
    version: str
    """Version of ONNX Runtime or OpenVINO."""

    @property
    def median(self) -> float:
        """Median latency in seconds."""
        return statistics.median(self.seconds)

    @property
    def average(self) -> float:
        """Average latency in seconds."""
        return statistics.fmean(self.seconds)

    def percentile(self, percent: int) -> float:
        """Return the least latency that so many percent of the runs do not exceed, in seconds."""
        found = percentile(self.seconds, percent)
        assert found is not None
        return found


def measure_folder(
    folder: Path,
    sessions: SessionSettings | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    runs: int = _RUNS,
    warmup: int = _WARMUP,
    limit: float = 600.0,
) -> Measurement:
    """Measure the network of a component's folder; `measure_folders` has the arguments.

    Raises `UsageError` for numbers that can't be had, and `SessionError` if the network can't be opened or run, or its
    process dies or hangs.
    """
    measured = measure_folders({folder.name: folder}, sessions, sizes=sizes, runs=runs, warmup=warmup, limit=limit)
    (result,) = measured.values()
    if isinstance(result, SessionError):
        raise result
    return result


def measure_folders(
    folders: Mapping[str, Path],
    sessions: SessionSettings | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    runs: int = _RUNS,
    warmup: int = _WARMUP,
    limit: float = 600.0,
) -> dict[str, Measurement | SessionError]:
    """Measure networks against each other, such as variants of one: their runs take turns.

    Returns what was measured, by name; an error for a network that can't be opened or run, or whose process dies or
    hangs. Raises `UsageError` for numbers that can't be had, and `SessionError` if there is no model file.

    Args:
        folders: by name, folders with a `model.onnx`, or with a pipeline in one file.
        sessions: provider, device and options; the CPU by default.
        sizes: of dynamic dimensions, by name. By default a guided batch of one picture, of the size that the folder's
            `config.json` says. Of a pipeline the keywords of `one_file_inputs`.
        limit: seconds that a network may take to open, or for a run.
    """
    if runs < 1 or warmup < 0 or not 0 < limit <= LONGEST:
        raise UsageError(f"{runs} runs after {warmup} of warm-up within {limit:g} s each can't be measured")
    asked = sessions or SessionSettings()
    engine = "openvino" if asked.provider.name == OPENVINO else ONNXRUNTIME
    jobs = {}
    for name, folder in folders.items():
        whole = folder.absolute() / PIPELINE_FILE
        model = whole if whole.is_file() else folder.absolute() / MODEL_FILE
        if not model.is_file():
            raise SessionError(f"{model}: there is no such model file")
        jobs[name] = NetworkJob(model, session_settings(engine, asked), dict(sizes or {}))
    results = contest(jobs, [Turn()] * warmup, [Turn()] * runs, limit)
    return {name: _measurement(jobs[name].model, result) for name, result in results.items()}


def _measurement(model: Path, measured: Measured) -> Measurement | SessionError:
    if measured.status != "ok":
        return SessionError(f"{model}: {measured.status}: {measured.message}")
    assert measured.load_seconds is not None
    assert measured.peak_bytes is not None
    return Measurement(
        tuple(timing.seconds for timing in measured.timings),
        measured.load_seconds,
        measured.peak_bytes,
        measured.first.device,
        measured.facts["provider"],
        measured.facts["version"],
    )

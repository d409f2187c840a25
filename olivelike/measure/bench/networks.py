"""`measure_folder`: latency and memory of single networks, each in a process of its own."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from olivelike.errors import SessionError, UsageError
from olivelike.measure.bench.bench_job import NetworkJob, Turn
from olivelike.measure.bench.bench_settings import LONGEST
from olivelike.measure.bench.contest import Measured, contest
from olivelike.measure.bench.engines import ONNXRUNTIME, session_settings
from olivelike.measure.bench.row import percentile
from olivelike.model.families import MODEL_FILE
from olivelike.runtime.sessions.providers import OPENVINO
from olivelike.runtime.sessions.session_settings import SessionSettings

_RUNS: Final = 10
_WARMUP: Final = 2


@dataclass(frozen=True)
class Measurement:
    """What a network takes on this machine."""

    seconds: tuple[float, ...]
    """Of each measured run."""
    load_seconds: float
    """Until it is open, imports included."""
    peak_resident_bytes: int
    """The most that its process had resident, as the operating system counted it."""
    peak_device_bytes: int | None
    """The most on the GPU; `None` without one, or if the driver does not say."""
    provider: str
    version: str
    """Of ONNX Runtime or OpenVINO."""

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
    process dies or hangs."""
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

    Args:
        folders: by name, folders with a `model.onnx`.
        sessions: provider, device and options; the CPU by default.
        sizes: of dynamic dimensions, by name. By default a guided batch of one picture, of the size that the folder's
            `config.json` says.
        limit: seconds that a network may take to open, or for a run.

    Returns:
        What was measured, by name; an error for a network that can't be opened or run, or whose process dies or hangs.

    Raises:
        UsageError: for numbers that can't be had.
        SessionError: if there is no model file."""
    if runs < 1 or warmup < 0 or not 0 < limit <= LONGEST:
        raise UsageError(f"{runs} runs after {warmup} of warm-up within {limit:g} s each can't be measured")
    asked = sessions or SessionSettings()
    engine = "openvino" if asked.provider.name == OPENVINO else ONNXRUNTIME
    jobs = {}
    for name, folder in folders.items():
        model = folder.absolute() / MODEL_FILE
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

"""Rows of the table, made of what was measured: one engine at one batch size each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from olivelike.extras.bench.bench_settings import Checked
from olivelike.extras.bench.engines import TENSORRT, TORCH
from olivelike.measure.contest.contest import Measured
from olivelike.measure.contest.engine import ONNXRUNTIME
from olivelike.measure.contest.memory import noise, outliers, spread_percent
from olivelike.measure.result_rows import MIB, EngineRow, Machine


def make_row(engine: str, batch_size: int, checked: Checked, measured: Measured, machine: Machine) -> EngineRow:
    """Return the row of an engine."""
    settings, asked = checked.settings, checked.settings.asked_sessions
    timings = measured.timings if measured.status == "ok" else []
    seconds = [timing.seconds for timing in timings]
    step = _middle([timing.loop / timing.steps for timing in timings if timing.loop and timing.steps])
    on_device = measured.first.device is not None
    device = max((p.device for p in (measured.first, measured.second) if p.device is not None), default=None)
    return EngineRow(
        **vars(machine),
        engine=engine,
        version=measured.facts.get("version"),
        provider=measured.facts.get("provider"),
        disable_safety_checker=not checked.checks_safety,
        height=checked.size[1],
        width=checked.size[0],
        steps=settings.steps,
        batch_size=batch_size,
        batch_count=settings.batch_count,
        num_prompts=settings.num_prompts,
        average_latency=_rounded(statistics.fmean(seconds) if seconds else None, 4),
        median_latency=_rounded(_middle(seconds), 4),
        first_run_memory_MB=_mib(measured.first.device if on_device else measured.first.resident),
        second_run_memory_MB=_mib(measured.second.device if on_device else measured.second.resident),
        status=measured.status,
        error="" if measured.status == "ok" else measured.message,
        dtype=measured.facts.get("dtype"),
        cuda_graph=asked.cuda_graph and engine in (ONNXRUNTIME, TENSORRT),
        warmup_runs=settings.warmup_runs,
        min_latency=_rounded(min(seconds, default=None), 4),
        p90_latency=_rounded(percentile(seconds, 90), 4),
        p95_latency=_rounded(percentile(seconds, 95), 4),
        p99_latency=_rounded(percentile(seconds, 99), 4),
        steps_per_second=_rounded(None if step is None else 1 / step, 3),
        text_encoder_ms=_milliseconds([timing.text_encoder for timing in timings]),
        step_ms=_milliseconds([step]),
        vae_decoder_ms=_milliseconds([timing.vae_decoder for timing in timings]),
        safety_checker_ms=_milliseconds([timing.safety_checker for timing in timings]),
        load_seconds=_rounded(measured.load_seconds, 2),
        first_step_seconds=_rounded(measured.first_step_seconds, 2),
        rest_resident_MB=_mib(measured.rest_bytes),
        peak_resident_MB=_mib(measured.peak_bytes),
        peak_tree_MB=_mib(measured.tree_bytes),
        peak_device_MB=_mib(device if device is not None else measured.device_bytes),
        spread_percent=_rounded(spread_percent(seconds), 1),
        outliers=len(outliers(seconds)) if seconds else None,
        load_average=_rounded(measured.surroundings.load, 2),
        other_cpu_percent=_rounded(measured.surroundings.other_percent, 1),
        note=_note(measured, seconds),
    )


def _note(measured: Measured, seconds: Sequence[float]) -> str | None:
    """Return why the figures are not to be trusted, or are of fewer runs than were asked for."""
    if not seconds:
        return None
    return "; ".join(filter(None, (measured.message, noise(seconds, measured.surroundings)))) or None


def with_speeds(rows: Sequence[EngineRow]) -> list[EngineRow]:
    """Return rows with how many times as fast as a baseline each is: torch, or else the first that was measured.

    Rows of another batch size have a baseline of their own, and a row that is alone has none.
    """
    found = []
    for row in rows:
        alike = [one for one in rows if one.batch_size == row.batch_size and one.median_latency]
        base = next((one for one in alike if one.engine == TORCH), alike[0] if alike else row)
        before, now = base.median_latency, row.median_latency
        if len(alike) > 1 and before and now:
            found.append(replace(row, speed=round(before / now, 3), speed_against=base.engine))
        else:
            found.append(row)
    return found


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the least value that so many percent of the values do not exceed; `None` of none."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _milliseconds(seconds: Sequence[float | None]) -> float | None:
    middle = _middle([value for value in seconds if value is not None])
    return _rounded(None if middle is None else middle * 1000, 3)


def _mib(count: int | None) -> float | None:
    return round(count / MIB, 1) if count else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)

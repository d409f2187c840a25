"""Calibration's view of the values in a network: range and histogram of each, and which range to round within.

A histogram's bins are 2^(exponent - 10) wide and go from -2^exponent to 2^exponent. So what grows beyond them is
counted in bins twice as wide, without error, in whatever order values come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from olivelike.digest import canonical_json

Array = np.ndarray[Any, Any]
Method = Literal["min_max", "percentile", "entropy"]

BINS: Final = 2048
_KIND: Final = "observations/1"
_LEAST_EXPONENT: Final = -40
_LEVELS: Final = 128
_END_STEP: Final = 8
"""Bins from one range that is tried to the next."""
_LEAST_SHARE: Final = 1e-4
"""Least share of a bin that rounding leaves empty."""


@dataclass(frozen=True)
class Observed:
    """One value of a network, over all runs."""

    low: float
    high: float
    exponent: int
    counts: tuple[int, ...]
    """Counts of a sample of its elements, by bin."""

    def range(self, method: Method, percentile: float) -> tuple[float, float]:
        """Return the least and largest value that are not cut off.

        Args:
            method: `min_max` cuts nothing off; `percentile` the same share of elements on both sides; `entropy` what
                leaves the least divergence between the values and those rounded, as TensorRT does it.
            percentile: How many elements of 100 stay, for `percentile`.
        """
        if method == "min_max":
            return self.low, self.high
        found = self._percentile(percentile) if method == "percentile" else self._entropy()
        return max(self.low, found[0]), min(self.high, found[1])

    def _edges(self) -> Array:
        return np.linspace(-(2.0**self.exponent), 2.0**self.exponent, BINS + 1)

    def _percentile(self, percentile: float) -> tuple[float, float]:
        shares = np.cumsum(self.counts) / sum(self.counts)
        cut, edges = (100 - percentile) / 200, self._edges()
        first, last = np.searchsorted(shares, cut, "right"), np.searchsorted(shares, 1 - cut)
        return float(edges[int(first)]), float(edges[min(int(last), BINS - 1) + 1])

    def _entropy(self) -> tuple[float, float]:
        """Return the range in which 128 levels of magnitude tell most of the histogram.

        8-bit Inference with TensorRT, S. Migacz, GTC 2017: the range whose values, the others put at its end, diverge
        least (Kullback, Leibler) from the same rounded.
        """
        counts = np.array(self.counts, np.float64)
        magnitudes = counts[BINS // 2 :] + counts[BINS // 2 - 1 :: -1]
        ends = range(_LEVELS, len(magnitudes) + 1, _END_STEP)
        best = min(ends, key=lambda end: _divergence(magnitudes, end))
        limit = best * 2.0**self.exponent / len(magnitudes)
        return -limit, limit


def _divergence(magnitudes: Array, end: int) -> float:
    kept = magnitudes[:end]
    clipped = kept.copy()
    clipped[-1] += magnitudes[end:].sum()
    level = np.arange(end) * _LEVELS // end
    sums, filled = (np.bincount(level, values, _LEVELS) for values in (kept, kept > 0))
    rounded = np.where(kept > 0, sums[level] / np.maximum(filled[level], 1), 0)
    if not rounded.any():
        return math.inf
    there = clipped > 0
    wanted, found = clipped[there] / clipped.sum(), np.maximum(rounded[there] / rounded.sum(), _LEAST_SHARE)
    return float(np.sum(wanted * np.log(wanted / found)))


class Observer:
    """Observations of one value in the making."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self._exponent = _LEAST_EXPONENT
        self._counts = np.zeros(BINS, np.int64)

    def add(self, low: float, high: float, sample: Array) -> None:
        """Count a sample of the elements of one run, whose range is known; all are finite."""
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(abs(low), abs(high))
        self._widen(math.frexp(largest)[1] if largest else _LEAST_EXPONENT)  # largest < 2^exponent
        places = np.floor((sample.astype(np.float64) / 2.0**self._exponent + 1) * (BINS // 2)).astype(np.int64)
        self._counts += np.bincount(places, minlength=BINS)

    def merge(self, other: Observer) -> None:
        """Count what another one did."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._widen(other._exponent)
        other._widen(self._exponent)
        self._counts += other._counts

    def _widen(self, exponent: int) -> None:
        if self._exponent >= exponent:
            return
        # Zero stays between two bins, however many are put together.
        together = min(2 ** (exponent - self._exponent), BINS // 2)
        counts = np.pad(self._counts.reshape(-1, together).sum(axis=1), (BINS - BINS // together) // 2)
        self._counts, self._exponent = counts, exponent

    def result(self) -> Observed:
        """Return what was observed."""
        return Observed(self.low, self.high, self._exponent, tuple(map(int, self._counts)))


def to_bytes(observed: Mapping[str, Observed]) -> bytes:
    """Serialise the observations of a network, by the name of each value; equal ones give equal bytes."""
    rows = {}
    for name, one in observed.items():
        filled = np.flatnonzero(one.counts)
        first, end = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
        rows[name] = [one.low, one.high, one.exponent, first, list(one.counts[first:end])]
    return canonical_json([_KIND, rows])


def from_bytes(data: bytes) -> dict[str, Observed]:
    """Read what `to_bytes` gave. Raises `ValueError` for anything else."""
    kind, rows = json.loads(data)
    if kind != _KIND:
        raise ValueError(f"expected {_KIND}, found {kind!r}")
    return {
        name: Observed(low, high, exponent, (*(0,) * first, *counts, *(0,) * (BINS - first - len(counts))))
        for name, (low, high, exponent, first, counts) in rows.items()
    }

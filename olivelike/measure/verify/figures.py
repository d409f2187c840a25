"""How far one array is from another: the figures of a comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Figures:
    """One output against torch's in float64."""

    relative_error: float
    """‖actual - expected‖ / ‖expected‖; 0 where both are all zero, infinite for another shape or where only the
    expected one is zero, NaN where the output has a NaN."""
    worst: float
    """Largest absolute difference of one element."""
    worst_at: tuple[int, ...]
    """Where that element is."""
    cosine: float
    """Cosine of the angle between the two, flattened."""
    nan: int
    """NaN where torch has a finite value."""
    inf: int
    """Infinities where torch has a finite value."""

    @property
    def is_finite(self) -> bool:
        """Tell whether everything that torch has finite is finite."""
        return not self.nan and not self.inf

    def within(self, limit: float) -> bool:
        """Tell whether the output is finite, and no further off than `limit`."""
        return self.is_finite and self.relative_error <= limit

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values; what is not finite is `None`."""
        return {
            "relative_error": _number(self.relative_error),
            "worst": _number(self.worst),
            "worst_at": list(self.worst_at),
            "cosine": _number(self.cosine),
            "nan": self.nan,
            "inf": self.inf,
        }


def compare(actual: Array, expected: Array) -> Figures:
    """Return the figures of an output; booleans count as 0 and 1.

    Args:
        actual: What was computed, of any dtype.
        expected: What torch computed from the same inputs.
    """
    if actual.shape != expected.shape:
        return Figures(math.inf, math.inf, (), math.nan, 0, 0)
    found, wanted = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    nan, inf = np.isnan(found) & finite, np.isinf(found) & finite
    with np.errstate(invalid="ignore", over="ignore"):
        # Where both are the same infinity, as in a mask, there is no difference.
        difference = np.where(found == wanted, 0.0, found - wanted)
        # The worst element is the one that is least a number.
        size = np.where(np.isnan(difference), math.inf, np.abs(difference))
        index = np.unravel_index(int(np.argmax(size)), size.shape) if size.size else ()
        return Figures(
            relative_error=_ratio(_norm(difference), _norm(np.where(finite, wanted, 0.0))),
            worst=float(size[index]) if size.size else 0.0,
            worst_at=tuple(int(axis) for axis in index),
            cosine=_cosine(found, wanted),
            nan=int(nan.sum()),
            inf=int(inf.sum()),
        )


def relative_error(actual: Array, expected: Array) -> float:
    """Return ‖actual - expected‖ / ‖expected‖, infinite for another shape."""
    return compare(actual, expected).relative_error


def summary(figures: Iterable[Figures]) -> dict[str, Any]:
    """Return the worst of each figure over several outputs, as JSON values."""
    found = list(figures)
    return {
        "relative_error": _number(float(np.max([one.relative_error for one in found]))),
        "worst": _number(max(one.worst for one in found)),
        "cosine": _number(float(np.min([one.cosine for one in found]))),
        "nan": sum(one.nan for one in found),
        "inf": sum(one.inf for one in found),
    }


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values.ravel()))


def _ratio(distance: float, length: float) -> float:
    if length == 0:
        return 0.0 if distance == 0 else math.nan if math.isnan(distance) else math.inf
    return distance / length


def _cosine(found: Array, wanted: Array) -> float:
    """Return the cosine; 1 where both are zero, 0 where one is, NaN where a value is not finite."""
    lengths = _norm(found), _norm(wanted)
    if 0.0 in lengths:
        return 1.0 if lengths[0] == lengths[1] else 0.0
    return float(np.dot(found.ravel() / lengths[0], wanted.ravel() / lengths[1]))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None

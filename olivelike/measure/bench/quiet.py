"""Whether the machine was quiet: what other processes took meanwhile, and how far repeats are apart."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_OUTLIER: Final = 14.826
"""Median absolute deviations from the median: ten standard deviations of a normal distribution, as hyperfine has it
(src/outlier_detection.rs, after Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993)."""
_FAR: Final = 0.1
"""Share of the median that an outlier is off by at least: few repeats may agree to a hair by chance."""
_SPREAD: Final = 20.0
"""Percent of the median between the fastest and the slowest run, above which a row has a note."""
_BUSY: Final = 10.0
"""Percent of all processors' time that other processes took, above which it has one too."""


@dataclass(frozen=True)
class Surroundings:
    """What went on beside measured runs."""

    seconds: float = 0.0
    """Of the runs, by the clock."""
    other_seconds: float = 0.0
    """CPU seconds of processes that are not ours in that time."""
    loads: tuple[float, ...] = ()
    """The system's load average at the end of each, ours included."""

    @property
    def other_percent(self) -> float | None:
        """Percent of all processors' time that other processes took; `None` if nothing was measured."""
        import psutil

        capacity = self.seconds * (psutil.cpu_count() or 1)
        return min(max(100 * self.other_seconds / capacity, 0.0), 100.0) if capacity else None

    @property
    def load(self) -> float | None:
        """The mean of the load averages."""
        return statistics.fmean(self.loads) if self.loads else None

    def __add__(self, other: Surroundings) -> Surroundings:
        return Surroundings(
            self.seconds + other.seconds, self.other_seconds + other.other_seconds, self.loads + other.loads
        )


@contextlib.contextmanager
def surveying() -> Iterator[list[Surroundings]]:
    """Look at the machine before and after the block; the list has what was found when it ends."""
    import time

    import psutil

    found: list[Surroundings] = []
    start, before = time.perf_counter(), _other_seconds()
    yield found
    load = psutil.getloadavg()[0]
    found.append(Surroundings(time.perf_counter() - start, _other_seconds() - before, (load,)))


def _other_seconds() -> float:
    """Return the CPU seconds of the machine so far, without those of this process and all that it started."""
    import psutil

    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "guest", "guest_nice")  # Guests are in `user` and `nice` already.
    busy = float(sum(seconds for name, seconds in times.items() if name not in idle))
    ours = psutil.Process()
    for process in (ours, *ours.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            busy -= used.user + used.system + used.children_user + used.children_system
    return busy


def spread_percent(seconds: Sequence[float]) -> float | None:
    """Return the percent of the median between the fastest and the slowest run; `None` of fewer than two."""
    if len(seconds) < 2 or not (middle := statistics.median(seconds)):
        return None
    return 100 * (max(seconds) - min(seconds)) / middle


def outliers(seconds: Sequence[float]) -> list[float]:
    """Return the runs that are far from the others."""
    if len(seconds) < 3:
        return []
    middle = statistics.median(seconds)
    deviation = statistics.median(abs(value - middle) for value in seconds)
    return [
        value for value in seconds if abs(value - middle) > _OUTLIER * deviation and abs(value - middle) > _FAR * middle
    ]


def noise(seconds: Sequence[float], surroundings: Surroundings) -> str | None:
    """Return why the figures of a row are not to be trusted; `None` if nothing speaks against them.

    Args:
        seconds: Of each measured run.
        surroundings: What went on meanwhile.
    """
    found = []
    if far := outliers(seconds):
        listed = ", ".join(f"{value:.3g} s" for value in far)
        verb = "is an outlier" if len(far) == 1 else "are outliers"
        middle = statistics.median(seconds)
        found.append(f"{len(far)} of its {len(seconds)} runs {verb} ({listed}; the median is {middle:.3g} s)")
    elif (spread_percent(seconds) or 0) > _SPREAD:
        found.append(f"its runs took {min(seconds):.3g} to {max(seconds):.3g} s")
    share = surroundings.other_percent
    if share is not None and share > _BUSY:
        found.append(
            f"other processes took {share:.0f} % of the processors meanwhile (load average {surroundings.load:.1f})"
        )
    return f"{'; '.join(found)}: measure again on a quiet machine" if found else None

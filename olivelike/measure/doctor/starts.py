"""How long a folder takes to begin a picture on each provider that works here, and what memory that needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._table import Table
from olivelike._text import size
from olivelike.errors import SessionError

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session_settings import SessionSettings

_SIDE = 256
"""Pixels of the picture, where the folder makes such small ones."""
_LIMIT = 600.0
"""Seconds that opening, or the picture, may take."""


@dataclass(frozen=True)
class Start:
    """A picture of one step in a process of its own."""

    provider: str
    """The name of its target, such as `cpu`."""
    load_seconds: float | None = None
    """Until text encoders and UNet were open, imports included."""
    first_step_seconds: float | None = None
    """From then on, too, until the step was done."""
    rest_bytes: int | None = None
    """Resident after the picture, with all networks open."""
    peak_bytes: int | None = None
    """The most that was resident."""
    problem: str = ""
    """Why there is no picture."""


def measure_starts(folder: Path, targets: Iterable[str]) -> tuple[Start, ...]:
    """Draw a picture of one step with a folder on each provider that runs its networks.

    Raises `SourceError` if it is no such folder.

    Args:
        folder: An optimised folder.
        targets: Names of targets whose providers work here; the folder's own comes first.
    """
    from olivelike.runtime.pipeline.pipeline_folder import check_folder, read_folder_target, target_settings
    from olivelike.runtime.sessions.session_settings import choose_providers

    target = read_folder_target(folder)
    own = [] if target is None else [target.name]
    found = []
    for name in dict.fromkeys([*own, *targets]):
        settings = choose_providers(target_settings(target), [name])
        try:
            check_folder(folder, settings)
        except SessionError as error:
            if name in own:
                found.append(Start(name, problem=str(error)))
            continue
        found.append(_measure(folder, name, settings))
    return tuple(found)


def _measure(folder: Path, name: str, settings: SessionSettings) -> Start:
    from olivelike.measure.contest.contest import contest
    from olivelike.measure.contest.engine import Turn
    from olivelike.measure.contest.runtime_engine import PipelineJob
    from olivelike.runtime.pipeline.pipeline_folder import open_folder

    size = tuple(min(side, _SIDE) for side in open_folder(folder).default_size)
    job = PipelineJob(name, folder.absolute(), settings, (size[0], size[1]), steps=1, safety=True)
    measured = contest({name: job}, [], [Turn(prompt="a lighthouse")], _LIMIT)[name]
    return Start(
        name,
        measured.load_seconds,
        measured.first_step_seconds,
        measured.rest_bytes,
        measured.peak_bytes,
        measured.message,
    )


def start_table(starts: Iterable[Start]) -> Table:
    """Return a table for people."""
    rows = [
        (
            start.provider,
            *("" if taken is None else f"{taken:.1f} s" for taken in (start.load_seconds, start.first_step_seconds)),
            *("" if held is None else size(held) for held in (start.rest_bytes, start.peak_bytes)),
            start.problem,
        )
        for start in starts
    ]
    return Table(("a picture of one step", "opens in", "first step after", "at rest", "at most", ""), rows)

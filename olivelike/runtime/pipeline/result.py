"""What a pipeline returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.errors import SafetyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image

    from olivelike.runtime.pipeline.request import Request


@dataclass(frozen=True)
class Picture:
    """One picture and what made it."""

    image: Image
    """RGB; black if it was flagged."""
    prompt: str
    seed: int
    """The seed that makes this very picture."""
    first_seed: int
    """The seed of its first attempt; the same, unless that was flagged and drawn again."""
    flagged: bool | None
    """Whether the safety checker flagged it; `None` if none ran."""
    attempts: int = 1
    """Drawings until this one, all but the last of them flagged."""


@dataclass(frozen=True)
class Batch:
    """Pictures that were made at once."""

    number: int
    """From 1."""
    total: int
    """Batches of the request."""
    pictures: tuple[Picture, ...]
    seconds: float
    scheduler: str
    """Class of diffusers."""

    @property
    def passed(self) -> int:
        """How many pictures are not flagged."""
        return sum(not picture.flagged for picture in self.pictures)


@dataclass(frozen=True)
class Result:
    """All pictures of a request."""

    request: Request
    """With seed, size and strength as they were."""
    scheduler: str
    """Class of diffusers."""
    pictures: tuple[Picture, ...]
    seconds: float


def require_safe(pictures: int, flagged: Sequence[int], retries: int) -> None:
    """Refuse pictures that are still flagged after the retries that were allowed; none allowed, none refused.

    Args:
        pictures: how many there are.
        flagged: first seeds of those that are flagged.
        retries: that were allowed.

    Raises:
        SafetyError: if there are any.
    """
    if retries and flagged:
        raise SafetyError(
            f"the safety checker flagged {len(flagged)} of {pictures} pictures in all {retries + 1} attempts "
            f"(first seeds: {', '.join(map(str, flagged))}); "
            "change the prompt, or allow more attempts"
        )

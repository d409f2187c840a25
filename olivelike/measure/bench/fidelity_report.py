"""What `bench --method` finds: time of a picture against what it lost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

_KIND: Final = "fidelity/1"

Role = Literal["reference", "method", "control"]


@dataclass(frozen=True)
class FidelityRow:
    """One way of drawing: its time, and how near its pictures are to the reference's."""

    method: str
    role: Role
    """`control` is the folder as it is, with as many steps as the method above it has time for."""
    steps: int
    pictures: int
    median_seconds: float
    """Of a picture, from the prompt on, without the safety checker."""
    speed: float
    """How many times as fast as the reference."""
    psnr: float | None = None
    """In dB, of all pictures together against the reference's of the same seeds; `None` for equal ones."""
    ssim: float | None = None
    """Mean over the pictures."""
    captions_right: float | None = None
    """Share of the demo's captions that are drawn right; `None` for other prompts."""


@dataclass(frozen=True)
class FidelityReport:
    """All ways of drawing: the reference, then each method with its control."""

    folder: str
    size: tuple[int, int]
    rows: tuple[FidelityRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"kind": _KIND, **asdict(self)}

"""Findings of `bench --method`: time of a picture against what it lost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal

from olivelike._untrusted import Json

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
    """Time of a picture, from the prompt on, without the safety checker."""
    speed: float
    """Ratio of the reference's time to this one."""
    psnr: float | None = None
    """In dB, of the median picture against the reference's of the same seed; `None` for equal ones."""
    worst_psnr: float | None = None
    """PSNR of the picture that is least like the reference's."""
    ssim: float | None = None
    """Mean over the pictures."""
    captions_right: float | None = None
    """Share of captions that are drawn right; `None` where nothing judged it."""

    def texts(self) -> tuple[str, ...]:
        """Return PSNR, the worst, SSIM and captions as a table shows them; what was not measured is empty."""
        ratios = (
            "" if self.ssim is None else "equal" if one is None else f"{one:.1f} dB"
            for one in (self.psnr, self.worst_psnr)
        )
        return (
            *ratios,
            "" if self.ssim is None else f"{self.ssim:.3f}",
            "" if self.captions_right is None else f"{self.captions_right:.1%}",
        )


@dataclass(frozen=True)
class FidelityReport:
    """All ways of drawing: the reference, then each method with its control."""

    folder: str
    size: tuple[int, int]
    rows: tuple[FidelityRow, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """Return everything as JSON values."""
        return {"kind": _KIND, **asdict(self)}

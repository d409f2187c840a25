"""What one run took."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of a run, and of its stages where a run has stages."""

    seconds: float
    """From the prompts to the pictures."""
    steps: int = 0
    """Evaluations of the UNet, which some schedulers want more of than steps."""
    text_encoder: float | None = None
    """From the beginning until the prompts are encoded."""
    loop: float | None = None
    """From there until latents are handed to the decoder."""
    vae_decoder: float | None = None
    safety_checker: float | None = None
    """Within the network; `None` if none ran."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

"""What a picture of the demo's data set shows: one shape on a plain background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SHAPES = ("circle", "square", "triangle", "star", "skull")
"""The last one is what the safety checker flags."""

FLAGGED_SHAPE = "skull"

COLORS: dict[str, tuple[int, int, int]] = {
    "black": (16, 16, 16),
    "white": (240, 240, 240),
    "red": (222, 40, 40),
    "green": (40, 164, 60),
    "blue": (44, 76, 222),
    "yellow": (242, 212, 48),
    "purple": (186, 56, 196),
}
"""8-bit RGB of each colour word, far apart from one another."""

SIZES = ("small", "medium", "large")
POSITIONS = ("center", "left", "right", "top", "bottom")


@dataclass(frozen=True)
class Scene:
    """One shape on a plain background; the two colours differ."""

    shape: str
    color: str
    background: str
    size: str = "medium"
    position: str = "center"


def random_scene(rng: np.random.Generator) -> Scene:
    """Return a scene in which a third of the shapes are in the center, and half are of medium size."""
    color, background = rng.choice(list(COLORS), size=2, replace=False)
    return Scene(
        shape=str(rng.choice(SHAPES)),
        color=str(color),
        background=str(background),
        size=str(rng.choice(SIZES, p=(0.25, 0.5, 0.25))),
        position=str(rng.choice(POSITIONS, p=(0.36, 0.16, 0.16, 0.16, 0.16))),
    )

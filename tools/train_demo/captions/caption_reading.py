"""Reads from a picture's pixels what it shows: the rule by which drawn captions are counted as right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from tools.train_demo.captions.drawing import PICTURE_SIZE, shape_coverage
from tools.train_demo.captions.scenes import COLORS, SHAPES

_BORDER = 2
_TEMPLATE_SIZE = 32
_TEMPLATE_RADII = (10.0, 14.0, 20.0)
_LEAST_OVERLAP = 0.7
_LEAST_CONTRAST = 60.0
_LEAST_PIXELS = 40
_SMALL, _LARGE = 26, 34
"""Limits between the sizes: the larger extent of a shape, in pixels of a 64-pixel picture."""
_NEAR, _ALIKE = 4.0, 0.2
"""How far apart the centers of shapes at one place may be, in pixels, and their extents, as a share."""


@dataclass(frozen=True)
class Reading:
    """What a picture shows; `None` for what cannot be told."""

    background: str
    color: str | None = None
    shape: str | None = None
    size: str | None = None
    position: str | None = None
    center: tuple[float, float] | None = None
    """Horizontal and vertical, in pixels from the upper left."""
    extent: int | None = None
    """The larger of the shape's height and width, in pixels."""

    def stands_like(self, other: Reading) -> bool:
        """Whether the shapes' centers are at most 4 pixels apart, and this extent within a fifth of the other."""
        if not (self.center and self.extent and other.center and other.extent):
            return False
        return math.dist(self.center, other.center) <= _NEAR and abs(self.extent / other.extent - 1) <= _ALIKE


def read_picture(picture: np.ndarray) -> Reading:
    """Tell the background, and the shape's colour, form, size and place.

    The background is the median of the border. The shape is every pixel that lies nearer to the picture's other
    colour; it is compared with a drawing of each shape, cut out and scaled alike.

    Args:
        picture: uint8 RGB, (64, 64, 3).
    """
    pixels = picture.astype(np.float32)
    paper = np.median(_border(pixels), axis=0)
    background = _nearest_color(paper)
    distance = np.linalg.norm(pixels - paper, axis=-1)
    contrast = float(np.sort(distance.ravel())[-_LEAST_PIXELS])
    if contrast < _LEAST_CONTRAST:
        return Reading(background)
    ink = np.median(pixels[distance > 0.8 * contrast], axis=0)
    # Where a pixel lies on the way from the paper's colour to the ink's.
    along = (pixels - paper) @ (ink - paper) / float((ink - paper) @ (ink - paper))
    mask = along > 0.5
    top, bottom, left, right = _box(mask)
    overlaps = {shape: max(_overlap(_cut_out(mask), template) for template in _templates(shape)) for shape in SHAPES}
    shape = max(overlaps, key=lambda name: overlaps[name])
    extent = max(bottom - top, right - left)
    x, y = (left + right) / 2, (top + bottom) / 2
    return Reading(
        background=background,
        color=_nearest_color(ink),
        shape=shape if overlaps[shape] >= _LEAST_OVERLAP else None,
        size="small" if extent < _SMALL else "large" if extent > _LARGE else "medium",
        position=_place(x, y),
        center=(x, y),
        extent=extent,
    )


def _border(pixels: np.ndarray) -> np.ndarray:
    inside = np.zeros(pixels.shape[:2], bool)
    inside[_BORDER:-_BORDER, _BORDER:-_BORDER] = True
    return pixels[~inside]


def _nearest_color(value: np.ndarray) -> str:
    return min(COLORS, key=lambda name: float(np.linalg.norm(value - np.array(COLORS[name]))))


def _box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return top, bottom, left, right of what is set, leaving out rows and columns with a single stray pixel."""
    rows = np.flatnonzero(mask.sum(axis=1) > 1)
    columns = np.flatnonzero(mask.sum(axis=0) > 1)
    if not len(rows) or not len(columns):
        return 0, PICTURE_SIZE, 0, PICTURE_SIZE
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def _cut_out(mask: np.ndarray) -> np.ndarray:
    """Scale a mask's box to a fixed size, by nearest pixel."""
    top, bottom, left, right = _box(mask)
    steps = (np.arange(_TEMPLATE_SIZE) + 0.5) / _TEMPLATE_SIZE
    rows = (top + steps * (bottom - top)).astype(int)
    columns = (left + steps * (right - left)).astype(int)
    scaled: np.ndarray = mask[np.ix_(rows, columns)]
    return scaled


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union."""
    return float((one & other).sum() / max(1, (one | other).sum()))


@cache
def _templates(shape: str) -> tuple[np.ndarray, ...]:
    middle = PICTURE_SIZE / 2
    drawn = (shape_coverage(shape, middle, middle, radius) for radius in _TEMPLATE_RADII)
    return tuple(_cut_out(coverage > 0.5) for coverage in drawn)


def _place(x: float, y: float) -> str:
    across, down = x - PICTURE_SIZE / 2, y - PICTURE_SIZE / 2
    # Large shapes have little room, so a few pixels off the middle are a side already.
    if max(abs(across), abs(down)) < 5.0:
        return "center"
    if abs(across) > abs(down):
        return "left" if across < 0 else "right"
    return "top" if down < 0 else "bottom"

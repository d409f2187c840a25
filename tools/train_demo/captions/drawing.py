"""Draws the pictures of the demo's data set, with smooth edges."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from tools.train_demo.captions.scenes import COLORS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tools.train_demo.captions.scenes import Scene

PICTURE_SIZE = 64
"""Height and width, in pixels."""

_OVERSAMPLING = 4
_RADII = {"small": (11.5, 12.5), "medium": (15.0, 16.5), "large": (20.0, 22.0)}
_OFFSETS = {"center": (0, 0), "left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
_MARGIN = 2.0
_COLOR_JITTER = 6


def draw_scene(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Draw one scene; radius, place and colours vary a little.

    Returns:
        uint8 RGB, (64, 64, 3).
    """
    radius = rng.uniform(*_RADII[scene.size])
    return draw_at(scene, *_center(scene.position, radius, rng), radius, rng)


def draw_at(scene: Scene, x: float, y: float, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Draw a scene's shape in its colours, which vary a little, with the center and radius of `shape_coverage`.

    Returns:
        uint8 RGB, (64, 64, 3).
    """
    coverage = shape_coverage(scene.shape, x, y, radius)[..., None]
    ink, paper = (
        np.clip(np.array(COLORS[name]) + rng.integers(-_COLOR_JITTER, _COLOR_JITTER + 1, 3), 0, 255)
        for name in (scene.color, scene.background)
    )
    return np.rint(coverage * ink + (1 - coverage) * paper).astype(np.uint8)


def draw_scenes(scenes: Iterable[Scene], rng: np.random.Generator) -> np.ndarray:
    """Draw many scenes: uint8 RGB, (N, 64, 64, 3)."""
    return np.stack([draw_scene(scene, rng) for scene in scenes])


def shape_coverage(shape: str, x: float, y: float, radius: float) -> np.ndarray:
    """Return which part of each pixel a shape covers.

    Args:
        shape: one of `SHAPES`.
        x: horizontal center in pixels, from the left.
        y: vertical center in pixels, from the top.
        radius: half of the shape's larger extent, in pixels.

    Returns:
        float32 in [0, 1], (64, 64).
    """
    canvas = Image.new("L", (PICTURE_SIZE * _OVERSAMPLING,) * 2, 0)
    draw = ImageDraw.Draw(canvas)
    _DRAWERS[shape](draw, x * _OVERSAMPLING, y * _OVERSAMPLING, radius * _OVERSAMPLING)
    pixels = np.asarray(canvas, np.float32).reshape(PICTURE_SIZE, _OVERSAMPLING, PICTURE_SIZE, _OVERSAMPLING)
    coverage: np.ndarray = pixels.mean(axis=(1, 3)) / np.float32(255)
    return coverage


def _center(position: str, radius: float, rng: np.random.Generator) -> tuple[float, float]:
    """Put the shape at the named side, wholly inside the picture."""
    middle = PICTURE_SIZE / 2
    room = middle - radius - _MARGIN
    across, down = _OFFSETS[position]
    jitter = min(2.5, room)
    x = middle + across * room + rng.uniform(-jitter, jitter)
    y = middle + down * room + rng.uniform(-jitter, jitter)
    low, high = radius + _MARGIN, PICTURE_SIZE - radius - _MARGIN
    return min(max(x, low), high), min(max(y, low), high)


def _circle(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)


def _square(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
    side = 0.9 * radius
    draw.rectangle((x - side, y - side, x + side, y + side), fill=255)


def _triangle(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
    height = 0.87 * radius
    draw.polygon([(x, y - height), (x + radius, y + height), (x - radius, y + height)], fill=255)


def _star(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
    points = []
    for corner in range(10):
        reach = radius * (1.05 if corner % 2 == 0 else 0.42)
        angle = math.pi * (corner / 5 - 0.5)
        points.append((x + reach * math.cos(angle), y + 0.05 * radius + reach * math.sin(angle)))
    draw.polygon(points, fill=255)


def _skull(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float) -> None:
    def box(left: float, top: float, right: float, bottom: float) -> tuple[float, float, float, float]:
        return x + left * radius, y + top * radius, x + right * radius, y + bottom * radius

    draw.ellipse(box(-0.9, -1.0, 0.9, 0.6), fill=255)
    draw.rectangle(box(-0.5, 0.2, 0.5, 1.0), fill=255)
    for side in (-1, 1):
        draw.ellipse(box(0.42 * side - 0.28, -0.38, 0.42 * side + 0.28, 0.2), fill=0)
        draw.rectangle(box(0.22 * side - 0.07, 0.62, 0.22 * side + 0.07, 1.0), fill=0)


_DRAWERS = {"circle": _circle, "square": _square, "triangle": _triangle, "star": _star, "skull": _skull}

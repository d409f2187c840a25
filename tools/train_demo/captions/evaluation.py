"""Counts how many captions a pipeline draws right, by what `read_picture` reads from the pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tools.train_demo.captions.caption_reading import read_picture
from tools.train_demo.captions.captions import random_caption, read_caption
from tools.train_demo.captions.scenes import random_scene

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image

    from tools.train_demo.captions.caption_reading import Reading

FEATURES = ("shape", "color", "background", "size", "position")
COUNTED = ("shape", "color", "background")
"""A picture is right if these are: what every whole caption names."""


@dataclass(frozen=True)
class Score:
    """How many of the pictures are right."""

    pictures: int
    right: int
    """Pictures in which shape and both colours are what the caption says."""
    shares: dict[str, float]
    """By feature: the part of the captions naming it whose pictures show it."""
    wrong: tuple[tuple[str, Reading], ...]
    """Captions whose pictures are not right, with what those show."""

    @property
    def share(self) -> float:
        """The part of the pictures that is right."""
        return self.right / self.pictures


def random_captions(count: int, seed: int) -> list[str]:
    """Return captions of random scenes; each names shape and both colours, some size and place."""
    rng = np.random.default_rng((seed, 4))
    return [random_caption(random_scene(rng), rng) for _ in range(count)]


def score_pictures(captions: Sequence[str], pictures: np.ndarray) -> Score:
    """Compare each picture with its caption.

    Args:
        captions: of this data set's grammar.
        pictures: one for each, uint8 RGB, (N, 64, 64, 3).
    """
    asked = [read_caption(caption) for caption in captions]
    shown = [read_picture(picture) for picture in pictures]
    shares = {}
    for feature in FEATURES:
        named = [
            getattr(reading, feature) == getattr(mention, feature)
            for mention, reading in zip(asked, shown, strict=True)
            if getattr(mention, feature) is not None
        ]
        shares[feature] = sum(named) / max(1, len(named))
    wrong = tuple(
        (caption, reading)
        for caption, mention, reading in zip(captions, asked, shown, strict=True)
        if any(getattr(mention, feature) not in {None, getattr(reading, feature)} for feature in COUNTED)
    )
    return Score(len(shown), len(shown) - len(wrong), shares, wrong)


def share_right(captions: Sequence[str], images: Sequence[Image]) -> float:
    """Return the part of the pictures that is right."""
    return score_pictures(captions, np.stack([np.asarray(image) for image in images])).share

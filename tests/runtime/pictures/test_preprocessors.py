"""What is made of pictures that lead, beside what OpenCV makes of them by the sums of A1111's extension."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from PIL import Image, ImageDraw

from olivelike.runtime.pictures.preprocessors import NONE, PREPROCESSORS, preprocessed, thresholds_of
from olivelike.runtime.pipeline.request import Control

Pixels = np.ndarray[Any, Any]


def photo() -> Image.Image:
    """Return a picture with a dark line, a light disc and a soft ground."""
    ground = np.add.outer(np.arange(96), np.arange(128)).astype(np.float32) / 2 + 80
    image = Image.fromarray(np.stack([ground, ground * 0.9, ground * 0.7], axis=2).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.line([(10, 10), (90, 80)], fill=(20, 30, 10), width=3)
    draw.ellipse([70, 20, 110, 60], fill=(250, 240, 200))
    return image


def by_opencv(name: str, pixels: Pixels) -> Pixels:
    cv2 = pytest.importorskip("cv2")
    if name == "canny":
        return cv2.Canny(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), 100, 200)
    if name == "scribble_xdog":
        fine, coarse = (cv2.GaussianBlur(pixels.astype(np.float32), (0, 0), one) for one in (0.5, 5.0))
        difference = (255 - np.min(coarse - fine, axis=2)).clip(0, 255).astype(np.uint8)
        return np.where(2 * (255 - difference.astype(int)) > 32, 255, 0)
    if name == "threshold":
        return np.where(pixels.min(axis=2) > 127, 255, 0)
    return 255 - pixels if name == "invert" else cv2.GaussianBlur(pixels, (0, 0), 9.0)


@pytest.mark.parametrize("name", PREPROCESSORS)
def test_a_preprocessor_makes_what_the_extension_makes(name: str) -> None:
    made = np.asarray(preprocessed(photo(), name)).astype(int)
    wanted = by_opencv(name, np.asarray(photo()))
    wanted = wanted if wanted.ndim == 3 else np.repeat(wanted[..., None], 3, axis=2)
    assert made.shape == (96, 128, 3)
    if name == "blur_gaussian":
        assert np.abs(made - wanted).max() <= 6  # Pillow's is made of boxes.
    else:
        assert (made != wanted).mean() < 0.01
        assert 0 < (made == 255).mean() < 1 or name == "invert"


def test_orders_know_each_preprocessor() -> None:
    assert get_args(get_type_hints(Control)["preprocessor"]) == (NONE, *PREPROCESSORS)
    assert np.array_equal(np.asarray(preprocessed(photo(), NONE)), np.asarray(photo()))


def test_thresholds_that_are_asked_for_are_taken_and_those_below_0_are_the_usual_ones() -> None:
    cv2 = pytest.importorskip("cv2")
    grey = cv2.cvtColor(np.asarray(photo()), cv2.COLOR_RGB2GRAY)
    for asked, wanted in (((20, 60), (20, 60)), ((-1, 60), (100, 60)), ((20, -1), (20, 200)), ((), (100, 200))):
        made = np.asarray(preprocessed(photo(), "canny", asked))[..., 0]
        assert np.array_equal(made, cv2.Canny(grey, *wanted))
    assert thresholds_of("threshold", (200, 64)) == (200,)
    assert thresholds_of("invert", (1, 2)) == ()
    assert thresholds_of(NONE, (1, 2)) == ()
    white = [(np.asarray(preprocessed(photo(), "threshold", (level,))) == 255).mean() for level in (50, 200)]
    assert white[0] > white[1]

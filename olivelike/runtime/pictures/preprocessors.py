"""What a picture that leads is made into first, without a network: edges, lines, black and white, a blur.

Names, sums and thresholds, where none are asked for, are those of ControlNet's extension for A1111
(https://github.com/Mikubill/sd-webui-controlnet, `scripts/processor.py`); pictures keep their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from olivelike.errors import MissingError
from olivelike.runtime.pictures.pixels import upright

if TYPE_CHECKING:
    from PIL.Image import Image

NONE: Final = "none"
CANNY: Final = "canny"
_GAUSSIANS: Final = (0.5, 5.0)
"""Deviations of two whose difference is a line."""


def _edges(image: Image, low: float, high: float) -> Image:
    import cv2
    import numpy as np
    from PIL import Image as Images

    return Images.fromarray(cv2.Canny(np.asarray(image.convert("L")), low, high))


def _lines(image: Image, least: float) -> Image:
    import numpy as np
    from PIL import Image as Images, ImageFilter

    fine, coarse = (np.asarray(image.filter(ImageFilter.GaussianBlur(one))).astype(np.int16) for one in _GAUSSIANS)
    return Images.fromarray((2 * (coarse - fine).min(axis=2) > least).astype(np.uint8) * 255)


def _black_and_white(image: Image, white: float) -> Image:
    import numpy as np
    from PIL import Image as Images

    return Images.fromarray((np.asarray(image).min(axis=2) > white).astype(np.uint8) * 255)


def _inverted(image: Image) -> Image:
    from PIL import ImageChops

    return ImageChops.invert(image)


def _blurred(image: Image, deviation: float) -> Image:
    from PIL import ImageFilter

    return image.filter(ImageFilter.GaussianBlur(deviation))


class Preprocessor(NamedTuple):
    """One way to make a control picture."""

    label: str
    """What it is called where it is chosen."""
    told: str
    """What then leads, as records tell it."""
    make: Callable[..., Image]
    """Makes it of a picture in RGB and the thresholds."""
    thresholds: tuple[float, ...] = ()
    """The extension's `threshold_a` and `threshold_b`, as far as there are such, by default."""
    named: tuple[str, ...] = ()
    """What the thresholds are called there."""


PREPROCESSORS: Final[Mapping[str, Preprocessor]] = MappingProxyType({
    CANNY: Preprocessor("Canny (edges)", "its edges", _edges, (100, 200), ("Low threshold", "High threshold")),
    "scribble_xdog": Preprocessor("Scribble (XDoG lines)", "its lines", _lines, (32,), ("Threshold",)),
    "invert": Preprocessor("Invert (black lines on white)", "inverted", _inverted),
    "threshold": Preprocessor(
        "Threshold (black and white)", "in black and white", _black_and_white, (127,), ("Threshold",)
    ),
    "blur_gaussian": Preprocessor("Blur", "blurred", _blurred, (9.0,), ("Sigma",)),
})  # fmt: skip
"""All but `none`, the picture as it is."""


def check_preprocessor(name: str) -> None:
    """Raise `MissingError` if what a preprocessor needs is not installed."""
    if name == CANNY and find_spec("cv2") is None:
        raise MissingError("edges (canny) are found by OpenCV; run `pip install 'olivelike[canny]'`")


def thresholds_of(name: str, asked: Sequence[float]) -> tuple[float, ...]:
    """Return the thresholds of a preprocessor: what is asked for, or the default where that is below 0."""
    usual = PREPROCESSORS[name].thresholds if name != NONE else ()
    return tuple(one if one >= 0 else other for one, other in zip(asked, usual, strict=False)) + usual[len(asked) :]


def preprocessed(image: Image, name: str, thresholds: Sequence[float] = ()) -> Image:
    """Return what a picture leads by, in RGB, turned as its EXIF says; `thresholds` as `thresholds_of` takes them."""
    seen = upright(image)
    return seen if name == NONE else PREPROCESSORS[name].make(seen, *thresholds_of(name, thresholds)).convert("RGB")

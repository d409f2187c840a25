"""What a picture that leads is made into first, without a network: edges, lines, black and white, a blur.

Names, sums and thresholds are those that ControlNet's extension for A1111 has by default
(https://github.com/Mikubill/sd-webui-controlnet, `scripts/processor.py`); pictures keep their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from olivelike.errors import MissingError
from olivelike.runtime.pictures.pixels import upright

if TYPE_CHECKING:
    from PIL.Image import Image

NONE: Final = "none"
CANNY: Final = "canny"
_EDGES: Final = (100, 200)
"""Thresholds of the Canny detector, as in diffusers' guide, too."""
_GAUSSIANS: Final = (0.5, 5.0)
"""Deviations of two whose difference is a line."""
_LINE: Final = 16
"""Least difference of a line, of 255."""
_WHITE: Final = 127
_BLUR: Final = 9.0


def _edges(image: Image) -> Image:
    import cv2
    import numpy as np
    from PIL import Image as Images

    return Images.fromarray(cv2.Canny(np.asarray(image.convert("L")), *_EDGES))


def _lines(image: Image) -> Image:
    import numpy as np
    from PIL import Image as Images, ImageFilter

    fine, coarse = (np.asarray(image.filter(ImageFilter.GaussianBlur(one))).astype(np.int16) for one in _GAUSSIANS)
    return Images.fromarray(((coarse - fine).min(axis=2) > _LINE).astype(np.uint8) * 255)


def _black_and_white(image: Image) -> Image:
    import numpy as np
    from PIL import Image as Images

    return Images.fromarray((np.asarray(image).min(axis=2) > _WHITE).astype(np.uint8) * 255)


def _inverted(image: Image) -> Image:
    from PIL import ImageChops

    return ImageChops.invert(image)


def _blurred(image: Image) -> Image:
    from PIL import ImageFilter

    return image.filter(ImageFilter.GaussianBlur(_BLUR))


class Preprocessor(NamedTuple):
    """One way to make a control picture."""

    label: str
    """What it is called where it is chosen."""
    told: str
    """What then leads, as records tell it."""
    make: Callable[[Image], Image]
    """Makes it of a picture in RGB."""


PREPROCESSORS: Final[Mapping[str, Preprocessor]] = MappingProxyType({
    CANNY: Preprocessor("Canny (edges)", "its edges", _edges),
    "scribble_xdog": Preprocessor("Scribble (XDoG lines)", "its lines", _lines),
    "invert": Preprocessor("Invert (black lines on white)", "inverted", _inverted),
    "threshold": Preprocessor("Threshold (black and white)", "in black and white", _black_and_white),
    "blur_gaussian": Preprocessor("Blur", "blurred", _blurred),
})  # fmt: skip
"""All but `none`, the picture as it is."""


def check_preprocessor(name: str) -> None:
    """Raise `MissingError` if what a preprocessor needs is not installed."""
    if name == CANNY and find_spec("cv2") is None:
        raise MissingError("edges (canny) are found by OpenCV; run `pip install 'olivelike[canny]'`")


def preprocessed(image: Image, name: str) -> Image:
    """Return what a picture leads by, in RGB, turned as its EXIF says."""
    seen = upright(image)
    return seen if name == NONE else PREPROCESSORS[name].make(seen).convert("RGB")

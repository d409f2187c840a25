"""Pictures and pixels: a picture the right way up, as numbers for a network, and made of the numbers of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.errors import SessionError
    from olivelike.families.denoiser_forms import Array

_ORIENTATION: Final = 0x0112
_ON_ITS_SIDE: Final = frozenset({5, 6, 7, 8})
"""Values of EXIF's orientation with width and height swapped."""


def upright(image: Image) -> Image:
    """Return a picture in RGB, turned as its EXIF says: what diffusers' `load_image` does."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image).convert("RGB")


def seen_size(image: Image) -> tuple[int, int]:
    """Return width and height of a picture as it is seen, without turning it."""
    across = image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE
    return (image.height, image.width) if across else image.size


def to_shares(image: Image, size: tuple[int, int], unit: int, mode: str = "RGB") -> Array:
    """Return a picture as shares of full brightness, with the pixels of diffusers' `VaeImageProcessor`.

    Args:
        image: in RGB.
        size: width and height that it is resized to, once they are multiples of `unit`.
        unit: pixels of a side that are one further on.
        mode: Pillow's name of the channels: `RGB`, or `L` for grey.

    Returns:
        Numbers from 0 to 1 of shape (1, channels, height, width), float32.
    """
    import numpy as np
    from PIL.Image import Resampling

    width, height = (side - side % unit for side in size)
    resized = image.resize((width, height), Resampling.LANCZOS).convert(mode)
    values = np.asarray(resized, np.float32) / 255
    return values.reshape(1, height, width, -1).transpose(0, 3, 1, 2)


def to_pictures(pixels: Array, refuse: Callable[[], SessionError]) -> list[Image]:
    """Return pictures for what a network made, rounded as diffusers' `VaeImageProcessor.numpy_to_pil` does.

    Raises what `refuse` returns if there are values that are no numbers, which networks in half precision can give.
    `pixels` are float32 of shape (n, height, width, 3), from 0 to 1.
    """
    import numpy as np
    from PIL import Image as Images

    if not np.isfinite(pixels).all():
        raise refuse()
    return [Images.fromarray(picture) for picture in (pixels * 255).round().astype(np.uint8)]

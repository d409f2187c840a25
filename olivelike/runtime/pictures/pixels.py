"""Arrays as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.errors import SessionError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


def to_pictures(pixels: np.ndarray) -> list[Image.Image]:
    """Return pictures for what a VAE decoded, rounded as diffusers' `VaeImageProcessor.numpy_to_pil` does.

    Args:
        pixels: float32 of shape (n, height, width, 3), from 0 to 1.

    Raises:
        SessionError: if there are values that are no numbers, which networks in half precision can give.
    """
    import numpy as np
    from PIL import Image

    if not np.isfinite(pixels).all():
        raise SessionError(
            "the VAE decoder's output has values that are no numbers, as when half precision overflows; "
            "optimise the pipeline with `precision: fp32`, or take another VAE"
        )
    return [Image.fromarray(picture) for picture in (pixels * 255).round().astype(np.uint8)]

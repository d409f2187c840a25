"""Arrays as pictures, and many pictures on one sheet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from olivelike.errors import SessionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def contact_sheet(images: Sequence[Image.Image], columns: int = 4) -> Image.Image:
    """Lay pictures out in rows, as square as `columns` allows; smaller ones keep their size.

    Args:
        images: at least one.
        columns: most pictures in a row.

    Raises:
        UsageError: if there is no picture, or no column.
    """
    from PIL import Image

    if not images or columns < 1:
        raise UsageError(f"a sheet of {len(images)} pictures in {columns} columns has nothing to show")
    across = min(columns, math.ceil(math.sqrt(len(images))))
    width = max(image.width for image in images)
    height = max(image.height for image in images)
    sheet = Image.new("RGB", (width * across, height * math.ceil(len(images) / across)))
    for number, image in enumerate(images):
        row, column = divmod(number, across)
        sheet.paste(image, (column * width, row * height))
    return sheet

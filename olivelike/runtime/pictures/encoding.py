"""Pictures as the bytes of a file, with what made them inside.

PNG: A1111's text under `parameters`, the JSON record under `olivelike`. JPEG and WebP: A1111's text as EXIF
`UserComment`, the record as `ImageDescription`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from olivelike.errors import SessionError, UsageError
from olivelike.runtime.pictures.picture_record import PictureRecord, a1111_text

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

FORMATS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""File format by suffix."""

PARAMETERS: Final = "parameters"
RECORD: Final = "olivelike"
EXIF_IFD: Final = 0x8769
IMAGE_DESCRIPTION: Final = 0x010E
USER_COMMENT: Final = 0x9286
UNICODE: Final = b"UNICODE\0"
"""What a `UserComment` in UTF-16 begins with; EXIF 2.3, section 4.6.5."""

_QUALITY: Final = 95


def encode_picture(image: Image.Image, suffix: str, record: PictureRecord | None, *, sheet: bool = False) -> bytes:
    """Return the bytes of a picture file. Raises `UsageError` if the format can't hold the picture or its text.

    Args:
        suffix: one of `FORMATS`.
        record: what made it.
        sheet: write A1111's text alone, as for a sheet of pictures, which no record remakes."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    form = FORMATS[suffix.lower()]
    buffer = io.BytesIO()
    try:
        if form == "PNG":
            chunks = PngInfo()
            if record is not None:
                chunks.add_text(PARAMETERS, a1111_text(record))
                if not sheet:
                    chunks.add_itxt(RECORD, record.to_json())
            image.save(buffer, form, pnginfo=chunks)
        else:
            exif = Image.Exif()
            if record is not None:
                exif.get_ifd(EXIF_IFD)[USER_COMMENT] = UNICODE + a1111_text(record).encode("utf-16-be")
                if not sheet:
                    exif[IMAGE_DESCRIPTION] = record.to_json()
            image.save(buffer, form, quality=_QUALITY, exif=exif)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"a picture of {image.width}x{image.height} can't be written as {form}: {error}; write a .png"
        ) from error
    return buffer.getvalue()


def to_pictures(pixels: np.ndarray) -> list[Image.Image]:
    """Return pictures for what a VAE decoded, rounded as diffusers' `VaeImageProcessor.numpy_to_pil` does.

    Raises `SessionError` if there are values that are no numbers, which networks in half precision can give.

    Args:
        pixels: float32 of shape (n, height, width, 3), from 0 to 1."""
    import numpy as np
    from PIL import Image

    if not np.isfinite(pixels).all():
        raise SessionError(
            "the VAE decoder's output has values that are no numbers, as when half precision overflows; "
            "optimise the pipeline with `precision: fp32`, or take another VAE"
        )
    return [Image.fromarray(picture) for picture in (pixels * 255).round().astype(np.uint8)]

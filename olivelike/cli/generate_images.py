"""Pictures that `olivelike generate` is given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from olivelike.errors import SourceError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

    from olivelike.runtime.pictures import UsedFile

_SIZE = re.compile(r"(\d+)\s*x\s*(\d+)", re.IGNORECASE)


def open_image(path: Path) -> tuple[Image, UsedFile]:
    """Read a picture; return it, and its name and hash for the record.

    Raises:
        SourceError: if there is no such file, or it is no picture that Pillow reads.
    """
    import hashlib
    import io

    from PIL import Image, UnidentifiedImageError

    from olivelike.runtime.pictures import UsedFile

    try:
        data = path.read_bytes()
        image = Image.open(io.BytesIO(data))
        image.load()
    except UnidentifiedImageError:
        raise SourceError(f"{path}: is no picture that can be read; save it as PNG, JPEG or WebP") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = getattr(error, "strerror", None) or error
        raise SourceError(f"{path}: can't be read as a picture: {why}; get the file again") from error
    return image, UsedFile(path.name, hashlib.sha256(data).hexdigest())


def parse_size(text: str) -> tuple[int, int]:
    """Read `512x768`: width, then height.

    Raises:
        UsageError: if it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--size {text!r} is no size; write width and height such as 512x768")
    return int(match[1]), int(match[2])

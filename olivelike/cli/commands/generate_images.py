"""Pictures that `olivelike generate` is given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from PIL.Image import Image

    from olivelike.runtime.pictures import UsedFile

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow knows more, such as PostScript, for which it starts another program."""
_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
_SIZE = re.compile(r"(\d+)\s*x\s*(\d+)", re.IGNORECASE)


def open_image(path: Path) -> tuple[Image, UsedFile]:
    """Read a picture; return it, and its name and hash for the record.

    Raises:
        SourceError: if there is no such file, or it is no picture that Pillow reads.
    """
    import hashlib
    import io

    from PIL import Image, UnidentifiedImageError

    from olivelike._untrusted import read_bytes
    from olivelike.runtime.pictures import UsedFile
    from olivelike.runtime.pictures.picture_reading import MOST_BYTES, UNREADABLE, check_pixels

    try:
        data = read_bytes(path, MOST_BYTES)
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        check_pixels(path, image)
        image.load()
    except UnidentifiedImageError:
        raise SourceError(f"{path}: is no picture that can be read; save it as PNG, JPEG or WebP") from None
    except (*UNREADABLE, Image.DecompressionBombError) as error:
        why = getattr(error, "strerror", None) or error
        raise SourceError(f"{path}: can't be read as a picture: {why}; get the file again") from error
    return image, UsedFile(path.name, hashlib.sha256(data).hexdigest())


def find_used(used: UsedFile | None, made: Path) -> Path | None:
    """Return the file that a picture was made from, known by its content: beside the picture, here, or in `pictures/`.

    Args:
        used: what the picture's record says of it.
        made: the picture.
    """
    if used is None or used.hash is None:
        return None
    from olivelike.digest import digest_file

    folders = dict.fromkeys((made.resolve().parent, Path.cwd(), Path.cwd() / "pictures"))
    # One of the same name is the likeliest.
    for path in dict.fromkeys((*(folder / used.name for folder in folders), *_pictures_in(folders))):
        try:
            if path.is_file() and digest_file(path) == used.hash:
                return path
        except OSError:
            continue
    return None


def _pictures_in(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            yield from (path for path in sorted(folder.iterdir()) if path.suffix.lower() in _SUFFIXES)
        except OSError:
            continue


def chosen_sides(size: str | None, width: int | None, height: int | None) -> tuple[int | None, int | None]:
    """Return width and height of a command that takes `--size` or both sides.

    Raises:
        UsageError: if it is given both, or the size is none.
    """
    if size is None:
        return width, height
    if height is not None or width is not None:
        raise UsageError("--size says both already; leave out --height and --width")
    return parse_size(size)


def parse_size(text: str) -> tuple[int, int]:
    """Read `512x768`: width, then height.

    Raises:
        UsageError: if it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--size {text!r} is no size; write width and height such as 512x768")
    return int(match[1]), int(match[2])

"""Picture files, read: what they are, and what made them."""

from __future__ import annotations

import hashlib
import html
import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from olivelike._untrusted import open_file, read_bytes
from olivelike.digest import digest_file
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pictures.ai_mark import said_source_type
from olivelike.runtime.pictures.picture_record import (
    COMMENT,
    EXIF_IFD,
    IMAGE_DESCRIPTION,
    PARAMETERS,
    RECORD,
    UNICODE,
    USER_COMMENT,
    PictureRecord,
    UsedFile,
    record_from_json,
)

if TYPE_CHECKING:
    from PIL import Image

MOST_BYTES = 256 << 20
"""Most bytes of a picture file."""
MOST_PIXELS = 1 << 26
"""8192x8192; a file of a few KB can claim any number."""
_MOST_ACROSS = 1 << 16
"""Pixels of a side; a line of 60 million takes any resampling's memory."""
_MOST_PARTS: Final = 50_000
"""Chunks of a PNG, or segments of a JPEG; each takes time and memory, however little it holds."""
_MOST_EXIF: Final = 100
"""Segments of EXIF, which Pillow copies all of for each further one."""
_MOST_SCANS: Final = 16
"""Scans of a progressive JPEG of the most pixels, each of which goes over all of them; encoders make about 10."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_SOI, _SOS, _EXIF = b"\xff\xd8", b"\xff\xda", b"Exif\0\0"
_SEGMENT: Final = re.compile(rb"\xff[\xe0-\xef\xfe]")
"""Begin of what Pillow keeps of a JPEG beside its pixels."""
_ASCII = b"ASCII\0\0\0"
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, zlib.error, struct.error)
"""Errors of Pillow for damaged files."""
_INPUT_FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow knows more, such as PostScript, for which it starts another program."""
_INPUT_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
_EXIF_TEXTS: Final = {"ImageDescription": IMAGE_DESCRIPTION, "Make": 0x010F, "Model": 0x0110, "Software": 0x0131}
_MOST_XMP: Final = 1 << 20
_OWN_BEGINNING = '{"format": "olivelike/'


@dataclass(frozen=True)
class PictureFile:
    """A picture file and what it says of itself."""

    path: Path
    format: str
    """`PNG`, `JPEG` or `WEBP`."""
    width: int
    height: int
    record: PictureRecord | None
    """Record of what made it; `None` if the file does not say."""
    own: bool
    """Whether the record is olivelike's, and not read from what another program wrote."""
    parameters: str | None
    """A1111's text, or what stands in its place."""
    source_type: str | None = None
    """IPTC's digital source type, such as `trainedAlgorithmicMedia`: whether it says that AI made it."""
    program: str | None = None
    """Program whose form the recipe has, such as `A1111` or `SwarmUI`."""
    unread: str | None = None
    """Reason that there is no record though there is a recipe."""


def is_picture(path: Path) -> bool:
    """Tell by its first bytes whether a file is a PNG, JPEG or WebP."""
    try:
        with open_file(path) as file:
            start = file.read(12)
    except OSError:
        return False
    return is_picture_data(start)


def is_picture_data(start: bytes) -> bool:
    """Tell by the first bytes of a file whether it is a PNG, JPEG or WebP."""
    return (
        start.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"))
        or (start[:4], start[8:]) == (b"RIFF", b"WEBP")
    )  # fmt: skip


def read_picture(path: str | Path) -> PictureFile:
    """Read what a picture file says of itself; olivelike's own record before what other programs write.

    Raises:
        SourceError: if the file can't be read, or its record is damaged.
    """
    path = Path(path)
    try:
        with open_file(path, MOST_BYTES) as file:
            return _read_picture(path, file)
    except OSError as error:
        raise SourceError(f"{path} can't be read as a picture: {error}; get the file again") from error


def read_picture_data(data: bytes, name: str) -> PictureFile:
    """Read what the bytes of a picture file say of it, as `read_picture` does; `name` is for messages."""
    _check_parts(name, data)
    return _read_picture(Path(name), io.BytesIO(data))


def told_by(image: Image.Image, name: str) -> PictureFile | None:
    """Return what a decoded picture says of itself, as `read_picture` does; `None` where it reads no such format."""
    return _told_by(Path(name), image) if image.format in ("PNG", "JPEG", "MPO", "WEBP") else None


def _read_picture(path: Path, file: BinaryIO) -> PictureFile:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about many pixels
            image = Image.open(file, formats=["PNG", "JPEG", "WEBP"])
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(path) from error
    except UnidentifiedImageError:  # Its own words name an object of Python's.
        raise SourceError(
            f"{path} can't be read as a picture: it is no PNG, JPEG or WebP; get the file again"
        ) from None
    except _UNREADABLE as error:
        raise SourceError(f"{path} can't be read as a picture: {error}; get the file again") from error
    with image:
        _check_pixels(path, image)
        return _told_by(path, image)


def _told_by(path: Path, image: Image.Image) -> PictureFile:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about damaged EXIF
            own, texts = _texts(image)
            marked = said_source_type(image.info.get("xmp"))
    except _UNREADABLE as error:
        raise SourceError(f"{path} can't be read as a picture: {error}; get the file again") from error
    form, (width, height) = str(image.format), image.size
    parameters = texts.get(PARAMETERS) or texts.get(COMMENT)
    if own is not None:
        ours = record_from_json(own, str(path))
        return PictureFile(path, form, width, height, ours, True, parameters, marked, "olivelike")
    from olivelike.runtime.pictures.recipes import read_recipe

    try:
        found = read_recipe(texts, str(path))
    except SourceError as error:
        return PictureFile(path, form, width, height, None, False, parameters, marked, unread=str(error))
    program, record = found or (None, None)
    return PictureFile(path, form, width, height, record, False, parameters, marked, program)


def _check_pixels(path: Path | str, image: Image.Image) -> None:
    """Refuse a picture of very many pixels before they are decoded."""
    width, height = image.size
    if width * height > MOST_PIXELS or max(width, height) > _MOST_ACROSS:
        raise SourceError(
            f"{path} has {width}x{height} pixels, and at most {MOST_PIXELS:,} are read, {_MOST_ACROSS:,} of a side; "
            "make it smaller"
        )


def _check_parts(name: str, data: bytes) -> None:
    """Refuse a file of very many parts before Pillow goes through them, which nothing can stop then."""
    if data.startswith(_PNG):
        place = len(_PNG)
        for _ in range(_MOST_PARTS):
            if place >= len(data):
                return
            place += 12 + int.from_bytes(data[place : place + 4])
    elif data.startswith(_SOI):
        few = data.count(_EXIF) <= _MOST_EXIF
        if few and next(islice(_SEGMENT.finditer(data), _MOST_PARTS, None), None) is None:
            return
    else:
        return
    raise SourceError(f"{name}: it has far more parts than a picture needs, and takes long to read; save it anew")


def _check_scans(name: str, data: bytes, image: Image.Image) -> None:
    if image.info.get("progressive") and data.count(_SOS) * image.width * image.height > _MOST_SCANS * MOST_PIXELS:
        raise SourceError(
            f"{name}: it has {data.count(_SOS)} scans, each of {image.width}x{image.height} pixels, and takes long to "
            "read; save it anew"
        )


def _too_many_pixels(path: Path | str) -> SourceError:
    """Return the error of a picture that Pillow itself refuses to open, of 179 million pixels or more."""
    return SourceError(f"{path} has far more pixels than the {MOST_PIXELS:,} that are read at most; make it smaller")


def read_picture_record(path: Path) -> PictureRecord:
    """Return what made a picture.

    Raises `SourceError` if the file or its recipe can't be read, and `UsageError` if it has none.
    """
    found = read_picture(path)
    if found.unread is not None:
        raise SourceError(found.unread)
    record = found.record
    if record is None:
        raise UsageError(f"{path} does not say what made it; programs that resize or upload pictures drop that")
    return record


def open_image(path: Path) -> tuple[Image.Image, UsedFile]:
    """Read a picture; return it, and its name and hash for the record.

    Raises `SourceError` if there is no such file, or it is no picture that Pillow reads.
    """
    try:
        data = read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise SourceError(f"{path}: can't be read as a picture: {error.strerror}; get the file again") from error
    return decode_image(data, str(path)), UsedFile(path.name, hashlib.sha256(data).hexdigest())


def decode_image(data: bytes, name: str) -> Image.Image:
    """Return the picture that bytes are; `name` is for messages. Raises `SourceError` if Pillow reads none."""
    from PIL import Image, UnidentifiedImageError

    _check_parts(name, data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=_INPUT_FORMATS)
            _check_pixels(name, image)
            _check_scans(name, data, image)
            image.load()
    except UnidentifiedImageError:
        raise SourceError(f"{name}: this is no picture that can be read; save it as PNG, JPEG or WebP") from None
    except Image.DecompressionBombError as error:
        raise _too_many_pixels(name) from error
    except _UNREADABLE as error:
        raise SourceError(f"{name}: can't be read as a picture: {error}; get the file again") from error
    return _of_bytes(name, image)


def _of_bytes(name: str, image: Image.Image) -> Image.Image:
    """Return a picture whose values are bytes: of grey in 16 bits, as depth maps have it, the upper 8; Pillow clips.

    Raises `SourceError` for wider numbers, of which nothing says what is white.
    """
    import numpy as np
    from PIL import Image as Images

    if image.mode in ("I", "F"):
        raise SourceError(f"{name}: has pixels of 32 bits, of which nothing says what is white; save it with 8 or 16")
    if not image.mode.startswith("I;16"):
        return image
    grey = Images.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    grey.getexif().update(image.getexif())
    return grey


def find_used(used: UsedFile | None, made: Path) -> Path | None:
    """Return the file that a picture was made from, by its content: beside the picture, here, or in `pictures/`."""
    if used is None or used.hash is None:
        return None
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
            yield from (path for path in sorted(folder.iterdir()) if path.suffix.lower() in _INPUT_SUFFIXES)
        except OSError:
            continue


def _texts(image: Image.Image) -> tuple[str | None, dict[str, str]]:
    """Return olivelike's JSON, and the texts of other programs by their names."""
    if image.format == "PNG":
        image.load()  # Text may come after the pixels.
        texts = {name: text for name, text in image.info.items() if isinstance(name, str) and isinstance(text, str)}
        own = _text(texts.pop(RECORD, None))
    else:
        exif = image.getexif()
        said = {name: _text(exif.get(tag)) for name, tag in _EXIF_TEXTS.items()}
        said[COMMENT] = _user_comment(exif.get_ifd(EXIF_IFD).get(USER_COMMENT))
        own = said.pop("ImageDescription")
        own = own if own is not None and own.startswith(_OWN_BEGINNING) else None
        texts = {name: text for name, text in said.items() if text is not None}
    if (comment := _xmp_comment(image.info.get("xmp"))) is not None:
        texts.setdefault(COMMENT, comment)
    return own, texts


def _xmp_comment(xmp: Any) -> str | None:
    """Return EXIF's comment as XMP has it, where Draw Things writes."""
    text = xmp[:_MOST_XMP].decode("utf-8", "replace") if isinstance(xmp, bytes) else str(xmp or "")[:_MOST_XMP]
    inside = text.partition("exif:UserComment")[2].partition("<rdf:li")[2].partition(">")[2]
    return _text(html.unescape(inside.partition("</rdf:li>")[0]).strip())


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) and value else None


def _user_comment(value: Any) -> str | None:
    """Decode a comment; its byte order is not written down, and programs differ."""
    if not isinstance(value, bytes):
        return _text(value)
    if value.startswith(UNICODE):
        data = value.removeprefix(UNICODE)
        even, odd = data[::2].count(0), data[1::2].count(0)
        return _text(data.decode("utf-16-le" if odd > even else "utf-16-be", "replace").strip("\0\ufeff"))
    return _text(value.removeprefix(_ASCII).removeprefix(bytes(8)).decode("utf-8", "replace").strip("\0"))

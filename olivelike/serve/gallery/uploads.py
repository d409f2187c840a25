"""Pictures that clients send, kept for orders that name them."""

from __future__ import annotations

import hashlib
import io
import time
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike.errors import OlivelikeError, SourceError, StoreError, UsageError
from olivelike.runtime.pictures.picture_reading import PictureFile, decode_image, read_picture_data, told_by
from olivelike.runtime.pictures.picture_record import PNG_STRATEGY, RECORD
from olivelike.serve.gallery.bare_pictures import bare_picture
from olivelike.serve.recipe_views import left_out_on_the_page
from olivelike.serve.views import UploadView, record_of

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES: Final = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_ORIENTATION: Final = 0x0112
_KEPT: Final = 200
"""Files, those that jobs still need beside them."""
KEPT_BYTES: Final = 2 << 30
"""Size of all files together; noise of 67 million pixels has 200 MB as a PNG."""
_KEPT_SECONDS: Final = 24 * 3600.0


def add_upload(folder: Path, data: bytes) -> UploadView:
    """Decode a picture within bounds, and keep its pixels: of a PNG or JPEG as they were sent, of others as a PNG.

    What is kept says nothing beside them but how they are turned, and takes no longer to decode than a PNG of as many.
    Raises `UsageError` if it is no picture that is read, and `StoreError` if it can't be kept.

    Returns:
        What it is called: by the SHA-256 of what was sent, so that records can name that.
    """
    name = hashlib.sha256(data).hexdigest()
    try:
        image = decode_image(data, "the upload")
    except SourceError as error:
        raise UsageError(str(error)) from error
    found: PictureFile | None = None
    try:
        found = told_by(image, "the upload") if image.format else read_picture_data(data, "the upload")
        unread = found.unread if found else None
    except OlivelikeError as error:  # A picture with a damaged record is a picture.
        unread = str(error)
    said = image.getexif().get(_ORIENTATION)
    turned = said if isinstance(said, int) and 1 <= said <= 8 else 1
    record = found.record if found else None
    own = None if record is None else record.to_json()  # Who enlarges it keeps its recipe.
    kept = bare_picture(data, turned, {} if own is None else {RECORD: own}) if image.mode in _MODES else None
    try:
        write_whole(folder / f"{name}.png", kept or _as_png(image, turned, own), durable=False)
    except OSError as error:
        raise StoreError(f"the upload can't be kept: {error.strerror or error}; free some space") from error
    return UploadView(
        id=name,
        width=image.width,
        height=image.height,
        record=record_of(record.to_json()) if record else None,
        parameters=found.parameters if found else None,
        left_out=left_out_on_the_page(record) if record else None,
        unread=unread.removeprefix("the upload: ") if unread else None,
    )


def _as_png(image: Image, turned: int, own: str | None) -> bytes:
    from PIL.PngImagePlugin import PngInfo

    exif = image.getexif()
    exif.clear()
    if turned > 1:
        exif[_ORIENTATION] = turned
    kept = io.BytesIO()
    pixels = image if image.mode in _MODES else image.convert("RGB")
    chunks = PngInfo()
    if own is not None:
        chunks.add_itxt(RECORD, own)
    pixels.save(kept, "PNG", compress_type=PNG_STRATEGY, exif=exif, pnginfo=chunks)
    return kept.getvalue()


def prune_uploads(folder: Path, needed: Collection[str], senders: Mapping[str, str]) -> list[str]:
    """Delete what is old, and of what is too much the oldest of whoever has the most, but for what jobs still need.

    Args:
        folder: of the files.
        needed: names that stay.
        senders: clients by the names of what they sent; all others are one.

    Returns:
        What has a sender, and is gone.
    """
    kept, files = 0, defaultdict[str, deque[tuple[float, Path, int]]](deque)
    found = [(path.stat(), path) for path in folder.iterdir()]
    for stat, path in sorted(found, key=lambda one: one[0].st_mtime):
        if path.stem in needed:
            kept += stat.st_size
        elif stat.st_mtime < time.time() - _KEPT_SECONDS:
            path.unlink(missing_ok=True)
        else:
            kept += stat.st_size
            files[senders.get(path.stem, "")].append((stat.st_mtime, path, stat.st_size))
    count = sum(map(len, files.values()))
    while count and (count > _KEPT or kept > KEPT_BYTES):
        of_bytes = kept > KEPT_BYTES
        shares = {who: sum(size for _, _, size in own) if of_bytes else len(own) for who, own in files.items()}
        most = max(shares, key=lambda who: (shares[who], -files[who][0][0]))
        _, path, size = files[most].popleft()
        path.unlink(missing_ok=True)
        count, kept = count - 1, kept - size
        if not files[most]:
            del files[most]
    there = {path.stem for path in folder.iterdir()}
    return [name for name in senders if name not in there]


def require_room(folder: Path, needed: Collection[str]) -> None:
    """Raise `StoreError` if what jobs still need is all that is kept."""
    names = [path for path in folder.iterdir() if path.stem in needed]
    if sum(path.stat().st_size for path in names) >= KEPT_BYTES:
        raise StoreError(
            f"the upload can't be kept: jobs that wait need {len(names)} others, of {KEPT_BYTES >> 20:,} MB or more; "
            "send it again when some are done"
        )

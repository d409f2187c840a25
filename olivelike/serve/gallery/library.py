"""View of the gallery for clients: pictures and their small forms, searched by recipe, and what clients sent."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from olivelike._files import write_whole
from olivelike._untrusted import open_file, read_bytes
from olivelike.errors import OlivelikeError, SourceError, StoreError, UsageError
from olivelike.runtime.pictures.picture_reading import MOST_BYTES, MOST_PIXELS, decode_image
from olivelike.runtime.pictures.picture_record import (
    FORMATS,
    PNG_STRATEGY,
    PictureRecord,
    PictureSigner,
    a1111_text,
    encode_picture,
    record_from_json,
)
from olivelike.runtime.pictures.sheets import SheetPicture, picture_sheet
from olivelike.serve.gallery.gallery import INDEX, UPLOADS, Filter, Gallery, PictureRow
from olivelike.serve.gallery.picture_id import picture_id
from olivelike.serve.gallery.upload_reader import UploadReader
from olivelike.serve.gallery.uploads import prune_uploads, require_room
from olivelike.serve.orders import no_upload
from olivelike.serve.turns import Turns
from olivelike.serve.views import DeletedView, PictureView, UploadView, iso, record_of

_THUMB: Final = 320
"""Pixels of a small form's longer side."""
_ON_SHEET: Final = 768
"""Pixels of a picture's longer side on a sheet that is made of the gallery."""
_QUALITY: Final = 95
_SMALL: Final = 512 * 512
"""Pixels of a picture whose file is read sooner than a thread wakes up: it was just written, as a rule."""
_MOST_RECIPE: Final = 250_000
"""Characters of one in a page of the gallery; an order has texts of up to 20,000, each told thrice."""
_MOST_PROMPT: Final = 1000
"""Characters of the prompt of one that has more."""


class Library:
    """The pictures of a gallery, as views and bytes."""

    def __init__(self, gallery: Gallery, *, metadata: bool, signer: PictureSigner | None = None) -> None:
        self._gallery = gallery
        self._metadata = metadata
        self._signer = signer
        """Signs what jobs here have drawn, and nothing that clients have sent."""
        self._decoding = Turns()
        """Pictures are read one at a time: each may take 256 MB. Uploads do not hold them up."""
        self._refreshing = asyncio.Lock()
        self._refreshed = 0.0, (0, 0)
        """When the last refresh began, and what it found."""
        self._uploads = UploadReader(gallery.folder / UPLOADS, gallery.folder / INDEX / "uploads.log")

    def find(self, picture: str) -> PictureRow:
        """Return a picture whose file is there. Raises `SourceError` if there is none of that id."""
        row = self._gallery.find(picture)
        if row is None or not self._gallery.has_file(row):
            raise no_picture()
        return row

    def search(
        self, wanted: Filter, *, before: int | None = None, limit: int = 50
    ) -> tuple[list[PictureView], int | None]:
        """Return the newest pictures, and where the older ones begin."""
        rows, older = self._gallery.search(wanted, before=before, limit=limit)
        return self.views([_bounded(row) for row in rows]), older

    def views(self, rows: Sequence[PictureRow]) -> list[PictureView]:
        """Return pictures as clients see them."""
        liked = self._gallery.favourites(rows)
        return [picture_view(row, favourite=row.id in liked) for row in rows]

    def mark_favourite(self, picture: str, *, liked: bool) -> None:
        """Say that a picture is a favourite, or none. Raises `SourceError` if there is none of that id."""
        self._gallery.mark_favourites([self.find(picture)], liked=liked)

    def mark_favourites(self, pictures: Sequence[str], *, liked: bool) -> list[str]:
        """Say that pictures are favourites, or none; return those of them that are there."""
        rows = self._gallery.there(pictures)
        self._gallery.mark_favourites(rows, liked=liked)
        return [row.id for row in rows]

    def archive(self, pictures: Sequence[str]) -> Iterator[bytes]:
        """Return the parts of a ZIP file of pictures, each under its day and name; those that vanish are left out.

        Raises `SourceError` at once if none of them is there.
        """
        return _zipped({row.path: self._gallery.path(row) for row in self._chosen(pictures)})

    async def sheet(self, pictures: Sequence[str]) -> bytes:
        """Return a PNG of pictures side by side, with their prompts and seeds. Raises as `archive`."""
        rows = self._chosen(pictures)
        async with self._decoding.turn():
            return await asyncio.to_thread(self._make_sheet, rows)

    def _chosen(self, pictures: Sequence[str]) -> list[PictureRow]:
        rows = self._gallery.there(pictures)
        if not rows:
            raise SourceError("none of these pictures is there; they may have been deleted")
        return rows

    def _make_sheet(self, rows: Sequence[PictureRow]) -> bytes:
        shown = []
        side = min(_ON_SHEET, math.isqrt(MOST_PIXELS // len(rows)))  # All are held at once.
        for row in rows:
            image = decode_image(self._data(row), f"picture {row.id}").convert("RGB")
            image.thumbnail((side, side))
            shown.append(SheetPicture(image, row.prompt, f"seed {row.seed}", bool(row.flagged)))
        kept = io.BytesIO()
        picture_sheet(shown).save(kept, "PNG", compress_type=PNG_STRATEGY)
        return kept.getvalue()

    async def file_bytes(self, picture: str, suffix: str = ".png", quality: int | None = None) -> bytes:
        """Return a picture as a file of a format: a PNG as it is, others with the same record.

        Raises `SourceError` if there is none of that id, or it is damaged, and `UsageError` if the format is none that
        is written.
        """
        if suffix not in FORMATS:
            raise UsageError(f"pictures are had as {', '.join(FORMATS)}, not {suffix}")
        row = self.find(picture)
        if suffix == ".png" and row.width * row.height <= _SMALL:
            return self._encoded(row, suffix, quality)
        return await asyncio.to_thread(self._encoded, row, suffix, quality)

    async def thumb(self, picture: str) -> Path:
        """Return the file of a picture's small form, made now if need be. Raises as `file_bytes`."""
        row = self.find(picture)
        path = self._gallery.thumb(row.id)
        if not path.is_file():
            async with self._decoding.turn():
                await asyncio.to_thread(self._make_thumb, row, path)
        return path

    def maker(self, picture: str) -> str | None:
        """Return who had a picture drawn, where it is known. Raises `SourceError` if there is none of that id."""
        return self._gallery.maker(self.find(picture))

    def delete(self, picture: str) -> None:
        """Delete a picture. Raises `SourceError` if there is none of that id, and `StoreError` if it has to stay."""
        try:
            self._gallery.delete(self.find(picture))
        except OSError as error:  # On Windows a file that another program has open.
            raise StoreError(f"the picture could not be deleted: {error.strerror or error}") from error

    async def delete_all(self, pictures: Sequence[str], may: Callable[[str | None], bool]) -> DeletedView:
        """Delete pictures whose maker `may` tell that they be deleted, files first, and say what became of each."""
        rows = {row.id: row for row in self._gallery.there(pictures)}
        own = [row for row in rows.values() if may(self._gallery.maker(row))]

        left: dict[str, OSError] = {}

        def unlink() -> None:
            for row in own:
                try:
                    self._gallery.unlink(row)
                except OSError as error:
                    left[row.id] = error

        await asyncio.to_thread(unlink)
        self._gallery.forget(gone := [row for row in own if row.id not in left])
        others = [row.id for row in rows.values() if row not in own]
        why = [
            *([f"{len(others)} of these pictures are another key's, or of nobody who is known here"] if others else []),
            *(f"{len(left)} could not be deleted: {error.strerror or error}" for error in list(left.values())[:1]),
        ]
        return DeletedView(
            deleted=tuple(row.id for row in gone),
            missing=tuple(one for one in dict.fromkeys(pictures) if one not in rows),
            not_yours=tuple(others),
            failed=tuple(left),
            why="; ".join(why) or None,
        )

    async def refresh(self) -> tuple[int, int]:
        """Make the index fit files that came and went while the server runs; return how many of each.

        All who ask while another one runs share the next. Raises `StoreError` if they can't be looked through.
        """
        asked = time.monotonic()
        async with self._refreshing:
            if self._refreshed[0] > asked:
                return self._refreshed[1]
            began = time.monotonic()
            known = self._gallery.known()
            try:
                there = await asyncio.to_thread(self._gallery.files)
            except OSError as error:
                raise StoreError(f"the gallery can't be looked through: {error.strerror or error}") from error
            came = 0
            for path in self._gallery.fit(known, there):
                came += self._gallery.add_file(path, there[path], await asyncio.to_thread(self._gallery.read, path))
            self._refreshed = began, (came, len(known - there.keys()))
            return self._refreshed[1]

    async def upload(self, data: bytes, client: str, needed: Collection[str]) -> UploadView:
        """Keep a picture that a client sent, if there is no more room in the place of one of the client with the most.

        Raises as `add_upload` and `require_room`, and `UsageError` if reading it takes too long.
        """
        folder = self._gallery.folder / UPLOADS
        require_room(folder, needed)
        view = await self._uploads.add(data)
        with contextlib.suppress(OSError, sqlite3.Error):
            self._gallery.note_sender(view.id, client)
            senders = self._gallery.senders()
            gone = await asyncio.to_thread(prune_uploads, folder, {*needed, view.id}, senders)
            self._gallery.forget_senders(gone)
        return view

    async def copy(self, picture: str, client: str, needed: Collection[str]) -> UploadView:
        """Keep a picture of the gallery as an upload. Raises as `upload`, and `SourceError` if there is none."""
        row = self.find(picture)
        view = await self.upload(await self.file_bytes(picture), client, needed)
        with contextlib.suppress(sqlite3.Error):
            self._gallery.note_copy(view.id, row)
        return view

    async def bring_back(self, uploads: Iterable[str], client: str, needed: Collection[str]) -> None:
        """Keep those uploads again that are pictures of the gallery."""
        for name in uploads:
            if (row := self._gallery.copied(name)) is not None:
                with contextlib.suppress(OlivelikeError):  # Its file was taken away, or there is no room for it.
                    await self.copy(row.id, client, needed)

    def gone(self, uploads: Iterable[str]) -> list[str]:
        """Return those of uploads that are not there."""
        return [name for name in uploads if not self._upload(name).is_file()]

    def sent(self, uploads: Iterable[str], client: str | None) -> dict[str, tuple[int, int]]:
        """Return the sizes of uploads that are there and that a client sent; `None` is for all clients.

        They stay for as long as if they had been sent now.
        """
        from PIL import Image

        own = None if client is None else self._gallery.sent_by(client)
        found: dict[str, tuple[int, int]] = {}
        for name in uploads:
            path = self._upload(name)
            if (own is None or name in own) and path.is_file():
                with contextlib.suppress(OSError), Image.open(path) as image:
                    found[name] = image.size
                    path.touch()
        return found

    def _upload(self, name: str) -> Path:
        return self._gallery.folder / UPLOADS / f"{name}.png"

    async def keep(self, data: bytes, record: PictureRecord, maker: str) -> PictureRow:
        """Put a picture that a client made without a job there. Raises `StoreError` if it can't be written."""
        async with self._decoding.turn():
            file, size = await asyncio.to_thread(self._with_record, data, record)
        folder, number = self._gallery.reserve(passing=False)
        # That of a picture that was sent may be none that the index has.
        seed = record.seed if record.seed is not None and 0 <= record.seed < 2**64 else None
        path = f"{folder}/{number:05}-{seed or 0}.png"
        try:
            # Before the loop goes on: a job that begins then would take the same number.
            write_whole(self._gallery.folder / path, file, durable=False)
        except OSError as error:
            raise StoreError(f"the picture can't be kept: {error.strerror or error}; free some space") from error
        row = PictureRow(
            picture_id(path, file), path, None, None, False, time.time(), *size, seed, seed, 1,
            record.prompt, record.model, None, record.to_json(), a1111_text(record),
        )  # fmt: skip
        self._gallery.add(row, maker)
        return row

    def _with_record(self, data: bytes, record: PictureRecord) -> tuple[bytes, tuple[int, int]]:
        image = decode_image(data, "the picture").convert("RGB")
        return encode_picture(image, ".png", record, metadata=self._metadata), image.size

    def close(self) -> None:
        """End the process that reads uploads."""
        self._uploads.close()

    async def upload_bytes(self, name: str) -> bytes:
        """Return an upload as PNG or JPEG. Raises `SourceError` if it is gone."""
        try:
            return await asyncio.to_thread(self._upload(name).read_bytes)
        except OSError:
            raise no_upload(name) from None

    def _data(self, row: PictureRow) -> bytes:
        """Return a picture's file. Raises `SourceError` if it vanished since it was found."""
        try:
            return read_bytes(self._gallery.path(row), MOST_BYTES)
        except FileNotFoundError:
            raise no_picture() from None

    def _encoded(self, row: PictureRow, suffix: str, quality: int | None) -> bytes:
        data = self._data(row)
        if suffix == ".png":
            return data
        image = decode_image(data, f"picture {row.id}").convert("RGB")
        if row.record is None:
            kept = io.BytesIO()
            image.save(kept, FORMATS[suffix], quality=quality or _QUALITY)
            return kept.getvalue()
        record = record_from_json(row.record, row.id)
        signer = self._signer if row.job is not None else None
        return encode_picture(
            image, suffix, record, metadata=self._metadata, quality=quality or _QUALITY, signer=signer
        )

    def _make_thumb(self, row: PictureRow, path: Path) -> None:
        image = decode_image(self._data(row), f"picture {row.id}").convert("RGB")
        image.thumbnail((_THUMB, _THUMB))
        kept = io.BytesIO()
        image.save(kept, "WEBP", quality=80, method=2)
        write_whole(path, kept.getvalue(), durable=False)


def no_picture() -> SourceError:
    """Return the error of a picture whose file is not there."""
    return SourceError("there is no such picture; it may have been deleted")


class _Written(io.RawIOBase):
    """A file that can't be sought, whose bytes are taken as they come."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        return len(self.parts[-1])

    def taken(self) -> bytes:
        data = b"".join(self.parts)
        self.parts.clear()
        return data


def _zipped(paths: Mapping[str, Path]) -> Iterator[bytes]:
    import zipfile

    written = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:  # Pictures are compressed already.
        for name, path in paths.items():
            with contextlib.suppress(FileNotFoundError), open_file(path) as source:
                info = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
                with archive.open(info, mode="w") as entry:
                    while data := source.read(1 << 20):
                        entry.write(data)
                        yield written.taken()
    yield written.taken()


def _bounded(row: PictureRow) -> PictureRow:
    """Return a row without a recipe that is longer than any of an order: `find` has it whole."""
    if sum(len(text or "") for text in (row.prompt, row.record, row.parameters)) <= _MOST_RECIPE:
        return row
    return replace(row, prompt=row.prompt[:_MOST_PROMPT], record=None, parameters=None)


def picture_view(row: PictureRow, *, favourite: bool = False) -> PictureView:
    """Return a picture as clients see it."""
    return PictureView(
        id=row.id, job=row.job, url=f"/files/{row.id}.png", file=row.path, thumb=f"/thumbs/{row.id}.webp",
        width=row.width, height=row.height, seed=row.seed, first_seed=row.first_seed, attempts=row.attempts,
        prompt=row.prompt, sheet=row.sheet, flagged=row.flagged, created=iso(row.created) or "",
        record=record_of(row.record), parameters=row.parameters, favourite=favourite,
    )  # fmt: skip

"""Pictures into files that appear whole, one after the other, each under a name of its own."""

from __future__ import annotations

import os
from datetime import datetime
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from olivelike._files import write_whole
from olivelike.errors import UsageError
from olivelike.runtime.pictures.encoding import encode_picture
from olivelike.runtime.pictures.picture_names import parse_output
from olivelike.runtime.pictures.sheet import picture_sheet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from PIL import Image

    from olivelike.runtime.pictures.picture_record import PictureRecord
    from olivelike.runtime.pictures.sheet import SheetPicture

_MOST_TRIES = 100_000


class PictureWriter:
    """Writes pictures where the user wants them; a name that is taken is never written to unasked.

    Args:
        output: a folder, a file's name or a pattern, as `parse_output` reads it.
        folder: name of the pipeline's folder, for `{folder}`.
        overwrite: replace files that were there before and have the names.

    Raises:
        UsageError: if the output is no name or pattern.
    """

    def __init__(self, output: str | Path, folder: str = "", *, overwrite: bool = False) -> None:
        self._pattern = parse_output(output)
        self._folder = folder
        self._overwrite = overwrite
        self._index: dict[Path, int] = {}
        self._written: set[Path] = set()

    def require_writable(self, record: PictureRecord) -> None:
        """Try the place of a picture with a file that vanishes; folders that are missing are not made yet.

        Raises:
            UsageError: if nothing can be written there.
        """
        folder = self._folder_of(self._values(record))
        there = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), folder)
        try:
            with TemporaryFile(dir=there):
                pass
        except NotADirectoryError:
            raise UsageError(f"{there} is a file; name another folder for the pictures") from None
        except OSError as error:
            raise UsageError(f"{there} can't be written to: {error.strerror or error}") from error

    def save(self, image: Image.Image, record: PictureRecord) -> Path:
        """Write a picture with its record; return its file.

        Raises:
            UsageError: if it can't be written.
        """
        return self._write(
            encode_picture(image, self._pattern.suffix, record),
            self._names(record),
            overwrite=self._overwrite,
        )

    def save_sheet(self, pictures: Sequence[SheetPicture], record: PictureRecord, columns: int = 4) -> Path:
        """Write all pictures on one sheet, as `sheet.png` or the next free name; return its file.

        Args:
            pictures: with their words.
            record: of the first one; goes into the sheet as A1111's text.
            columns: most pictures in a row.

        Raises:
            UsageError: if it can't be written.
        """
        data = encode_picture(picture_sheet(pictures, columns), self._pattern.suffix, record, sheet=True)
        folder = self._folder_of(self._values(record))
        return self._write(data, _numbered(folder / f"sheet{self._pattern.suffix}"), overwrite=False)

    def _values(self, record: PictureRecord) -> dict[str, str | int]:
        now = datetime.now().astimezone()
        return {
            "index": 1,
            "seed": record.seed or 0,
            "steps": record.steps or 0,
            "width": record.width or 0,
            "height": record.height or 0,
            "prompt": record.prompt,
            "folder": self._folder or record.model or "",
            "scheduler": record.sampler or record.scheduler or "",
            "date": f"{now:%Y-%m-%d}",
            "time": f"{now:%H-%M-%S}",
        }

    def _folder_of(self, values: Mapping[str, str | int]) -> Path:
        return self._pattern.path(values).parent

    def _names(self, record: PictureRecord) -> Iterator[Path]:
        values = self._values(record)
        if not self._pattern.numbered:
            yield from _numbered(self._pattern.path(values))
            return
        folder = self._folder_of(values)
        last = self._index.get(folder) or self._pattern.last_index(folder)
        for index in range(last + 1, last + _MOST_TRIES):
            self._index[folder] = index
            yield self._pattern.path({**values, "index": index})

    def _write(self, data: bytes, names: Iterator[Path], *, overwrite: bool) -> Path:
        for path in names:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # With `overwrite` too, no picture takes the place of one of the same run.
                write_whole(path, data, durable=False, overwrite=overwrite and path not in self._written)
            except FileExistsError:
                if not os.path.lexists(path):
                    raise UsageError(
                        f"{path.parent} is a file; name another folder for the pictures"
                    ) from None
                continue
            except OSError as error:
                raise UsageError(f"{path} can't be written: {error.strerror or error}") from error
            self._written.add(path)
            return path
        raise UsageError(f"there are {_MOST_TRIES} pictures of these names; choose another output")


def _numbered(path: Path) -> Iterator[Path]:
    """Return a path, then the same with a number: `cat.png`, `cat-2.png`, `cat-3.png`."""
    yield path
    for number in range(2, _MOST_TRIES):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")

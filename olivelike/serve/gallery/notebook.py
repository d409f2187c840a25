"""Words and forms that people keep: styles of prompts, as A1111 has them, and presets of the page's form.

Both are files that other programs may write, read anew whenever they are asked for. `styles.csv` is A1111's: a line of
`name`, `prompt` and `negative_prompt` for each, where `{prompt}` in a style stands for what it is added to. A preset is
what the page says of its form, as JSON; nothing here looks into it.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict

from olivelike._files import held, identity_at, write_whole
from olivelike._text import did_you_mean
from olivelike._untrusted import Json, parse_json, read_bytes
from olivelike.errors import SourceError, StoreError, UsageError

MOST_STYLES: Final = 2000
MOST_PRESETS: Final = 200
_MOST_BYTES: Final = 8 << 20
_MOST_PRESET: Final = 64 << 10
"""Bytes of one."""
_TRIES: Final = 10
_PATIENCE: Final = 5.0
"""Seconds to wait for another server."""
_PLACE: Final = "{prompt}"
_COLUMNS: Final = ("name", "prompt", "negative_prompt")
Kept = TypeVar("Kept")


class Style(BaseModel):
    """Words that are added to prompts."""

    model_config = ConfigDict(frozen=True)
    name: str
    prompt: str = ""
    negative_prompt: str = ""


class Preset(BaseModel):
    """State of the page's form, under a name."""

    model_config = ConfigDict(frozen=True)
    name: str
    form: Json


class Notebook:
    """Styles and presets of a server, for all who use it."""

    def __init__(self, styles: Path, presets: Path) -> None:
        self._styles, self._presets = styles, presets
        self._lock = threading.Lock()

    def styles(self) -> list[Style]:
        """Return all, in the order of their file. Raises `SourceError` if it can't be read."""
        _, found = self._rows()
        return [
            Style(name=name, prompt=row.get("prompt") or "", negative_prompt=row.get("negative_prompt") or "")
            for name, row in found.items()
        ]

    def _rows(self) -> tuple[Sequence[str], dict[str, dict[str, str]]]:
        """Return the columns of the file of styles, and its rows by name."""
        rows = csv.DictReader(io.StringIO(_decoded(_read(self._styles)), newline=""))
        try:
            found = {name: row for row in rows if (name := (row.get("name") or "").strip())}
        except csv.Error as error:
            raise SourceError(f"{self._styles.name}: can't be read as A1111's styles: {error}") from error
        if rows.fieldnames and "name" not in rows.fieldnames:
            raise SourceError(f"{self._styles.name}: can't be read as A1111's styles: it has no column `name`")
        return rows.fieldnames or _COLUMNS, found

    def keep_style(self, style: Style) -> None:
        """Write a style down, in place of one of its name. Raises `UsageError` and `StoreError` if it can't be."""
        self._keep(self._styles, self.styles, self._write_styles, style, MOST_STYLES)

    def drop_style(self, name: str) -> None:
        """Forget a style. Raises `SourceError` if there is none of that name."""
        self._drop(self._styles, self.styles, self._write_styles, name)

    def applied(self, names: Sequence[str], prompt: str, negative_prompt: str) -> tuple[str, str]:
        """Return prompts with styles added, one after the other. Raises `UsageError` for one that there is not."""
        if not names:
            return prompt, negative_prompt
        known = {style.name: style for style in self.styles()}
        for name in names:
            if name not in known:
                raise UsageError(f"styles: there is no {name!r}; {did_you_mean(name, known, 'styles')}")
            prompt = _added(prompt, known[name].prompt)
            negative_prompt = _added(negative_prompt, known[name].negative_prompt)
        return prompt, negative_prompt

    def presets(self) -> list[Preset]:
        """Return all, in the order of their file. Raises `SourceError` if it can't be read."""
        data = _read(self._presets) or b"{}"
        try:
            found = parse_json(data)
        except ValueError as error:
            raise SourceError(f"{self._presets.name}: can't be read as presets: {error}; take it away") from error
        if not isinstance(found, dict) or not all(isinstance(form, dict) for form in found.values()):
            raise SourceError(f"{self._presets.name}: it has no presets, a name and a form each; take it away")
        return [Preset(name=name, form=form) for name, form in found.items()]

    def keep_preset(self, preset: Preset) -> None:
        """Write a preset down, in place of one of its name. Raises `UsageError` and `StoreError` if it can't be."""
        text = json.dumps({preset.name: preset.form})
        if len(text) > _MOST_PRESET:
            raise UsageError(f"preset {preset.name!r}: it has more than {_MOST_PRESET:,} bytes; shorten its prompts")
        try:
            parse_json(text)
        except ValueError as error:  # As read again it is a level deeper than as it came.
            raise UsageError(f"preset {preset.name!r}: it can't be kept: {error}") from error
        self._keep(self._presets, self.presets, self._write_presets, preset, MOST_PRESETS)

    def drop_preset(self, name: str) -> None:
        """Forget a preset. Raises `SourceError` if there is none of that name."""
        self._drop(self._presets, self.presets, self._write_presets, name)

    def _keep(
        self, path: Path, read: Callable[[], list[Kept]], write: Callable[[Sequence[Kept]], None], one: Kept, most: int
    ) -> None:
        def with_it(kept: dict[str, Kept]) -> None:
            kept[_name(one)] = one
            if len(kept) > most:
                raise UsageError(f"there are {most} already, the most that are kept; delete one first")

        self._change(path, read, write, with_it)

    def _drop(
        self, path: Path, read: Callable[[], list[Kept]], write: Callable[[Sequence[Kept]], None], name: str
    ) -> None:
        def without_it(kept: dict[str, Kept]) -> None:
            if kept.pop(name, None) is None:
                raise SourceError(f"there is none of the name {name!r}; it may have been deleted")

        self._change(path, read, write, without_it)

    def _change(
        self,
        path: Path,
        read: Callable[[], list[Kept]],
        write: Callable[[Sequence[Kept]], None],
        change: Callable[[dict[str, Kept]], None],
    ) -> None:
        """Read, change and write what is kept; what another program wrote meanwhile is read again, and not lost."""
        with self._lock, _held(path):
            for _ in range(_TRIES):
                before = identity_at(path)
                kept = {_name(other): other for other in read()}
                change(kept)
                if identity_at(path) == before:
                    write(list(kept.values()))
                    return
        raise StoreError(f"{path.name}: another program writes it all the time; end that one")

    def _write_styles(self, styles: Sequence[Style]) -> None:
        columns, before = self._rows()  # Columns of other programs stay.
        columns = (*columns, *(name for name in _COLUMNS if name not in columns))
        text = io.StringIO(newline="")
        # Its ends of lines let it quote a lone carriage return; cells without a column have no place.
        rows = csv.DictWriter(text, columns, extrasaction="ignore")
        rows.writeheader()
        rows.writerows({**before.get(style.name, {}), **style.model_dump()} for style in styles)
        _write(self._styles, text.getvalue().encode("utf-8-sig"))

    def _write_presets(self, presets: Sequence[Preset]) -> None:
        forms = {preset.name: preset.form for preset in presets}
        _write(self._presets, json.dumps(forms, ensure_ascii=False).encode())


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keep other servers from writing a file meanwhile."""
    try:
        path.parent.stat()  # The lock would make a folder that is not there.
        with held(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE, leaves_file=False):
            yield
    except TimeoutError:
        raise StoreError(f"{path.name}: another server writes it; try again") from None
    except OSError as error:
        raise StoreError(f"{path.name}: can't be written: {error.strerror or error}; free some space") from error


def _name(one: object) -> str:
    return str(one.name)  # type: ignore[attr-defined]


def _added(prompt: str, style: str) -> str:
    if _PLACE in style:
        return style.replace(_PLACE, prompt)
    return ", ".join(part for part in (prompt.strip(), style.strip()) if part)


def _decoded(data: bytes) -> str:
    """Return a file's text: UTF-8, or what spreadsheets write, UTF-16 with its mark or Windows' letters."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    for encoding in ("utf-8-sig", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding)
    return data.decode("latin-1")  # Each byte is a letter there.


def _read(path: Path) -> bytes:
    """Return what a file holds; nothing if there is none."""
    try:
        return read_bytes(path, _MOST_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SourceError(f"{path.name}: can't be read: {error.strerror or error}") from error


def _write(path: Path, data: bytes) -> None:
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path.name}: it would have more than the {_MOST_BYTES:,} bytes that are read; delete some")
    try:
        write_whole(path, data)
    except OSError as error:
        raise StoreError(f"{path.name}: can't be written: {error.strerror or error}; free some space") from error

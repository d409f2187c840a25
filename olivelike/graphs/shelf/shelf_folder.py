"""A shelf's folder: one file for each answer, which begins with a line of JSON that says what it is.

Behind that line lies the answer, compressed by xz. The file's name has the digest of the question, so two machines that
write the same answer at once write the same file; each is put in place whole. An answer counts if its SHA-256 is the
one in its first line.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from olivelike._files import DISK, explained, write_whole
from olivelike._untrusted import RefusedError, open_file
from olivelike.digest import canonical_json, digest_bytes

VERSION: Final = 1
"""Version of what `load` and `convert` make; raised when another answer becomes right. Entries of another one are not
asked."""
SUFFIX: Final = ".shelf"
_MOST_BYTES: Final = 64 << 20
"""Most bytes of an answer: the graph of SDXL's UNet has 3 MB, so that a file of zeros can't fill the memory."""
_FIRST_LINE: Final = 1 << 16
_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 24},)

EntryKind = Literal["graph", "names"]


class Damage(Exception):  # noqa: N818  (what was found, not what was asked)
    """An entry that is not what it says; the message has the file and the reason."""


@dataclass(frozen=True)
class Entry:
    """The first line of a file."""

    kind: EntryKind
    """A weightless graph, or a table of stored names."""
    question: str
    """Digest of what is answered: see `forms`."""
    component: str
    """Such as `unet`; both halves of a VAE share a table of names, of the `vae`."""
    class_name: str
    about: str
    """Source that it was made from, in words."""
    digest: str
    """SHA-256 of the answer."""
    size: int
    """Bytes of the answer."""
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries."""
    architecture: str = ""
    """For a graph, the architecture that was traced, as `Architecture.to_bytes` gives it."""
    version: int = VERSION

    @property
    def file_name(self) -> str:
        """Its file in any shelf."""
        return file_name(self.kind, self.question)


_FIELDS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("kind", "question", "component", "class_name", "about", "digest", "architecture"), str),
    **dict.fromkeys(("size", "version"), int),
    "made_with": dict,
}
"""Fields of the first line; of another version what is known here."""


def file_name(kind: EntryKind, question: str) -> str:
    """Return the name of the file that holds an answer."""
    return f"{kind}-{question[:32]}{SUFFIX}"


@dataclass(frozen=True)
class ShelfFolder:
    """One folder of entries; it need not exist."""

    path: Path

    def read(self, kind: EntryKind, question: str) -> bytes | None:
        """Return the answer to a question, or `None` if it is not here, or was made by another version.

        Raises `Damage` when the file is there and can't be read, or is not what it says.
        """
        try:
            entry, answer = _read(self.path / file_name(kind, question))
        except FileNotFoundError:
            return None
        if entry is None or entry.question != question:
            return None
        return answer

    def entries(self) -> Iterator[tuple[Path, Entry | Damage]]:
        """Yield every file with what it holds, in order of name; an answer is compared with its digest."""
        try:
            names = DISK.names(self.path)
        except OSError as error:
            yield self.path, Damage(f"{self.path} can't be read: {error.strerror or error}")
            return
        for name in names:
            if not name.endswith(SUFFIX):
                continue
            path = self.path / name
            try:
                entry, _ = _read(path, any_version=True)
            except Damage as damage:
                yield path, damage
            else:
                assert entry is not None
                yield path, entry

    def write(self, entry: Entry, answer: bytes) -> Path:
        """Put an answer into the folder, whole or not at all; one that is there is replaced.

        Raises `StoreError` if the folder can't be written.
        """
        head = canonical_json(asdict(entry))
        body = lzma.compress(answer, format=lzma.FORMAT_XZ, check=lzma.CHECK_NONE, filters=list(_FILTERS))
        path = self.path / entry.file_name
        with explained("write to the shelf", self.path, "name another folder with --shelf"):
            DISK.make_folder(self.path)
            write_whole(path, head + b"\n" + body)
        return path


def _read(path: Path, *, any_version: bool = False) -> tuple[Entry | None, bytes]:
    """Return a file's entry and answer; no entry if it is of another version, unless that may be so.

    Raises `FileNotFoundError` if there is none, and `Damage` if it can't be read or is not what it says.
    """
    try:
        with open_file(path, _MOST_BYTES) as file:
            data = file.read()
    except RefusedError as error:
        raise Damage(f"{path}: {error}") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(*error.args) from error
    except OSError as error:
        raise Damage(f"{path} can't be read: {error.strerror or error}") from error
    head, line_end, body = data.partition(b"\n")
    try:
        fields = json.loads(head) if line_end and len(head) < _FIRST_LINE else None
        if not isinstance(fields, dict) or not isinstance(fields.get("version"), int):
            raise Damage(f"{path} is no entry of a shelf")
        if fields["version"] != VERSION and not any_version:
            return None, b""
        entry = Entry(**{name: value for name, value in fields.items() if name in _FIELDS})
        if not all(isinstance(getattr(entry, name), kind) for name, kind in _FIELDS.items()):
            raise Damage(f"{path} is damaged: its first line has values of another kind")
        unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MOST_BYTES << 1)
        answer = unpacker.decompress(body, max_length=_MOST_BYTES)
    except (ValueError, TypeError, RecursionError, lzma.LZMAError) as error:
        raise Damage(f"{path} is damaged: {error}") from error
    if not unpacker.eof or digest_bytes(answer) != entry.digest:
        raise Damage(f"{path} is damaged: its content has not the SHA-256 that its first line says")
    return entry, answer

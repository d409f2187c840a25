"""GGUF files as tables: what a file holds and where, without reading a tensor.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: counts, metadata, a row for each tensor, and behind
them the tensors' bytes. Dimensions are stored from the last to the first. ComfyUI-GGUF
(https://github.com/city96/ComfyUI-GGUF, `tools/convert.py`) stores some tensors in rows of 256 values and keeps their
shapes in the metadata.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.model.block_forms import BLOCK_FORMS
from olivelike.model.weights import stored_bytes
from olivelike.sources.files.weight_header import DOWNLOAD_AGAIN, GGUF_MAGIC, Header, RawTensor

_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32
"""Bytes at whose multiples tensors begin, unless `general.alignment` says others."""
_MOST_ALIGNMENT: Final = 1 << 20
_LARGEST_HEADER: Final = 64 << 20
"""Bytes; with the words of its tokenizer that of Qwen3 has 6 MB."""
_MOST_ROWS: Final = 50_000
_LONGEST_NAME: Final = 300
_LONGEST_TEXT: Final = 4096
"""Most bytes of a text of the metadata that is kept."""
_MOST_DIMENSIONS: Final = 4
_MOST_OF_ORIGINAL: Final = 16
_ORIGINAL: Final = "comfy.gguf.orig_shape."
_FIRST_IS_ONE: Final = {"x_pad_token": 2, "cap_pad_token": 2, "pos_embed": 3}
"""Last part of the names of tensors whose first dimension is 1, which GGML's own tools drop → how many they have."""

_STRING, _ARRAY = 8, 9
_NUMBERS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Type of a value → how `struct` unpacks it."""
_WHOLE: Final = frozenset("BbHhIiQq")
_DTYPES: Final[Mapping[int, str]] = {
    0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16",
    **{form.number: name for name, form in BLOCK_FORMS.items()},
}  # fmt: skip
_OTHERS: Final[Mapping[int, str]] = {
    9: "Q8_1", 15: "Q8_K", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Types that are known by name alone."""


def read_gguf(path: Path) -> Header:
    """Read and check the header of the GGUF file at `path`.

    Raises `SourceError` if it is truncated, or no GGUF file that is known.
    """
    try:
        with open_file(path) as file:
            return _Reader(path, file, file.seek(0, 2)).header()
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; {DOWNLOAD_AGAIN}") from error


class _Reader:
    """A header that is read from its beginning, never more than may be one."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._place = 0
        self._file.seek(0)

    def header(self) -> Header:
        if self._take(len(GGUF_MAGIC)) != GGUF_MAGIC:
            self._refuse("it does not begin as one")
        version, count, notes = self._numbers("IQQ")
        if version not in _VERSIONS:
            told = "the other order of bytes" if version and not version & 0xFFFF else f"version {version}"
            self._refuse(f"it has {told}, and version {' and '.join(map(str, _VERSIONS))} are read")
        if max(count, notes) > _MOST_ROWS:
            self._refuse(f"it has {count:,} tensors and {notes:,} notes, and at most {_MOST_ROWS:,} of each are read")
        metadata: dict[str, str | int | tuple[int, ...] | None] = {}
        for _ in range(notes):
            key = self._text(_LONGEST_NAME, "the name of a note")
            if key in metadata:
                self._refuse(f"a note of it, {key}, occurs twice")
            metadata[key] = self._value(key)
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= _MOST_ALIGNMENT:
            self._refuse("its general.alignment is no number of bytes")
        rows = [self._row() for _ in range(count)]
        start = -(-self._place // alignment) * alignment
        texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
        shapes = {key: value for key, value in metadata.items() if isinstance(value, tuple)}
        return Header(self._tensors(rows, start, alignment, shapes), texts, self._size)

    def _row(self) -> tuple[str, tuple[int, ...], int, int]:
        """Read name, shape, type and offset of a tensor."""
        name = self._text(_LONGEST_NAME, "the name of a tensor")
        (dimensions,) = self._numbers("I")
        if dimensions > _MOST_DIMENSIONS:
            self._refuse(f"tensor {name} has {dimensions} dimensions, and at most {_MOST_DIMENSIONS} are known")
        shape = self._numbers("Q" * dimensions)[::-1]
        kind, offset = self._numbers("IQ")
        return name, shape, kind, offset

    def _tensors(
        self,
        rows: list[tuple[str, tuple[int, ...], int, int]],
        start: int,
        alignment: int,
        originals: Mapping[str, tuple[int, ...]],
    ) -> dict[str, RawTensor]:
        """Return the tensors, whose bytes lie apart from each other, in the file."""
        tensors: dict[str, RawTensor] = {}
        spans: list[tuple[int, int, str]] = []
        for name, stored, kind, offset in rows:
            if name in tensors:
                self._refuse(f"tensor {name} occurs twice")
            if offset % alignment:
                self._refuse(f"tensor {name} begins at {offset}, no multiple of {alignment}")
            dtype = _DTYPES.get(kind) or _OTHERS.get(kind, f"GGML type {kind}")
            # One that is not known may be of a part that nobody asks for, as in `read_header`.
            nbytes = stored_bytes(dtype, math.prod(stored)) if kind in _DTYPES else 0
            block = BLOCK_FORMS[dtype].values if dtype in BLOCK_FORMS else 1
            if block > 1 and (not stored or stored[-1] % block):
                self._refuse(f"tensor {name} has rows of {stored[-1:]} values in blocks of {block} ({dtype})")
            if start + offset + nbytes > self._size:
                self._truncated(start + offset + nbytes)
            spans.append((offset, offset + nbytes, name))
            tensors[name] = RawTensor(dtype, self._shape(name, stored, originals), start + offset)
        end = 0
        for begin, after, name in sorted(spans):
            if begin < end:
                self._refuse(f"tensor {name} begins within another one")
            end = after
        return tensors

    def _shape(self, name: str, stored: tuple[int, ...], originals: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape that a tensor has where it is used."""
        if (original := originals.get(f"{_ORIGINAL}{name}")) is not None:
            if min(original, default=0) < 0 or math.prod(original) != math.prod(stored):
                self._refuse(f"tensor {name} is stored as {list(stored)}, and its shape should be {list(original)}")
            return original
        lacks_one = _FIRST_IS_ONE.get(name.rpartition(".")[2]) == len(stored) + 1
        return (1, *stored) if lacks_one else stored

    def _value(self, key: str) -> str | int | tuple[int, ...] | None:
        """Read what a note says; `None` for what nobody asks for."""
        (kind,) = self._numbers("I")
        if kind == _STRING:
            (length,) = self._numbers("Q")
            text = self._take(length)
            return text.decode("utf-8", "replace") if length <= _LONGEST_TEXT else None
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _NUMBERS:
            self._refuse(f"its note {key} is of unknown type {kind}")
        (value,) = self._numbers(_NUMBERS[kind])
        return value if _NUMBERS[kind] in _WHOLE else None

    def _array(self, key: str) -> tuple[int, ...] | None:
        kind, count = self._numbers("IQ")
        if kind == _STRING:
            self._pass_over(count)
            return None
        if kind not in _NUMBERS:
            self._refuse(f"its note {key} is a list of unknown type {kind}")
        form = _NUMBERS[kind]
        data = self._take(count * struct.calcsize(f"<{form}"))
        if not key.startswith(_ORIGINAL):
            return None
        if form not in _WHOLE or count > _MOST_OF_ORIGINAL:
            self._refuse(f"its note {key} is no shape")
        return struct.unpack(f"<{count}{form}", data)

    def _pass_over(self, count: int) -> None:
        """Skip texts, of which tokenizers have some hundred thousand."""
        unpack, take = struct.Struct("<Q").unpack, self._take
        for _ in range(count):  # Each takes 8 bytes at least, so that the header's bound ends this.
            take(*unpack(take(8)))

    def _text(self, longest: int, what: str) -> str:
        (length,) = self._numbers("Q")
        if length > longest + len(_ORIGINAL):
            self._refuse(f"{what} has {length:,} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            self._refuse(f"{what} at byte {self._place - length} is no text")

    def _numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))

    def _take(self, count: int) -> bytes:
        """Return what comes next, once it is known to be there and to be no more than a header has."""
        self._place += count
        if self._place > self._size:
            self._truncated(self._place)
        if self._place > _LARGEST_HEADER:
            self._refuse(f"its header has more than {_LARGEST_HEADER:,} bytes")
        data = self._file.read(count)
        if len(data) < count:
            self._truncated(self._place)
        return data

    def _truncated(self, expected: int) -> NoReturn:
        raise SourceError(
            f"{self._path}: truncated: at least {expected:,} bytes expected, {self._size:,} found; {DOWNLOAD_AGAIN}"
        )

    def _refuse(self, why: str) -> NoReturn:
        raise SourceError(f"{self._path}: not a GGUF file that can be read: {why}; {DOWNLOAD_AGAIN}")

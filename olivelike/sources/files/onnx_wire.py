"""Protobuf's wire format, read by position: nothing is held but a small window of the file.

A message is a sequence of fields, each a key (field number · 8 + wire type) and a value.
Format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

VARINT: Final = 0
BYTES: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Wire types of numbers of a fixed size."""

_CONTINUES: Final = 0x80
_WINDOW: Final = 1 << 16
_LONGEST_VARINT: Final = 10
_MOST_FIELDS: Final = 1_000_000
"""Fields that are looked at in one file; the UNet of SDXL has some 100,000."""
MOST_BYTES: Final = 128 << 20
"""Size of a graph without its weights; exporters' notes make it some 50 MB."""
DEEPEST_GRAPH: Final = 20
"""Graphs within nodes within graphs; ONNX's own reader stops at 33."""


class WireError(ValueError):
    """The bytes are no protobuf message; the text says why, in words that fit behind `not a valid file:`."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, by its place in the file."""

    number: int
    wire: int
    head: int
    """Offset of its key."""
    start: int
    """Offset of its value."""
    end: int
    """Offset behind its value."""
    value: int = 0
    """The number, for wire type `VARINT`."""


class WireReader:
    """A file read by position."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, 2)
        self._window = b""
        self._window_start = 0
        self._fields = 0
        self._copied = 0

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`.

        Raises `WireError` when the file ends before, or it is more than a graph holds.
        """
        if end - start > MOST_BYTES:
            raise WireError(f"byte {start} begins a part of {end - start:,} bytes that is no weight")
        begin = start - self._window_start
        if begin >= 0 and end - self._window_start <= len(self._window):
            return self._window[begin : end - self._window_start]
        self._file.seek(start)
        data = self._file.read(end - start)
        if len(data) < end - start:
            raise WireError(f"it ends before byte {end}")
        return data

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message from `start` to `end`, their values unread.

        Raises `WireError` when the bytes are no message.
        """
        position = start
        while position < end:
            head = position
            key, position = self._varint(position, end)
            number, wire = key >> 3, key & 7
            value = 0
            begin = position
            if wire == VARINT:
                value, position = self._varint(position, end)
            elif wire == BYTES:
                length, begin = self._varint(position, end)
                position = begin + length
            elif wire in _FIXED_BYTES:
                position += _FIXED_BYTES[wire]
            else:
                raise WireError(f"byte {head} begins a field of unknown type {wire}")
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise WireError(f"it has more than {_MOST_FIELDS:,} parts")
            if position > end:
                raise WireError(f"the field at byte {head} is longer than what holds it")
            yield Field(number, wire, head, begin, position, value)

    def copy(self, start: int, end: int, inner: Mapping[int, Callable[[Field], bytes]]) -> bytes:
        """Return the message from `start` to `end`; what fields of the numbers in `inner` hold, its functions return.

        Raises `WireError` when the bytes are no message, or all copies together are more than a graph holds.
        """
        out = bytearray()
        for field in self.fields(start, end):
            if field.wire == BYTES and field.number in inner:
                out += encode_bytes(field.number, inner[field.number](field))
            else:
                out += self.part(field.head, field.end)
        return bytes(out)

    def part(self, start: int, end: int) -> bytes:
        """Return bytes for a copy; raises `WireError` when all copies together are more than a graph holds."""
        self._copied += end - start
        if self._copied > MOST_BYTES:
            raise WireError(f"it has more than {MOST_BYTES:,} bytes beside its weights")
        return self.read(start, end)

    def packed_varints(self, field: Field) -> Iterator[int]:
        """Yield the numbers of a repeated field, packed or not."""
        if field.wire == VARINT:
            yield field.value
            return
        position = field.start
        while position < field.end:
            value, position = self._varint(position, field.end)
            yield value

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        """Return the number at `position`, and where it ends."""
        window = self._fill(position, min(end, position + _LONGEST_VARINT))
        index = position - self._window_start
        value = 0
        for shift in range(0, 7 * _LONGEST_VARINT, 7):
            if position + shift // 7 >= end or index >= len(window):
                raise WireError(f"it ends within the number at byte {position}")
            byte = window[index]
            index += 1
            value |= (byte & ~_CONTINUES) << shift
            if byte < _CONTINUES:
                return value, self._window_start + index
        raise WireError(f"the number at byte {position} is longer than {_LONGEST_VARINT} bytes")

    def _fill(self, start: int, end: int) -> bytes:
        if not self._window_start <= start <= end <= self._window_start + len(self._window):
            self._file.seek(start)
            self._window, self._window_start = self._file.read(_WINDOW), start
        return self._window


def encode_varint(value: int) -> bytes:
    """Return a whole number as the wire has it."""
    out = bytearray()
    while value >= _CONTINUES:
        out.append(value % _CONTINUES | _CONTINUES)
        value //= _CONTINUES
    out.append(value)
    return bytes(out)


def encode_number(number: int, value: int) -> bytes:
    """Return a field that holds a whole number."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value)


def encode_bytes(number: int, content: bytes | bytearray) -> bytes:
    """Return a field that holds bytes, a text or a message."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(content)) + content


def read_text(reader: WireReader, field: Field) -> str:
    """Return a field's value as text."""
    try:
        return reader.read(field.start, field.end).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"the name at byte {field.start} is no text") from error

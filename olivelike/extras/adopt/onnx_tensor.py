"""One tensor of an ONNX file: its type and shape, and where its bytes lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

from olivelike._untrusted import open_file
from olivelike.errors import SourceError
from olivelike.sources.files.onnx_wire import (
    BYTES,
    Field,
    WireError,
    WireReader,
    encode_bytes,
    encode_number,
    read_text,
)
from olivelike.sources.files.weight_header import DOWNLOAD_AGAIN, LFS_POINTER, refuse_pointer

_DIMS, _DATA_TYPE, _SEGMENT, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 3, 8, 9, 13, 14
_FLOATS, _DOUBLES = 4, 10
_VALUES: Final = frozenset({4, 5, 6, 7, 9, 10, 11})
_ENTRY_KEY, _ENTRY_VALUE = 1, 2

_FLOAT_TYPES: Final[Mapping[int, str]] = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
"""`TensorProto.DataType` → dtype as safetensors names it, of what can be a weight."""
_PACKED_IN_PLACE: Final = {"F32": _FLOATS, "F64": _DOUBLES}
"""Typed fields that hold little-endian values one behind the other, as raw data does."""
_ITEM_BYTES: Final[Mapping[int, int]] = {
    1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 16: 2,
    17: 1, 18: 1, 19: 1, 20: 1,
}  # fmt: skip
_MOST_DIMS: Final = 64


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A `TensorProto`, its values unread."""

    name: str
    data_type: int
    """`TensorProto.DataType`."""
    shape: tuple[int, ...]
    field: Field
    """The whole message."""
    values: tuple[Field, ...]
    """The fields that hold values."""
    external: Mapping[str, str]
    """Location, offset and length in a data file; empty for values in the message."""
    segmented: bool

    @property
    def dtype(self) -> str:
        """Dtype as safetensors names it; empty for what is no weight: integers, texts, packed types."""
        return _FLOAT_TYPES.get(self.data_type, "")

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes; 0 for types of less than a byte, or of no fixed size."""
        return math.prod(self.shape) * _ITEM_BYTES.get(self.data_type, 0)

    @property
    def form(self) -> str:
        """Encoding of the values, in words."""
        return f"of type {self.dtype}, not in one piece" if self.dtype else f"of ONNX type {self.data_type}"

    @property
    def bare(self) -> bytes:
        """The message with type, shape and name, and no values."""
        dims = b"".join(encode_number(_DIMS, size) for size in self.shape)
        return dims + encode_number(_DATA_TYPE, self.data_type) + encode_bytes(_NAME, self.name.encode())


def read_tensor_proto(reader: WireReader, message: Field) -> OnnxTensor:
    """Read a `TensorProto` without its values. Raises `WireError` when it is none."""
    shape: list[int] = []
    values: list[Field] = []
    external: dict[str, str] = {}
    name, data_type, segmented, is_external = "", 0, False, False
    for field in reader.fields(message.start, message.end):
        if field.number == _DIMS:
            shape += islice(reader.packed_varints(field), _MOST_DIMS + 1)
            if len(shape) > _MOST_DIMS:
                raise WireError(f"the tensor at byte {message.head} has more than {_MOST_DIMS} dimensions")
        elif field.number == _DATA_TYPE:
            data_type = field.value
        elif field.number == _NAME:
            name = read_text(reader, field)
        elif field.number in _VALUES:
            values.append(field)
        elif field.number == _EXTERNAL:
            entry = {part.number: read_text(reader, part) for part in reader.fields(field.start, field.end)}
            external[entry.get(_ENTRY_KEY, "")] = entry.get(_ENTRY_VALUE, "")
        elif field.number == _LOCATION:
            is_external = field.value == 1
        segmented = segmented or field.number == _SEGMENT
    if any(size >= 1 << 63 for size in shape):
        raise WireError(f"tensor {name} has a negative dimension")
    return OnnxTensor(name, data_type, tuple(shape), message, tuple(values), external if is_external else {}, segmented)


class TensorPlaces:
    """Finds the bytes of tensors, in the model file and in the data files beside it."""

    def __init__(self, path: Path, locate: Callable[[str], Path] | None) -> None:
        self._path = path
        self._locate = locate or self._beside
        self._files: dict[str, tuple[Path, int]] = {}

    def find(self, tensor: OnnxTensor) -> tuple[Path, int] | None:
        """Return file and offset of a tensor's bytes; `None` if they do not lie there in one piece.

        Raises `SourceError` when a data file is missing or too short, or lies elsewhere, and `WireError` when there are
        fewer or more bytes than the shape needs.
        """
        if tensor.external:
            return self._find_external(tensor)
        if len(tensor.values) != 1 or tensor.segmented:
            return None
        (field,) = tensor.values
        if field.number not in {_RAW, _PACKED_IN_PLACE.get(tensor.dtype)} or field.wire != BYTES:
            return None
        if field.end - field.start != tensor.nbytes:
            raise WireError(
                f"tensor {tensor.name} has {field.end - field.start} bytes where its shape needs {tensor.nbytes}"
            )
        return self._path, field.start

    def embedded(self, tensor: OnnxTensor) -> bytes:
        """Return the message of a tensor whose bytes lie in a data file, with the bytes in it."""
        if not tensor.nbytes:
            raise SourceError(
                f"{self._path}: tensor {tensor.name} is {tensor.form} and in a data file; "
                "export the model in float32 or float16"
            )
        path, offset = self._find_external(tensor)
        with open_file(path) as file:
            file.seek(offset)
            return tensor.bare + encode_bytes(_RAW, file.read(tensor.nbytes))

    def _find_external(self, tensor: OnnxTensor) -> tuple[Path, int]:
        location = tensor.external.get("location", "")
        try:
            offset = int(tensor.external.get("offset") or 0)
            length = int(tensor.external.get("length") or tensor.nbytes)
        except ValueError as error:
            raise WireError(f"the external data of tensor {tensor.name} has no numbers for its place") from error
        if offset < 0 or length != tensor.nbytes:
            raise WireError(f"tensor {tensor.name} has {length} bytes where its shape needs {tensor.nbytes}")
        path, size = self._file(location, tensor.name)
        if offset + length > size:
            raise SourceError(
                f"{path}: truncated: tensor {tensor.name} of {self._path.name} needs {offset + length} bytes, "
                f"{size} found; {DOWNLOAD_AGAIN}"
            )
        return path, offset

    def _file(self, location: str, tensor: str) -> tuple[Path, int]:
        """Return path and size of a data file."""
        if location not in self._files:
            if not _is_inside(location):
                raise SourceError(
                    f"{self._path}: tensor {tensor} points at {location!r}, outside of the model's folder, which "
                    "is refused; save the model again with its data beside it (onnx.save, `location=` a file name)"
                )
            path = self._locate(location)
            self._refuse_link_out(path, tensor)
            with open_file(path) as file:
                size = file.seek(0, 2)
                file.seek(0)
                refuse_pointer(path, file.read(len(LFS_POINTER)), size)
            self._files[location] = path, size
        return self._files[location]

    def _refuse_link_out(self, path: Path, tensor: str) -> None:
        """Refuse a data file that is a link to elsewhere: a folder from a stranger may link to any file.

        The hub's cache links whole folders to blobs, the model file to the same place as its data.
        """
        folders = {self._path.parent.resolve(), self._path.resolve().parent}
        if not any(path.resolve().is_relative_to(folder) for folder in folders):
            raise SourceError(
                f"{path}: tensor {tensor} of {self._path.name} lies in this file, which is a link out of the model's "
                "folder, which is refused; copy the file there, or link the model file to the same place"
            )

    def _beside(self, location: str) -> Path:
        path = self._path.parent / location
        if not path.is_file():
            raise SourceError(
                f"{path} is missing: {self._path.name} keeps its weights in it; copy or download it too, the two "
                "files belong together"
            )
        return path


def _is_inside(location: str) -> bool:
    """Say whether a relative location stays in its folder, as any system reads it."""
    kinds = (PurePosixPath(location), PureWindowsPath(location))
    return bool(location) and not any(
        path.is_absolute() or path.drive or path.root or ".." in path.parts for path in kinds
    )

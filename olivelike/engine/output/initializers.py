"""The initializers of a component's model file, read one at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from olivelike._untrusted import open_file
from olivelike.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_BYTE = 8

Array = np.ndarray[Any, Any]


class Initializers:
    """The initializers of one component of an output, read one at a time."""

    def __init__(self, path: Path) -> None:
        """Read a component's model file without its data file.

        Raises:
            SourceError: if it can't be read.
        """
        self.folder = path.parent
        try:
            model = onnx.load(path, load_external_data=False)
        except (OSError, DecodeError) as error:
            raise SourceError(f"{path} can't be read: {error}; run the workflow again") from error
        self._protos = {proto.name: proto for proto in model.graph.initializer}
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.ir_version = model.ir_version

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return NumPy's type of an initializer."""
        dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(self._protos[name].data_type)
        return dtype

    def read(self, name: str) -> Array:
        """Return an initializer's values in its own dtype and shape, in memory of their own."""
        proto = self._protos[name]
        if not proto.external_data:
            return np.array(onnx.numpy_helper.to_array(proto))
        entries = {entry.key: entry.value for entry in proto.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.data_type)
        path = self.folder / entries["location"]
        count = math.prod(proto.dims)
        bits = ir.DataType(proto.data_type).bitwidth
        if bits < _BYTE:
            packed = self._read(path, np.dtype(np.uint8), -(-count * bits // _BYTE), entries, name)
            inline = onnx.TensorProto(data_type=proto.data_type, dims=proto.dims, raw_data=packed.tobytes())
            return np.array(onnx.numpy_helper.to_array(inline))
        return self._read(path, dtype, count, entries, name).reshape(tuple(proto.dims))

    @staticmethod
    def _read(path: Path, dtype: np.dtype[Any], count: int, entries: Mapping[str, str], name: str) -> Array:
        try:
            with open_file(path) as file:
                array: Array = np.fromfile(file, dtype, count, offset=int(entries["offset"]))
        except OSError as error:
            raise SourceError(f"{path} can't be read: {error}; run the workflow again") from error
        if array.size != count:
            raise SourceError(f"{path}: ends before {name!r}; run the workflow again")
        return array

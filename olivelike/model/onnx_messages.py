"""ONNX models as messages of `protobuf`, for what reads them without the package `onnx`.

The classes have the fields, numbers and names of ONNX's schema (`onnx.proto` of onnx 1.23), and are used as those of
`onnx` are. They lie in a pool of their own, since a pool has one message of a name, and `onnx` fills the common one.
Fields that are not listed, such as those of training, are kept as they were read.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from olivelike._untrusted import open_file, read_bytes

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "TYPE_NAMES", "GraphProto", "ModelProto", "NodeProto", "TensorProto", "ValueInfoProto", "attribute",
    "attribute_value", "bits_of", "data_files", "dtype_name", "dtype_of", "from_array", "load_model", "make_node",
    "make_value", "numpy_dtype", "to_array", "type_number",
]  # fmt: skip

_MOST_BYTES: Final = 1 << 31
"""Of a message, as protobuf has it."""

_ENUMS: Final = {
    "DataType": (
        "UNDEFINED FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE UINT32 UINT64 COMPLEX64 "
        "COMPLEX128 BFLOAT16 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ UINT4 INT4 FLOAT4E2M1 FLOAT8E8M0 "
        "UINT2 INT2"
    ),
    "DataLocation": "DEFAULT EXTERNAL",
}
"""Enumerations of `TensorProto`: names in the order of their numbers."""

_FIELDS: Final = {
    "AttributeProto": (
        "name 1 string, ref_attr_name 21 string, doc_string 13 string, type 20 int32, f 2 float, i 3 int64, s 4 bytes, "
        "t 5 TensorProto, g 6 GraphProto, sparse_tensor 22 SparseTensorProto, tp 14 TypeProto, floats 7 float*, "
        "ints 8 int64*, strings 9 bytes*, tensors 10 TensorProto*, graphs 11 GraphProto*, "
        "sparse_tensors 23 SparseTensorProto*, type_protos 15 TypeProto*"
    ),
    "ValueInfoProto": "name 1 string, type 2 TypeProto, doc_string 3 string, metadata_props 4 StringStringEntryProto*",
    "NodeProto": (
        "input 1 string*, output 2 string*, name 3 string, op_type 4 string, domain 7 string, overload 8 string, "
        "attribute 5 AttributeProto*, doc_string 6 string, metadata_props 9 StringStringEntryProto*"
    ),
    "ModelProto": (
        "ir_version 1 int64, opset_import 8 OperatorSetIdProto*, producer_name 2 string, producer_version 3 string, "
        "domain 4 string, model_version 5 int64, doc_string 6 string, graph 7 GraphProto, "
        "metadata_props 14 StringStringEntryProto*, functions 25 FunctionProto*"
    ),
    "StringStringEntryProto": "key 1 string, value 2 string",
    "GraphProto": (
        "node 1 NodeProto*, name 2 string, initializer 5 TensorProto*, sparse_initializer 15 SparseTensorProto*, "
        "doc_string 10 string, input 11 ValueInfoProto*, output 12 ValueInfoProto*, value_info 13 ValueInfoProto*, "
        "metadata_props 16 StringStringEntryProto*"
    ),
    "TensorProto": (
        "dims 1 int64*, data_type 2 int32, float_data 4 float+, int32_data 5 int32+, string_data 6 bytes*, "
        "int64_data 7 int64+, name 8 string, doc_string 12 string, raw_data 9 bytes, "
        "external_data 13 StringStringEntryProto*, data_location 14 DataLocation, double_data 10 double+, "
        "uint64_data 11 uint64+, metadata_props 16 StringStringEntryProto*"
    ),
    "SparseTensorProto": "values 1 TensorProto, indices 2 TensorProto, dims 3 int64*",
    "TensorShapeProto": "dim 1 TensorShapeProto.Dimension*",
    "TensorShapeProto.Dimension": "dim_value 1 int64|, dim_param 2 string|, denotation 3 string",
    "TypeProto": (
        "tensor_type 1 TypeProto.Tensor|, sequence_type 4 TypeProto.Sequence|, map_type 5 TypeProto.Map|, "
        "optional_type 9 TypeProto.Optional|, sparse_tensor_type 8 TypeProto.Tensor|, denotation 6 string"
    ),
    "TypeProto.Tensor": "elem_type 1 int32, shape 2 TensorShapeProto",
    "TypeProto.Sequence": "elem_type 1 TypeProto",
    "TypeProto.Map": "key_type 1 int32, value_type 2 TypeProto",
    "TypeProto.Optional": "elem_type 1 TypeProto",
    "OperatorSetIdProto": "domain 1 string, version 2 int64",
    "FunctionProto": (
        "name 1 string, input 4 string*, output 5 string*, attribute 6 string*, attribute_proto 11 AttributeProto*, "
        "node 7 NodeProto*, doc_string 8 string, opset_import 9 OperatorSetIdProto*, domain 10 string, "
        "overload 13 string, value_info 12 ValueInfoProto*, metadata_props 14 StringStringEntryProto*"
    ),
}
"""Fields of each message: name, number, type; after it `*` for repeated, `+` for repeated and packed, `|` for one of
several that a message has one of."""


def _classes() -> dict[str, Any]:
    """Return the message classes by name."""
    scheme = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="onnx.proto", package="onnx")
    made: dict[str, Any] = {}
    for name, fields in _FIELDS.items():
        outer, _, inner = name.rpartition(".")
        message = made[name] = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        for entry in fields.split(", "):
            title, number, kind = entry.split()
            plain = kind.rstrip("*+|")
            label = scheme.LABEL_REPEATED if kind[-1] in "*+" else scheme.LABEL_OPTIONAL
            field = message.field.add(name=title, number=int(number), label=label)
            if plain in _FIELDS:
                field.type, field.type_name = scheme.TYPE_MESSAGE, f".onnx.{plain}"
            elif plain in _ENUMS:
                field.type, field.type_name = scheme.TYPE_ENUM, f".onnx.TensorProto.{plain}"
            else:
                field.type = scheme.Type.Value(f"TYPE_{plain.upper()}")
            if kind[-1] == "+":
                field.options.packed = True
            if kind[-1] == "|":
                field.oneof_index = 0
        if "|" in fields:
            message.oneof_decl.add(name="value")
    for name, values in _ENUMS.items():
        enum = made["TensorProto"].enum_type.add(name=name)
        for place, value in enumerate(values.split()):
            enum.value.add(name=value, number=place)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"onnx.{name}") for name in _FIELDS if "." not in name}
    return {name: message_factory.GetMessageClass(one) for name, one in found.items()}


if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
else:
    _MADE = _classes()
    ModelProto, GraphProto, NodeProto = (_MADE[name] for name in ("ModelProto", "GraphProto", "NodeProto"))
    TensorProto, ValueInfoProto = _MADE["TensorProto"], _MADE["ValueInfoProto"]

_VALUE_FIELDS: Final = (
    "", "f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs", "sparse_tensor", "sparse_tensors",
    "tp", "type_protos",
)  # fmt: skip
"""Fields with the value of an attribute, by the number of its type."""
_TEXT: Final = 3

_DTYPE_NAMES: Final = (
    "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "object", "bool", "float16", "float64", "uint32",
    "uint64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn", "float8_e8m0fnu", "uint2", "int2",
)  # fmt: skip
"""NumPy's names of the types, in the order of ONNX's numbers from 1."""
TYPE_NAMES: Final = tuple(_ENUMS["DataType"].split())
"""ONNX's names of the types, by their numbers."""
_BITS: Final = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}
"""Types of which a byte has several, the first in its lowest bits."""
_TYPED: Final = {
    "float32": "float_data", "complex64": "float_data", "float64": "double_data", "complex128": "double_data",
    "int64": "int64_data", "uint64": "uint64_data", "uint32": "uint64_data",
}  # fmt: skip
"""Fields for values of tensors that have no raw ones; other types are in `int32_data`, small floats by their bits."""


def dtype_name(number: int) -> str:
    """Return NumPy's name of a type by ONNX's number, such as `bfloat16` of `ml_dtypes`; `KeyError` for no type."""
    if not 0 < number <= len(_DTYPE_NAMES):
        raise KeyError(number)
    return _DTYPE_NAMES[number - 1]


def numpy_dtype(number: int) -> np.dtype[Any]:
    """Return NumPy's type by ONNX's number; `KeyError` for no type."""
    import ml_dtypes
    import numpy as np

    name = dtype_name(number)
    return np.dtype(getattr(ml_dtypes, name, name))


def dtype_of(tensor: TensorProto) -> np.dtype[Any]:
    """Return the type of a tensor's values; `KeyError` for no type."""
    return numpy_dtype(tensor.data_type)


def type_number(dtype: np.dtype[Any] | str) -> int:
    """Return ONNX's number of a type of NumPy's, or of its name."""
    return _DTYPE_NAMES.index(dtype if isinstance(dtype, str) else dtype.name) + 1


def load_model(path: Path) -> ModelProto:
    """Read a model without its data files. Raises `OSError`, and `DecodeError` if it is none."""
    return ModelProto.FromString(read_bytes(path, _MOST_BYTES))


def make_node(
    operator: str, inputs: Iterable[str], outputs: Iterable[str], domain: str = "", **attributes: Any
) -> NodeProto:
    """Make a node; an attribute is a whole number, a float, a list of such, or a tensor."""
    node = NodeProto(op_type=operator, input=inputs, output=outputs, domain=domain)
    for name, value in sorted(attributes.items()):
        match value:
            case int():
                field = "i"
            case float():
                field = "f"
            case [int(), *_]:
                field = "ints"
            case [float(), *_]:
                field = "floats"
            case _:
                field = "t"
        node.attribute.add(name=name, type=_VALUE_FIELDS.index(field), **{field: value})
    return node


def make_value(name: str, number: int, shape: Iterable[int]) -> ValueInfoProto:
    """Make an input or output of a graph, a tensor of a type and of fixed sizes."""
    value = ValueInfoProto(name=name)
    value.type.tensor_type.elem_type = number
    for size in shape:
        value.type.tensor_type.shape.dim.add(dim_value=size)
    return value


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute."""
    found = next((one for one in node.attribute if one.name == name), None)
    return default if found is None else attribute_value(found)


def attribute_value(found: AttributeProto) -> Any:
    """Return the value of an attribute; a list where it has several."""
    value = getattr(found, _VALUE_FIELDS[found.type])
    return list(value) if _VALUE_FIELDS[found.type].endswith("s") and found.type != _TEXT else value


def data_files(model: ModelProto) -> dict[str, int]:
    """Return the data files of a model's initializers as it names them, and the fewest bytes that hold all of these.

    Raises `ValueError` or `KeyError` if it does not say which bytes are whose.
    """
    found: dict[str, int] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            size = int(place.get("length", 0)) or -(-prod(tensor.dims) * bits_of(dtype_of(tensor)) // 8)
            end = int(place.get("offset", 0)) + size
            found[place["location"]] = max(end, found.get(place["location"], 0))
    return found


def from_array(array: Array, name: str) -> TensorProto:
    """Make a tensor of an array."""
    import numpy as np

    data = np.ascontiguousarray(array)
    if bits := _BITS.get(array.dtype.name):
        numbers = np.zeros(-(-array.size * bits // 8) * 8 // bits, np.uint8)
        numbers[: array.size] = data.view(np.uint8).reshape(-1) & (1 << bits) - 1
        data = np.bitwise_or.reduce(numbers.reshape(-1, 8 // bits) << _shifts(bits), axis=1)
    return TensorProto(name=name, data_type=type_number(array.dtype), dims=array.shape, raw_data=data.tobytes())


def _shifts(bits: int) -> Array:
    import numpy as np

    return np.array([*range(0, 8, bits)], np.uint8)


def to_array(tensor: TensorProto, folder: Path | None = None) -> Array:
    """Return the values of a tensor.

    Raises `ValueError` if they are texts, not as many as its shape says, or in a file that may not be read,
    and `OSError` if that can't be.

    Args:
        tensor: One with values of its own, or with those of a data file.
        folder: Where the model lies, for a tensor with a data file in it or below.
    """
    import numpy as np

    name, dtype = dtype_name(tensor.data_type), dtype_of(tensor)
    if name == "object" or min(tensor.dims, default=0) < 0:
        raise ValueError(f"{tensor.name} has the type {name} and shape {[*tensor.dims]}")
    if tensor.data_location == tensor.EXTERNAL:
        return _unpacked(_read(tensor, folder, dtype), tensor)
    if tensor.HasField("raw_data"):
        return _unpacked(tensor.raw_data, tensor)
    if name in _BITS:
        return _unpacked(bytes(number & 255 for number in tensor.int32_data), tensor)
    stored = np.array(getattr(tensor, _TYPED.get(name, "int32_data")))
    if "float" in name and name not in _TYPED:
        return stored.astype(f"u{dtype.itemsize}").view(dtype).reshape(tensor.dims)
    if dtype.kind == "c":
        return stored.astype(f"f{dtype.itemsize // 2}").view(dtype).reshape(tensor.dims)
    return stored.astype(dtype).reshape(tensor.dims)


def _unpacked(data: bytes, tensor: TensorProto) -> Array:
    """Return the values that bytes stand for."""
    import numpy as np

    name, dtype = dtype_name(tensor.data_type), dtype_of(tensor)
    if (bits := _BITS.get(name)) is None:
        return np.frombuffer(data, dtype).reshape(tensor.dims)
    numbers: Array = np.frombuffer(data, np.uint8)[:, None] >> _shifts(bits) & (1 << bits) - 1
    numbers = numbers.reshape(-1)[: prod(tensor.dims)]
    if name.startswith("float"):
        return numbers.view(dtype).reshape(tensor.dims)
    if name.startswith("int"):
        half = 1 << bits - 1
        numbers = (numbers.view(np.int8) ^ half) - half
    return numbers.astype(dtype).reshape(tensor.dims)


def _read(tensor: TensorProto, folder: Path | None, dtype: np.dtype[Any]) -> bytes:
    place = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePath(place.get("location", ".."))
    if folder is None or location.is_absolute() or ".." in location.parts:
        raise ValueError(f"{tensor.name} is in {str(location)!r}, which is no file of the model's folder")
    with open_file(folder / location) as file:
        file.seek(int(place.get("offset", 0)))
        return file.read(-(-prod(tensor.dims) * bits_of(dtype) // 8))


def bits_of(dtype: np.dtype[Any]) -> int:
    """Return how many bits of a file a value takes."""
    return _BITS.get(dtype.name, 8 * dtype.itemsize)

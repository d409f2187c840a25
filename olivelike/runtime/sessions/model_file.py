"""What an ONNX file says of its inputs, outputs and initializers; weights are not read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._text import did_you_mean
from olivelike.errors import SessionError, SourceError, UsageError
from olivelike.runtime.sessions.session import ValueSpec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def read_model_file(path: Path) -> Any:
    """Return an ONNX file as an `onnx.ModelProto`, the values of its larger initializers left out.

    Raises `SessionError` if it can't be read, or is no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    from olivelike.graphs.inspect.inspect import read_skeleton

    try:
        return onnx.ModelProto.FromString(read_skeleton(path))
    except SourceError as error:
        raise SessionError(str(error)) from error
    except DecodeError as error:
        raise SessionError(f"{path}: is not an ONNX model") from error


def value_specs(values: Iterable[Any], without: Iterable[Any] = ()) -> dict[str, ValueSpec]:
    """Return `ValueInfoProto`s by name, those of initializers left out."""
    left_out = {tensor.name for tensor in without}
    return {value.name: _spec(value) for value in values if value.name not in left_out}


def check_initializers(path: Path, known: Mapping[str, Any], given: Mapping[str, Array]) -> None:
    """Check that arrays can take the places of a model's initializers.

    Raises `SessionError` for an unknown name, or another dtype or shape.

    Args:
        known: Its initializers, as `TensorProto`s."""
    for name, array in given.items():
        if name not in known:
            raise SessionError(f"{path}: has no initializer {name!r}; {did_you_mean(name, known, 'initializers')}")
        dtype, shape = _dtype(known[name].data_type), tuple(known[name].dims)
        if array.dtype.name != dtype or array.shape != shape:
            raise SessionError(
                f"{path}: initializer {name!r} is {dtype} {shape}, the array given for it {array.dtype.name} "
                f"{array.shape}"
            )


def check_dimensions(sizes: Mapping[str, int], models: Iterable[Path]) -> None:
    """Check that each dimension whose size is set belongs to a network: engines pass over those that do not.

    Args:
        models: All networks that they are meant for; nothing is read if no size is set.

    Raises:
        UsageError: for a name that none of them has; the message has the nearest."""
    if not sizes:
        return
    graphs = [read_model_file(path).graph for path in models]
    specs = [spec for graph in graphs for spec in value_specs(graph.input, graph.initializer).values()]
    known = sorted({dim for spec in specs for dim in spec.dims if isinstance(dim, str)})
    if unknown := [name for name in sizes if name not in known]:
        hint = did_you_mean(unknown[0], known, "dimensions")
        raise UsageError(f"no network has a dynamic dimension {unknown[0]!r}; {hint}")


def _spec(value: Any) -> ValueSpec:
    tensor = value.type.tensor_type
    dims = (
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}.{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    )
    return ValueSpec(value.name, _dtype(tensor.elem_type), tuple(dims))


def _dtype(element: int) -> str:
    import onnx

    try:
        name: str = onnx.helper.tensor_dtype_to_np_dtype(element).name
    except KeyError:
        raise SessionError(f"a value has ONNX type {element}, which is unknown; export the model again") from None
    return name

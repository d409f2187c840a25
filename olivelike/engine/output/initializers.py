"""Initializers of an output's networks, read one at a time: as stored, as weights, or to be copied by the next run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from olivelike._untrusted import open_file
from olivelike.engine.output.expressions import Expression, parameters, shape_of
from olivelike.errors import SourceError
from olivelike.model.graph import QUANTISE_DOMAIN
from olivelike.model.half_values import in_row_order
from olivelike.model.onnx_messages import TensorProto, bits_of, dtype_of, load_model, to_array
from olivelike.model.quantised_values import BlockFormat, QuantisedFormat, quantised_format

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.model import Weights

_BYTE = 8

Array = np.ndarray[Any, Any]


class Initializers:
    """The initializers of one component of an output, read one at a time."""

    def __init__(self, path: Path) -> None:
        """Read a component's model file without its data file. Raises `SourceError` if it can't be read."""
        self.folder = path.parent
        try:
            model = load_model(path)
        except (OSError, DecodeError) as error:
            raise SourceError(f"{path} can't be read: {error}; run the workflow again") from error
        self._protos = {proto.name: proto for proto in model.graph.initializer}
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.ir_version = model.ir_version

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return NumPy's type of an initializer."""
        return dtype_of(self._protos[name])

    def read(self, name: str) -> Array:
        """Return an initializer's values in its own dtype and shape, in memory of their own."""
        proto = self._protos[name]
        if not proto.external_data:
            return np.array(to_array(proto))
        entries = {entry.key: entry.value for entry in proto.external_data}
        dtype = dtype_of(proto)
        path = self.folder / entries["location"]
        count = math.prod(proto.dims)
        if (bits := bits_of(dtype)) < _BYTE:
            packed = self._read(path, np.dtype(np.uint8), -(-count * bits // _BYTE), entries, name)
            return to_array(TensorProto(data_type=proto.data_type, dims=proto.dims, raw_data=packed.tobytes()))
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


class QuantisedInitializers:
    """A component's initializers, read one weight at a time: a quantised one goes by the name of its numbers."""

    def __init__(self, file: Initializers, derivations: Mapping[str, Expression]) -> None:
        """Take the initializers of a model file, and how each was derived."""
        self.file = file
        groups: dict[str, dict[int, str]] = {}
        for name, expression in derivations.items():
            if expression.get("domain") == QUANTISE_DOMAIN:
                same = json.dumps({**expression, "output": 0}, sort_keys=True)
                groups.setdefault(same, {})[expression.get("output", 0)] = name
        self._parts = {found[0]: [found[index] for index in sorted(found)] for found in groups.values()}
        self._expressions = {name: derivations[name] for name in self._parts}
        further = {name for names in self._parts.values() for name in names[1:]}
        self.derivations = {
            name: expression["inputs"][0] if name in self._parts else expression
            for name, expression in derivations.items()
            if name not in further
        }
        """Expression of each weight, before it was quantised."""

    def read(self, name: str) -> Array:
        """Return a weight's values; of a quantised one in float32."""
        if name not in self._parts:
            return self.file.read(name)
        numbers = [self.file.read(part) for part in self._parts[name]]
        return self._format(name).dequantise(numbers, shape_of(self.derivations[name]))

    def parts(self, name: str, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield the initializers that hold a weight's new values, and theirs, in row order; quantised as it was."""
        if name not in self._parts:
            yield name, array
            return
        form = self._format(name)
        if isinstance(form, BlockFormat) and not form.packed and form.bits < _BYTE:
            raise SourceError(
                f"initializer {name!r} is in {form.bits} bits behind DequantizeLinear, and a session takes no other "
                "values for such a one; merge the LoRA in a run"
            )
        for part, values in zip(self._parts[name], form.quantise(array), strict=True):
            # Scales are of the graph's type. Of a block along another axis than the last, parts are views, which no
            # session takes.
            yield part, in_row_order(values.astype(self.file.dtype(part), copy=False))

    def _format(self, name: str) -> QuantisedFormat:
        return quantised_format(self._expressions[name])


@dataclass(frozen=True)
class EarlierNetwork:
    """A component as an earlier run wrote it, with the same code: what lies in the output is copied, not derived anew.

    So another LoRA derives what it changes, or what the last one changed, and another checkpoint of which most is the
    same derives the rest.
    """

    initializers: Initializers
    weights: Weights
    """Weights of which it was made."""
    derivations: Mapping[str, Expression]
    """Per initializer, as `Materialized` has them."""
    lost: Mapping[str, Mapping[str, int]]
    """Number of values of each initializer that were lost, by kind, as `Materialized` has them."""

    def has(self, name: str, expression: Expression, weights: Weights) -> bool:
        """Tell whether an initializer holds what an expression makes of these weights."""
        return self.derivations.get(name) == expression and all(
            self.weights.get(parameter) == weights[parameter] for parameter, _ in parameters(expression)
        )

    def read(self, name: str) -> tuple[Array, dict[str, int]]:
        """Return an initializer's values, and how many of them were lost, by kind."""
        return self.initializers.read(name), {kind: counts.get(name, 0) for kind, counts in self.lost.items()}

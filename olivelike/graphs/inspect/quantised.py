"""Telling quantised weights in a graph, weightless or written: how they are kept, and what stays in float."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike._text import count
from olivelike._untrusted import Json
from olivelike.graphs.editing.values import dims_of, fixed_dims, required, type_of
from olivelike.model.graph import weight_values

_MOVES: Final = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that a weight passes on its way to what multiplies by it."""
_MULTIPLY: Final = frozenset({"Attention", "Conv", "Gemm", "MatMul", "NhwcConv"})
"""Operators whose second input may be a weight."""
_BY_ROWS: Final = "MatMulIntegerToFloat"
"""Multiplies by weights in 8 bits what is rounded by rows, as it comes."""
_BESIDE: Final = frozenset({"Concat", "Reshape"})
"""Operators that such a one's numbers pass."""
_MATRIX: Final = 2
_FLOAT_TYPES: Final = {
    ir.DataType.FLOAT: "float32", ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16",
}  # fmt: skip
_FLOATS: Final = frozenset(_FLOAT_TYPES.values())


@dataclass(frozen=True)
class KeptWeights:
    """Weights of a graph that are kept in the same type."""

    form: str
    """Such as `8 bits` for weights that are widened, `int8` for those that are multiplied by as such, or `float32`."""
    blocks: tuple[int, ...]
    """Number of weights that share a scale; none where it is those of a channel, or of a tensor."""
    layers: int
    """Convolutions, linear layers, and tables of embeddings."""
    weights: int
    """Their values, without biases."""
    names: tuple[str, ...]
    """Names of their tensors, the largest first."""

    @property
    def in_float(self) -> bool:
        """Whether these are not quantised."""
        return self.form in _FLOATS

    def __str__(self) -> str:
        blocks = f" in blocks of {', '.join(map(str, self.blocks))}" if self.blocks else ""
        return f"{self.form}{blocks}: {self.weights:,} in {count(self.layers, 'layer')}"


def kept_weights(model: ir.Model) -> tuple[KeptWeights, ...]:
    """Return how layers keep their weights, most weights first; nothing where all of them are in float."""
    stored = {*model.graph.initializers.values(), *weight_values(model.graph)}
    found: dict[str, dict[str, _Layer]] = {}
    for node in RecursiveGraphIterator(model.graph):
        if (layer := _layer(node, stored)) is not None:
            # Several layers may multiply by the same weight.
            found.setdefault(layer.form, {})[layer.weight.name or ""] = layer
    if _FLOATS.issuperset(found):
        return ()
    kept = [
        KeptWeights(
            form,
            tuple(sorted({one.block for one in layers.values() if one.block})),
            len(layers),
            sum(one.size for one in layers.values()),
            tuple(sorted(layers, key=lambda name: -layers[name].size)),
        )
        for form, layers in found.items()
    ]
    return tuple(sorted(kept, key=lambda one: (-one.weights, one.form)))


def shares(kept: Sequence[KeptWeights]) -> str:
    """Return which share of the weights is kept in which type, such as `8 bits 96 %, float32 4 %`."""
    total = sum(one.weights for one in kept)
    return ", ".join(f"{one.form} {100 * one.weights / total:.0f} %" for one in kept)


def facts(model: ir.Model) -> list[Json]:
    """Return how layers keep their weights as JSON values for a run's record, with the names of those in float."""
    return [{**asdict(one), "names": one.names if one.in_float else ()} for one in kept_weights(model)]


@dataclass(frozen=True)
class _Layer:
    form: str
    weight: ir.Value
    size: int
    """Number of weights."""
    block: int = 0


def _layer(node: ir.Node, stored: set[ir.Value]) -> _Layer | None:
    """Return how a layer keeps its weight; `None` for what is no layer."""
    if node.op_type == "MatMulNBits" and node.inputs[1] is not None:
        bits, block, *sides = (node.attributes[name].as_int() for name in ("bits", "block_size", "K", "N"))
        if (other := _other_bits(node)) > bits:
            return None
        return _Layer(f"{bits + other} bits", node.inputs[1], math.prod(sides), block)
    if node.op_type == _BY_ROWS:
        columns = required(node, 1)
        return _Layer("int8", columns, _elements(columns))
    if node.op_type == "Gather" and node.inputs[0] in stored:
        return _table(node, node.inputs[0])
    if node.op_type not in _MULTIPLY:
        return None
    given, value = map(_origin, node.inputs[:2])
    if value is None or given is None:
        return None
    maker = value.producer()
    if maker is not None and maker.op_type == "DequantizeLinear" and (numbers := required(maker, 0)) in stored:
        return _widened(maker, numbers, _rounded_by(given))
    if (folded := _folded(maker)) is not None and folded[1] in stored:
        return _Layer(folded[0], folded[1], _elements(folded[1]))
    return _in_float(value) if value in stored else None


def _folded(maker: ir.Node | None) -> tuple[str, ir.Value] | None:
    """Return bits and numbers of a weight that is spelled as `weights8` does for a session to fold; of 12 the upper."""
    steps = []
    while maker is not None and maker.op_type in {"Add", "Cast", "Mul"} and (value := maker.inputs[0]) is not None:
        steps.append(maker.op_type)
        if value.dtype == ir.DataType.INT8:
            forms = {("Mul", "Cast"): "8 bits", ("Mul", "Add", "Cast"): "12 bits"}
            form = forms.get(tuple(steps[steps[0] == "Cast" :]))  # The first may be to half precision.
            return None if form is None else (form, value)
        maker = value.producer()
    return None


def _other_bits(node: ir.Node) -> int:
    """Return the bits of the other half of a weight that is multiplied by in two, whose products are added; or 0."""
    for user, _ in node.outputs[0].uses():
        for value in user.inputs if user.op_type == "Add" else ():
            maker = None if value is None else value.producer()
            if maker is None or maker.op_type != "MatMulNBits" or maker.inputs[0] is not node.inputs[0]:
                continue
            if {bits := maker.attributes["bits"].as_int(), node.attributes["bits"].as_int()} == {4, 8}:
                return bits
    return 0


def _table(node: ir.Node, table: ir.Value) -> _Layer | None:
    """Return how a table that rows are looked up in is kept; scales of rows, and of 12 bits the lower, are none."""
    if _looks_up_upper(node):
        return _Layer("12 bits", table, _elements(table), fixed_dims(table)[-1])
    if table.shape is None or len(table.shape) != _MATRIX:
        return None
    for user, place in node.outputs[0].uses():
        if user.op_type == "DequantizeLinear":
            return _widened(user, table, None) if place == 0 else None
    return _in_float(table)


def _looks_up_upper(node: ir.Node) -> bool:
    """Tell whether rows of the upper 8 of 12 bits are looked up: one Sub reads them, where more take bytes apart."""
    if node.op_type != "Gather" or (table := node.inputs[0]) is None or table.dtype != ir.DataType.UINT8:
        return False
    readers = [user.op_type for cast, _ in node.outputs[0].uses() for user, _ in cast.outputs[0].uses()]
    return len(dims_of(table)) > _MATRIX and readers == ["Sub"]


def _widened(node: ir.Node, numbers: ir.Value, computed: str | None) -> _Layer:
    block = node.attributes.get("block_size")
    form = computed or f"{type_of(numbers).bitwidth} bits"
    return _Layer(form, numbers, _elements(numbers), 0 if block is None else block.as_int())


def _in_float(value: ir.Value) -> _Layer | None:
    form = None if value.dtype is None else _FLOAT_TYPES.get(value.dtype)
    return None if form is None else _Layer(form, value, _elements(value))


def _origin(value: ir.Value | None) -> ir.Value | None:
    """Return what a value is, but for its form."""
    while value is not None and (node := value.producer()) is not None and node.op_type in _MOVES:
        value = node.inputs[0]
    return value


def _rounded_by(value: ir.Value) -> str | None:
    """Return `int8` or `fp8` if an activation is rounded to that, else `None`."""
    maker = value.producer()
    if maker is None or maker.op_type != "DequantizeLinear" or maker.inputs[0] is None:
        return None
    rounding = maker.inputs[0].producer()
    return None if rounding is None else rounded_to([rounding])


def _elements(value: ir.Value) -> int:
    return 0 if value.shape is None else math.prod(size for size in value.shape if isinstance(size, int))


def quantised_precision(nodes: Collection[ir.Node]) -> str | None:
    """Return `int8` or `fp8` if activations are rounded, `w8` or `w4` if weights alone are, `None` if neither is."""
    if (rounded := rounded_to(nodes)) is not None:
        return rounded
    widths = [width for node in nodes if (width := weight_bits(node)) is not None]
    return f"w{min(widths)}" if widths else None


def rounded_to(nodes: Iterable[ir.Node]) -> str | None:
    """Return `int8` or `fp8` if activations of a graph are rounded to that, else `None`."""
    for node in nodes:
        if node.op_type == "QuantizeLinear" and not _is_by_rows(node):
            dtype = node.outputs[0].dtype
            return "fp8" if dtype is not None and dtype.is_floating_point() else "int8"
    return None


def _is_by_rows(node: ir.Node) -> bool:
    """Tell whether what is rounded is read as it is, alone or beside other columns, and not widened first."""
    readers = [user for user, _ in node.outputs[0].uses()]
    while passed := [user for user in readers if user.op_type in _BESIDE]:
        readers = [user for one in passed for user, _ in one.outputs[0].uses()]
    return _BY_ROWS in {user.op_type for user in readers}


def weight_bits(node: ir.Node) -> int | None:
    """Return how many bits the weights have that an operator widens or multiplies by; `None` for any other operator.

    Of weights of 12 bits it is 8, those of their upper part.
    """
    if node.op_type == "MatMulNBits":
        bits = node.attributes["bits"].as_int()
        return None if _other_bits(node) > bits else bits
    if _looks_up_upper(node) or node.op_type == _BY_ROWS:
        return 8
    value = node.inputs[0] if node.op_type in {"Cast", "DequantizeLinear"} else None
    if value is None or value.dtype is None or (node.op_type == "Cast" and value.dtype != ir.DataType.INT8):
        return None
    return value.dtype.bitwidth

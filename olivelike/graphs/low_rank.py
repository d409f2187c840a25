"""A network whose layers take the factors of LoRAs as inputs: made of a written graph, over its weights.

A layer y = x·W becomes y = x·W + strength · (x·down)·up. The inputs have values of their own, of rank 0, so that who
feeds none gets the plain network; ONNX Runtime calls them overridable initializers, and its adapters
(`RunOptions.add_active_adapter`) feed them by name.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import CONTRIB, GraphEditor
from olivelike.graphs.editing.values import dims_of
from olivelike.model.low_rank_inputs import DOWN, UP, factor_input, strength_input

if TYPE_CHECKING:
    from olivelike.graphs.editing.values import Attributes, Dims

MARK: Final = "olivelike.lora_inputs"
"""Metadata key of a graph that is to have such a one beside it; its value is a `Choice`, as JSON."""
_PRODUCTS: Final = frozenset({
    ("", "MatMul"), ("", "Gemm"), ("", "Conv"), (CONTRIB, "MatMulNBits"), (CONTRIB, "NhwcConv"), (CONTRIB, "Attention"),
})  # fmt: skip
"""Operators that multiply what they take first by a weight that they take second."""
_CONVOLUTIONS: Final = ("Conv", "NhwcConv")
_MATRIX, _FILTERS = 2, 4
"""Axes of weights."""


@dataclass(frozen=True)
class LowRankLayer:
    """A product of a graph that can take factors."""

    initializer: str
    """Name of its weight; of one in several parts, the first."""
    node: ir.Node


@dataclass(frozen=True)
class Choice:
    """What a graph takes LoRAs for."""

    slots: int
    """LoRAs at once."""
    layers: tuple[str, ...] = ("*",)
    """Patterns of names of parameters, as `fnmatch` knows them; a layer is taken if one of its parameters fits one."""
    convolutions: str = "points"
    """Which take factors: `none`, `points` (of one pixel), `all`."""

    def takes(self, parameters: Sequence[tuple[str, Sequence[int]]]) -> bool:
        """Tell whether the layer of a weight takes factors, by the parameters of the weight and their shapes."""
        fits = any(fnmatch.fnmatchcase(one, pattern) for one, _ in parameters for pattern in self.layers)
        if len(parameters[0][1]) == _MATRIX or self.convolutions == "all":
            return fits
        return fits and self.convolutions == "points" and tuple(parameters[0][1][2:]) == (1, 1)


def mark(model: ir.Model, choice: Choice) -> None:
    """Have a graph whose layers take factors written beside this one."""
    model.metadata_props[MARK] = json.dumps([choice.slots, choice.layers, choice.convolutions])


def take_mark(model: ir.Model) -> Choice | None:
    """Take the mark off a graph, in place, and return what it says; `None` if it has none."""
    words = model.metadata_props.pop(MARK, None)
    if words is None:
        return None
    slots, layers, convolutions = json.loads(words)
    return Choice(slots, tuple(layers), convolutions)


def low_rank_layers(
    model: ir.Model, made_of: Mapping[str, Sequence[tuple[str, Sequence[int]]]], choice: Choice
) -> list[LowRankLayer]:
    """Return the layers of a written graph that can take factors, in order; none that makes an output of the network.

    Args:
        model: Weights are initializers in it.
        made_of: Per initializer, name and shape of each parameter that it was derived from.
        choice: Says which.
    """
    found: dict[str, LowRankLayer] = {}
    for node in model.graph:
        name = _weight_of(node, made_of)
        if name is None or name in found or any(output.is_graph_output() for output in node.outputs):
            continue
        if choice.takes(made_of[name]):
            found[name] = LowRankLayer(name, node)
    return list(found.values())


def _weight_of(node: ir.Node, made_of: Mapping[str, Sequence[tuple[str, Sequence[int]]]]) -> str | None:
    """Return the initializer that a node multiplies by, if that is a matrix, or a convolution's filters."""
    weight = node.inputs[1] if (node.domain, node.op_type) in _PRODUCTS and len(node.inputs) > 1 else None
    if weight is None:
        return None
    is_convolution = node.op_type in _CONVOLUTIONS
    if is_convolution and "group" in node.attributes and node.attributes["group"].as_int() != 1:
        return None
    name = next((one for one in _sources(weight) if one in made_of), None)
    fits = name is not None and all(
        len(shape) == (_FILTERS if is_convolution else _MATRIX) for _, shape in made_of[name]
    )
    return name if fits and not (is_convolution and len(made_of[str(name)]) > 1) else None


def _sources(value: ir.Value) -> list[str]:
    """Return the initializers that a constant value is computed from, and none for one that depends on inputs."""
    pending, names = [value], list[str]()
    while pending:
        one = pending.pop()
        if one.is_graph_input():
            return []
        if one.is_initializer():
            names.append(str(one.name))
        elif (node := one.producer()) is not None:
            pending.extend(operand for operand in reversed(node.inputs) if operand is not None)
    return names


def add_low_rank_inputs(model: ir.Model, layers: Sequence[LowRankLayer], slots: int) -> None:
    """Give layers of a graph, in place, the inputs of so many LoRAs at once, and a strength for each.

    Factors are of the type that the layer computes in. `down` is (features in, rank) and `up` (rank, features out); of
    a convolution they are filters, `down` of the layer's own size and `up` of one pixel.

    Raises `PassError` if there is no layer.
    """
    if not layers:
        raise PassError("no layer of the graph can take a LoRA; name layers that are there, such as `layers: ['*']`")
    editor = GraphEditor(model)
    first = next(iter(model.graph))
    strengths = [_input(editor, strength_input(slot), (), np.ones((), np.float32)) for slot in range(slots)]
    scales: dict[ir.DataType, list[ir.Value]] = {ir.DataType.FLOAT: strengths}
    for layer in layers:
        dtype = _dtype(layer.node)
        if dtype not in scales:
            scales[dtype] = [
                editor.add(
                    "Cast", [value], (), before=first, name=f"{value.name}.cast", dtype=dtype, block="",
                    attributes={"to": int(dtype)},
                )
                for value in strengths
            ]  # fmt: skip
        if layer.node.op_type == "Attention":
            _widen(editor, layer, scales[dtype])
        else:
            _add_products(editor, layer, scales[dtype])
    editor.import_contrib()


def _input(editor: GraphEditor, name: str, shape: Dims, default: np.ndarray[Any, Any]) -> ir.Value:
    """Return a new input, with a value for who does not feed it."""
    value = editor.value(name, shape, ir.DataType.from_numpy(default.dtype))
    value.const_value = ir.tensor(default, name=value.name)
    editor.graph.inputs.append(value)
    editor.graph.register_initializer(value)
    return value


def _dtype(node: ir.Node) -> ir.DataType:
    """Return the type that a layer computes in: that of what it makes."""
    return next((value.dtype for value in (*node.outputs, node.inputs[0]) if value and value.dtype), ir.DataType.FLOAT)


def _taken(node: ir.Node) -> ir.Value:
    taken = node.inputs[0]
    assert taken is not None
    return taken


def _add_products(editor: GraphEditor, layer: LowRankLayer, scales: Sequence[ir.Value]) -> None:
    """Add to what a layer makes, with its bias, the products of the factors."""
    made = _with_bias(layer.node)
    users, before = made.uses(), _first_user(made)
    if layer.node.op_type in _CONVOLUTIONS:
        changed = made
        for slot, scale in enumerate(scales):
            change = _convolved(editor, layer, slot, scale, before)
            changed = editor.add("Add", [changed, change], dims_of(made), before=before, name=f"{made.name}.changed")
    else:
        changed = _multiplied(editor, layer, scales, made, before)
    for user, index in users:
        user.replace_input_with(index, changed)


def _with_bias(node: ir.Node) -> ir.Value:
    """Return what a layer makes, behind the sum with its bias: ONNX Runtime makes one operator of the two."""
    made = node.outputs[0]
    user, index = next(iter(made.uses()))
    if len(made.uses()) != 1 or user.op_type != "Add" or user.outputs[0].is_graph_output():
        return made
    other = user.inputs[1 - index]
    return user.outputs[0] if other is not None and _sources(other) and user.outputs[0].uses() else made


def _first_user(value: ir.Value) -> ir.Node:
    users = {id(user) for user, _ in value.uses()}
    node = value.producer()
    assert node is not None
    assert node.graph is not None
    return next(other for other in node.graph if id(other) in users)


def _unknown(value: ir.Value) -> Dims:
    """Return a shape of the same rank of which nothing else is known: memory is not planned by it."""
    return (None,) * len(dims_of(value))


def _joined(
    editor: GraphEditor, layer: LowRankLayer, scales: Sequence[ir.Value], before: ir.Node
) -> tuple[ir.Value, ir.Value]:
    """Return the factors of all LoRAs as one pair, (features in, ranks) and (ranks, features out), by strength."""
    (taken, made), dtype = _features(layer.node), _dtype(layer.node)
    downs, ups = list[ir.Value](), list[ir.Value]()
    for slot, scale in enumerate(scales):
        down, up = (
            _input(editor, factor_input(slot, layer.initializer, factor), shape, np.zeros(default, dtype.numpy()))
            for factor, shape, default in ((DOWN, (taken, None), (taken, 0)), (UP, (None, made), (0, made)))
        )
        downs.append(down)
        ups.append(editor.add("Mul", [up, scale], (None, made), before=before, name=f"{up.name}.scaled"))
    if len(scales) == 1:
        return downs[0], ups[0]
    name = layer.initializer
    return (
        editor.add("Concat", downs, (taken, None), before=before, name=f"{name}.{DOWN}", attributes={"axis": 1}),
        editor.add("Concat", ups, (None, made), before=before, name=f"{name}.{UP}", attributes={"axis": 0}),
    )


def _features(node: ir.Node) -> tuple[int, int]:
    """Return the features that a product takes and makes."""
    if node.op_type == "MatMulNBits":
        return node.attributes["K"].as_int(), node.attributes["N"].as_int()
    weight = node.inputs[1]
    assert weight is not None
    dims = dims_of(weight)
    if len(dims) != _MATRIX or not all(isinstance(dim, int) for dim in dims):
        raise PassError(f"the layer {weight.name!r} has a weight of unknown size; leave it out of `layers`")
    taken, made = (int(dim) for dim in dims if isinstance(dim, int))
    is_turned = "transB" in node.attributes and node.attributes["transB"].as_int() == 1
    return (made, taken) if is_turned else (taken, made)


def _multiplied(
    editor: GraphEditor, layer: LowRankLayer, scales: Sequence[ir.Value], made: ir.Value, before: ir.Node
) -> ir.Value:
    """Return x·down·up + what is made: `Gemm` adds where it multiplies, and without ranks copies."""
    taken, dims = _taken(layer.node), dims_of(made)
    down, up = _joined(editor, layer, scales, before)
    name = f"{made.name}.changed"
    is_flat = len(dims) == _MATRIX

    def flat(value: ir.Value, features: int) -> ir.Value:
        if is_flat:
            return value
        shape = editor.shape_constant(-1, features)
        return editor.add("Reshape", [value, shape], (None, features), before=before, name=f"{value.name}.flat")

    features, others = _features(layer.node)
    low = editor.add(
        "MatMul", [flat(taken, features), down], (None, None), before=before, name=f"{name}.low", dtype=made.dtype
    )
    product = editor.add(
        "Gemm",
        [low, up, flat(made, others)],
        (None, others),
        before=before,
        name=f"{name}.product" if not is_flat else name,
    )
    if is_flat:
        return product
    shape = editor.add("Shape", [made], (len(dims),), before=before, name=f"{name}.shape", dtype=ir.DataType.INT64)
    return editor.add("Reshape", [product, shape], dims, before=before, name=name)


def _convolved(editor: GraphEditor, layer: LowRankLayer, slot: int, scale: ir.Value, before: ir.Node) -> ir.Value:
    node, dtype = layer.node, _dtype(layer.node)
    taken, weight = _taken(node), node.inputs[1]
    assert weight is not None
    last = node.op_type == "NhwcConv"
    size, *inner = [int(dim) for dim in dims_of(weight) if isinstance(dim, int)]
    shape = (size, 1, 1, 0) if last else (size, 0, 1, 1)
    down, up = (
        _input(editor, factor_input(slot, layer.initializer, factor), (None,) * 4, np.zeros(default, dtype.numpy()))
        for factor, default in ((DOWN, (0, *inner)), (UP, shape))
    )
    attributes = {attribute.name: attribute.value for attribute in node.attributes.values()}

    def filtered(value: ir.Value, filters: ir.Value, attributes: Attributes | None = None) -> ir.Value:
        return editor.add(
            node.op_type, [value, filters], _unknown(taken), before=before, name=f"{filters.name}.product",
            attributes=attributes, domain=node.domain, dtype=dtype,
        )  # fmt: skip

    low = editor.add(
        "Mul", [filtered(taken, down, attributes), scale], _unknown(taken), before=before, name=f"{down.name}.scaled"
    )
    return filtered(low, up)


def _widen(editor: GraphEditor, layer: LowRankLayer, scales: Sequence[ir.Value]) -> None:
    """Let the operator that projects and attends take x·down as more features, and `up` as their weights."""
    node = layer.node
    taken, weight = _taken(node), node.inputs[1]
    assert weight is not None
    down, up = _joined(editor, layer, scales, node)
    dims, name = dims_of(taken), layer.initializer
    low = editor.add("MatMul", [taken, down], _unknown(taken), before=node, name=f"{name}.low")
    wide = editor.add(
        "Concat", [taken, low], (*dims[:-1], None), before=node, name=f"{name}.taken", attributes={"axis": -1}
    )
    weights = editor.add(
        "Concat", [weight, up], (None, dims_of(weight)[1]), before=node, name=f"{name}.wide", attributes={"axis": 0}
    )
    node.replace_input_with(0, wide)
    node.replace_input_with(1, weights)

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
    """Add to what a layer makes the products of the factors, all of them in one sum."""
    node = layer.node
    output = node.outputs[0]
    users = output.uses()
    before = _first_user(node)
    product = _convolved if node.op_type in _CONVOLUTIONS else _multiplied
    changes = [product(editor, layer, slot, scale, before) for slot, scale in enumerate(scales)]
    total = changes[0]
    for change in changes[1:]:  # Of factors that are not fed, a column alone: their sum costs nothing.
        total = editor.add("Add", [total, change], _unknown(output), before=before, name=f"{output.name}.changes")
    changed = editor.add("Add", [output, total], dims_of(output), before=before, name=f"{output.name}.changed")
    for user, index in users:
        user.replace_input_with(index, changed)


def _first_user(node: ir.Node) -> ir.Node:
    users = {id(user) for value in node.outputs for user, _ in value.uses()}
    assert node.graph is not None
    return next(other for other in node.graph if id(other) in users)


def _unknown(value: ir.Value) -> Dims:
    """Return a shape of the same rank of which nothing else is known: memory is not planned by it."""
    return (None,) * len(dims_of(value))


def _scaled_down(
    editor: GraphEditor, layer: LowRankLayer, slot: int, scale: ir.Value, before: ir.Node, width: int
) -> ir.Value:
    """Return strength · (x·down), of the rank of a LoRA."""
    taken, dtype = _taken(layer.node), _dtype(layer.node)
    down = _input(
        editor, factor_input(slot, layer.initializer, DOWN), (width, None), np.zeros((width, 0), dtype.numpy())
    )
    low = editor.add("MatMul", [taken, down], _unknown(taken), before=before, name=f"{down.name}.product", dtype=dtype)
    return editor.add("Mul", [low, scale], _unknown(taken), before=before, name=f"{down.name}.scaled")


def _multiplied(editor: GraphEditor, layer: LowRankLayer, slot: int, scale: ir.Value, before: ir.Node) -> ir.Value:
    low = _scaled_down(editor, layer, slot, scale, before, _width(layer.node))
    # One column for all features: the sum with it is cheap, and rank 0 makes it zeros.
    up = _input(
        editor, factor_input(slot, layer.initializer, UP), (None, None), np.zeros((0, 1), _dtype(layer.node).numpy())
    )
    return editor.add("MatMul", [low, up], _unknown(low), before=before, name=f"{up.name}.product")


def _width(node: ir.Node) -> int:
    """Return the features that a product takes."""
    if node.op_type == "MatMulNBits":
        return node.attributes["K"].as_int()
    weight = node.inputs[1]
    assert weight is not None
    dims = dims_of(weight)
    axis = 1 if node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int() else 0
    width = dims[axis] if dims else dims_of(_taken(node))[-1]
    if not isinstance(width, int):
        raise PassError(f"the layer {weight.name!r} takes features whose number is not known; leave it out of `layers`")
    return width


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
    width, made = dims_of(weight)
    lows, ups = list[ir.Value](), list[ir.Value]()
    for slot, scale in enumerate(scales):
        lows.append(_scaled_down(editor, layer, slot, scale, node, int(width)))  # type: ignore[arg-type]
        ups.append(
            _input(
                editor, factor_input(slot, layer.initializer, UP), (None, made),
                np.zeros((0, int(made)), _dtype(node).numpy()),  # type: ignore[arg-type]
            )
        )  # fmt: skip
    dims = dims_of(taken)
    wide = editor.add(
        "Concat", [taken, *lows], (*dims[:-1], None), before=node, name=f"{taken.name}.wide", attributes={"axis": -1}
    )
    weights = editor.add(
        "Concat", [weight, *ups], (None, made), before=node, name=f"{weight.name}.wide", attributes={"axis": 0}
    )
    node.replace_input_with(0, wide)
    node.replace_input_with(1, weights)

"""A network whose layers take the factors of LoRAs as inputs: made of a written graph, over its weights.

A layer y = x·W becomes y = x·W + strength · (x·down)·up. The inputs have values of their own, of rank 0, so that who
feeds none gets the plain network; ONNX Runtime calls them overridable initializers, and its adapters
(`RunOptions.add_active_adapter`) feed them by name. What is computed of factors is in branches that are taken if there
are any, which their sizes tell: there is nothing else to feed, and so nothing to forget. Where a client can't feed
such inputs, they have no values.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
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
    """A weight of a graph whose products can take factors."""

    initializer: str
    """Its name; of one in several parts, that of the first."""
    nodes: tuple[ir.Node, ...]
    """Products by it, in order; most have one."""


@dataclass(frozen=True)
class Choice:
    """What a graph takes LoRAs for."""

    slots: int
    """LoRAs at once."""
    layers: tuple[str, ...] = ("*",)
    """Patterns of names of parameters, as `fnmatch` knows them; a layer is taken if one of its parameters fits one."""
    convolutions: str = "points"
    """Which take factors: `none`, `points` (of one pixel), `all`."""
    defaults: bool = True
    """Whether inputs have values of their own."""

    def takes(self, parameters: Sequence[tuple[str, Sequence[int]]]) -> bool:
        """Tell whether the layer of a weight takes factors, by the parameters of the weight and their shapes."""
        fits = any(fnmatch.fnmatchcase(one, pattern) for one, _ in parameters for pattern in self.layers)
        if len(parameters[0][1]) == _MATRIX or self.convolutions == "all":
            return fits
        return fits and self.convolutions == "points" and tuple(parameters[0][1][2:]) == (1, 1)


def mark(model: ir.Model, choice: Choice) -> None:
    """Have a graph whose layers take factors written beside this one."""
    model.metadata_props[MARK] = json.dumps(astuple(choice))


def take_mark(model: ir.Model) -> Choice | None:
    """Take the mark off a graph, in place, and return what it says; `None` if it has none."""
    words = model.metadata_props.pop(MARK, None)
    if words is None:
        return None
    slots, layers, *rest = json.loads(words)
    return Choice(slots, tuple(layers), *rest)


def low_rank_layers(
    model: ir.Model, made_of: Mapping[str, Sequence[tuple[str, Sequence[int]]]], choice: Choice
) -> list[LowRankLayer]:
    """Return the layers of a written graph that can take factors, in order.

    None makes an output of the network, and none has a weight that does more than multiply.

    Args:
        model: Weights are initializers in it.
        made_of: Per initializer, name and shape of each parameter that it was derived from.
        choice: Says which.
    """
    found: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        name = _weight_of(node, made_of)
        if name is None or any(output.is_graph_output() for output in node.outputs):
            continue
        if choice.takes(made_of[name]):
            found.setdefault(name, []).append(node)
    return [
        LowRankLayer(name, tuple(nodes))
        for name, nodes in found.items()
        if set(nodes) >= set(_users(model.graph.initializers[name]))
    ]


def _users(constant: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that take a constant, or what is computed of constants alone, beside other things."""
    for user, _ in constant.uses():
        if _sources(user.outputs[0]):
            yield from _users(user.outputs[0])
        else:
            yield user


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


def add_low_rank_inputs(model: ir.Model, layers: Sequence[LowRankLayer], choice: Choice) -> None:
    """Give layers of a graph, in place, the inputs of as many LoRAs at once as wanted, and a strength for each.

    Factors are of the type that the layer computes in. `down` is (features in, rank) and `up` (rank, features out); of
    a convolution they are filters, `down` of the layer's own size and `up` of one pixel. Layers of one input have a
    branch, in which nothing is computed unless one of them has factors.

    Raises `PassError` if there is no layer.
    """
    if not layers:
        raise PassError("no layer of the graph can take a LoRA; name layers that are there, such as `layers: ['*']`")
    editor, slots = GraphEditor(model), choice.slots
    first, own_inputs = next(iter(model.graph)), len(model.graph.inputs)
    strengths = [_input(editor, strength_input(slot), (), np.ones((), np.float32)) for slot in range(slots)]
    scales: dict[ir.DataType, list[ir.Value]] = {ir.DataType.FLOAT: strengths}
    groups: dict[tuple[ir.Value, bool], list[tuple[ir.Node, _Factors]]] = {}
    for layer in layers:
        dtype = _dtype(layer.nodes[0])
        if dtype not in scales:
            scales[dtype] = [
                editor.add(
                    "Cast", [value], (), before=first, name=f"{value.name}.cast", dtype=dtype, block="",
                    attributes={"to": int(dtype)},
                )
                for value in strengths
            ]  # fmt: skip
        factors = _factors(editor, layer, scales[dtype])
        for node in layer.nodes:
            if node.op_type == "Attention":
                _widen(editor, node, factors)
            else:
                groups.setdefault((_taken(node), node.op_type in _CONVOLUTIONS), []).append((node, factors))
    for (_, are_convolutions), members in groups.items():
        _add_changes(editor, members, _convolved if are_convolutions else _multiplied)
    if not choice.defaults:
        for value in model.graph.inputs[own_inputs:]:
            del model.graph.initializers[str(value.name)]
            value.const_value = None
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


@dataclass(frozen=True)
class _Factors:
    """Inputs of a layer, by LoRA, and the strengths."""

    name: str
    downs: tuple[ir.Value, ...]
    ups: tuple[ir.Value, ...]
    scales: Sequence[ir.Value]
    down_axis: int
    """Axis of the rank."""
    up_axis: int

    def joined(self, editor: GraphEditor, before: ir.Node) -> tuple[ir.Value, ir.Value]:
        """Return the factors of all LoRAs as one pair, by strength."""
        ups = [
            editor.add("Mul", [up, scale], dims_of(up), before=before, name=f"{up.name}.scaled")
            for up, scale in zip(self.ups, self.scales, strict=True)
        ]
        pairs = ((DOWN, self.downs, self.down_axis), (UP, ups, self.up_axis))
        down, up = (
            editor.add(
                "Concat", values, dims_of(values[0]), before=before, name=f"{self.name}.{factor}",
                attributes={"axis": axis},
            )
            if len(values) > 1
            else values[0]
            for factor, values, axis in pairs
        )  # fmt: skip
        return down, up


def _factors(editor: GraphEditor, layer: LowRankLayer, scales: Sequence[ir.Value]) -> _Factors:
    node = layer.nodes[0]
    down_shape, down_axis, up_shape, up_axis = _shapes(node)
    dtype = _dtype(node).numpy()
    downs, ups = (
        tuple(
            _input(editor, factor_input(slot, layer.initializer, factor), _ranked(shape, axis), np.zeros(shape, dtype))
            for slot in range(len(scales))
        )
        for factor, shape, axis in ((DOWN, down_shape, down_axis), (UP, up_shape, up_axis))
    )
    return _Factors(layer.initializer, downs, ups, scales, down_axis, up_axis)


def _shapes(node: ir.Node) -> tuple[tuple[int, ...], int, tuple[int, ...], int]:
    """Return the shape of `down` of rank 0 and the axis of the rank, and those of `up`."""
    if node.op_type not in _CONVOLUTIONS:
        taken, made = _features(node)
        return (taken, 0), 1, (0, made), 0
    weight = node.inputs[1]
    assert weight is not None
    made, *inner = (int(dim) for dim in dims_of(weight) if isinstance(dim, int))
    last = node.op_type == "NhwcConv"
    return (0, *inner), 0, (made, 1, 1, 0) if last else (made, 0, 1, 1), 3 if last else 1


def _ranked(shape: Sequence[int], axis: int) -> Dims:
    return tuple(None if index == axis else size for index, size in enumerate(shape))


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


def _unknown(value: ir.Value) -> Dims:
    """Return a shape of the same rank of which nothing else is known: memory is not planned by it."""
    return (None,) * len(dims_of(value))


@dataclass(frozen=True)
class _Change:
    """What LoRAs add to what a layer makes."""

    to: ir.Value
    """What they add it to."""
    total: ir.Value
    """What then is in place of this; another value than `to` where a bias is added behind, which the change brings."""
    active: ir.Value
    """The change by their factors."""
    inactive: ir.Value
    """The change without any, which is the bias or 0."""


def _add_changes(
    editor: GraphEditor,
    members: Sequence[tuple[ir.Node, _Factors]],
    change: Callable[[GraphEditor, ir.Node, _Factors, ir.Node], _Change],
) -> None:
    """Add changes to what layers of one input make; they are computed in a branch that is taken if one has factors."""
    before = min((_place(node) for node, _ in members), key=list(editor.graph).index)
    is_active = _is_active(editor, [factors for _, factors in members], before)
    known = set(editor.graph)
    changes = [change(editor, node, factors, before) for node, factors in members]
    made = [node for node in editor.graph if node not in known]
    editor.graph.remove(made)
    others = [
        ir.node("Identity", [one], outputs=[editor.value(f"{made.name}.none", dims_of(one), made.dtype)])
        for one, made in ((change.inactive, change.active) for change in changes)
    ]
    branches = {
        "then_branch": ir.Graph([], [one.active for one in changes], nodes=made, name=f"{before.name}.active"),
        "else_branch": ir.Graph([], [node.outputs[0] for node in others], nodes=others, name=f"{before.name}.none"),
    }
    outputs = [editor.value(f"{one.active.name}.change", _unknown(one.to), one.active.dtype) for one in changes]
    chosen = ir.node("If", [is_active], branches, outputs=outputs, name=outputs[0].name)
    editor.graph.insert_before(before, chosen)
    for one, added in zip(changes, outputs, strict=True):
        users, place = one.total.uses(), _first_user(one.to)
        changed = editor.add("Add", [one.to, added], dims_of(one.to), before=place, name=f"{one.total.name}.changed")
        for user, index in users:
            user.replace_input_with(index, changed)
        if one.total is not one.to and (node := one.total.producer()) is not None:
            editor.prune(node)


def _is_active(editor: GraphEditor, layers: Sequence[_Factors], before: ir.Node) -> ir.Value:
    """Return whether a factor of one of the layers has numbers; half of a pair does, so that the product refuses it."""
    name = f"{before.name}.lora"
    sizes = [
        editor.add("Size", [factor], (), before=before, name=f"{factor.name}.size", dtype=ir.DataType.INT64)
        for layer in layers
        for factor in (*layer.downs, *layer.ups)
    ]
    most = editor.add("Max", sizes, (), before=before, name=f"{name}.size")
    return editor.add(
        "Cast", [most], (), before=before, name=f"{name}.is_active", dtype=ir.DataType.BOOL,
        attributes={"to": int(ir.DataType.BOOL)},
    )  # fmt: skip


def _zero(editor: GraphEditor, value: ir.Value) -> ir.Value:
    """Return a 0 of as many axes and of the type of a value."""
    assert value.dtype is not None
    zero: Any = np.zeros((1,) * len(dims_of(value)))
    return editor.constant(zero, value.dtype.numpy().type)


def _multiplied(editor: GraphEditor, node: ir.Node, factors: _Factors, before: ir.Node) -> _Change:
    """Return x·down·up, with the bias that is added behind the product, if one is."""
    taken, made = _taken(node), node.outputs[0]
    down, up = factors.joined(editor, before)
    name = f"{made.name}.lora"
    low = editor.add("MatMul", [taken, down], _unknown(made), before=before, name=f"{name}.low", dtype=made.dtype)
    total, bias = _with_bias(node)
    if bias is None or len(dims_of(made)) == _MATRIX:  # Of matrices ONNX Runtime adds the bias where it multiplies.
        product = editor.add("MatMul", [low, up], _unknown(made), before=before, name=name)
        return _Change(total, total, product, _zero(editor, made))
    attributes = {"axis": len(dims_of(made)) - 1}
    flat = editor.add("Flatten", [low], (None, None), before=before, name=f"{name}.flat", attributes=attributes)
    product = editor.add("Gemm", [flat, up, bias], (None, None), before=before, name=f"{name}.product")
    sizes = editor.add(
        "Shape", [taken], (None,), before=before, name=f"{name}.sizes", dtype=ir.DataType.INT64, attributes={"end": -1}
    )
    features = editor.shape_constant(_features(node)[1])
    shape = editor.add(
        "Concat", [sizes, features], (None,), before=before, name=f"{name}.shape", attributes={"axis": 0}
    )
    return _Change(made, total, editor.add("Reshape", [product, shape], _unknown(made), before=before, name=name), bias)


def _with_bias(node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """Return what a product makes with its bias, and the bias, if it is added behind it."""
    made = node.outputs[0]
    user, index = next(iter(made.uses()))
    if len(made.uses()) != 1 or user.op_type != "Add" or user.outputs[0].is_graph_output():
        return made, None
    other = user.inputs[1 - index]
    fits = other is not None and other.is_initializer() and len(dims_of(other)) == 1 and user.outputs[0].uses()
    return (user.outputs[0], other) if fits else (made, None)


def _place(node: ir.Node) -> ir.Node:
    """Return the node before which the change of a layer is computed: by then all is there that it is made of."""
    followed, moves = _followed(node.outputs[0]) if node.op_type in _CONVOLUTIONS else (None, [])
    return _first_user(followed) if followed is not None and moves else node


def _first_user(value: ir.Value) -> ir.Node:
    users = {id(user) for user, _ in value.uses()}
    node = value.producer()
    assert node is not None
    assert node.graph is not None
    return next(other for other in node.graph if id(other) in users)


def _convolved(editor: GraphEditor, node: ir.Node, factors: _Factors, before: ir.Node) -> _Change:
    """Return what the filters `down`, of a convolution's size, and then `up`, of a point, make of what it takes."""
    made = node.outputs[0]
    down, up = factors.joined(editor, before)
    attributes = {attribute.name: attribute.value for attribute in node.attributes.values()}

    def filtered(value: ir.Value, filters: ir.Value, name: str, attributes: Attributes | None = None) -> ir.Value:
        return editor.add(
            node.op_type, [value, filters], _unknown(made), before=before, name=name,
            attributes=attributes, domain=node.domain, dtype=_dtype(node),
        )  # fmt: skip

    change = filtered(filtered(_taken(node), down, f"{made.name}.lora.low", attributes), up, f"{made.name}.lora")
    followed, moves = _followed(made)
    for move in moves:
        inputs, dims = [change, *move.inputs[1:]], _unknown(move.outputs[0])
        attributes = {attribute.name: attribute.value for attribute in move.attributes.values()}
        change = editor.add(move.op_type, inputs, dims, before=before, name=f"{made.name}.lora", attributes=attributes)
    return _Change(followed, followed, change, _zero(editor, followed))


def _followed(made: ir.Value) -> tuple[ir.Value, list[ir.Node]]:
    """Return what sums and moves make of a convolution's output while nothing else takes it, and the moves in order.

    A change is added behind these: ONNX Runtime merges a convolution with the sum behind it, and so as in the plain
    network.
    """
    moves: list[ir.Node] = []
    while len(made.uses()) == 1:
        user, index = next(iter(made.uses()))
        if user.domain or user.outputs[0].is_graph_output():
            break
        if user.op_type == "Transpose" or (user.op_type == "Reshape" and index == 0):
            moves.append(user)
        elif user.op_type != "Add":
            break
        made = user.outputs[0]
    return made, moves


def _widen(editor: GraphEditor, node: ir.Node, factors: _Factors) -> None:
    """Let the operator that projects and attends take x·down as more features, and `up` as their weights."""
    taken, weight = _taken(node), node.inputs[1]
    assert weight is not None
    dims, name = dims_of(taken), weight.name
    down, up = factors.joined(editor, node)
    low = editor.add("MatMul", [taken, down], _unknown(taken), before=node, name=f"{name}.low")
    wide = editor.add(
        "Concat", [taken, low], (*dims[:-1], None), before=node, name=f"{name}.taken", attributes={"axis": -1}
    )
    weights = editor.add(
        "Concat", [weight, up], (None, dims_of(weight)[1]), before=node, name=f"{name}.wide",
        attributes={"axis": 0},
    )  # fmt: skip
    node.replace_input_with(0, wide)
    node.replace_input_with(1, weights)

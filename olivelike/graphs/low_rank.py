"""A network whose layers take the factors of LoRAs as inputs: made of a written graph, over its weights.

A layer y = x·W becomes y = x·W + strength · (x·down)·up, or y = x·(W + strength · down·up) where that is cheaper. The
inputs have values of their own, of rank 0, so that who feeds none gets the plain network; ONNX Runtime calls them
overridable initializers, and its adapters (`RunOptions.add_active_adapter`) feed them by name. What is computed of
factors is in branches that are taken if there are any, which their sizes tell: there is nothing else to feed, and so
nothing to forget. Where a client can't feed such inputs, they have no values.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import CONTRIB, GraphEditor
from olivelike.graphs.editing.values import attribute, dims_of, only_user, perm_of, producer
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
_ATTENDING: Final = frozenset({(CONTRIB, "MultiHeadAttention"), ("", "Attention")})
_MERGED_FEATURES: Final = 640
"""Most features that a layer takes whose weight gets down·up added to it: few, for the many rows of such layers."""
_GATED_LAYERS: Final = 16
"""Layers that are asked together whether they have factors, about those of a transformer's block."""
_IMAGE: Final = (0, 3, 1, 2)
"""Axes of an image, from those of its rows with channels last."""
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
    a convolution they are filters, `down` of the layer's own size and `up` of one pixel. Layers of one input, or those
    that one operator attends to, have a branch, which is taken if one of them has factors. A gate for several branches
    tells, so that little is asked where there are none.

    Raises `PassError` if there is no layer.
    """
    if not layers:
        raise PassError("no layer of the graph can take a LoRA; name layers that are there, such as `layers: ['*']`")
    editor, slots = GraphEditor(model), choice.slots
    first, own_inputs = next(iter(model.graph)), len(model.graph.inputs)
    strengths = [_input(editor, strength_input(slot), (), np.ones((), np.float32)) for slot in range(slots)]
    scales: dict[ir.DataType, list[ir.Value]] = {ir.DataType.FLOAT: strengths}
    groups: dict[tuple[_Way, object], _Layers] = {}
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
                groups.setdefault(_way(node), []).append((node, factors))
    places = {node: place for place, node in enumerate(editor.graph)}
    gates = [
        (chunk, min((node for *_, members in chunk for node, _ in members), key=places.__getitem__))
        for chunk in _chunks([(way, members) for (way, _), members in groups.items()], places)
    ]
    found = [one for chunk, before in gates for one in _gate(editor, chunk, before)]
    for wanted, change in (("add", _add_changes), ("merge", _merge), ("attend", _attend)):  # Others move nodes.
        for (way, members), given in found:
            if way == wanted:
                change(editor, members, given)
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


_Layers: TypeAlias = list[tuple[ir.Node, _Factors]]
_Way: TypeAlias = Literal["add", "merge", "attend"]
_Group: TypeAlias = tuple[_Way, _Layers]
"""Layers whose changes are computed in one branch, and how."""


def _way(node: ir.Node) -> tuple[_Way, object]:
    """Return how a layer is changed, and what those layers have in common that share a branch."""
    if _is_merged(node):
        return "merge", _taken(node)
    user = _attention(node)
    return ("add", (_taken(node), node.op_type in _CONVOLUTIONS)) if user is None else ("attend", user)


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


def _add_changes(editor: GraphEditor, members: _Layers, given: Sequence[ir.Value]) -> None:
    """Add changes to what layers of one input make; they are computed in a branch that is taken if one has factors."""
    before = min((_place(node) for node, _ in members), key=list(editor.graph).index)
    change = _convolved if members[0][0].op_type in _CONVOLUTIONS else _multiplied
    (is_active,) = given
    with _branch(editor, before, "active") as active:
        changes = [change(editor, node, factors, before) for node, factors in members]
        active.results += [one.active for one in changes]
    with _branch(editor, before, "none") as inactive:
        inactive.results += [_copied(editor, one.inactive, one.active, before) for one in changes]
    outputs = _choose(editor, before, is_active, active, inactive, [_unknown(one.to) for one in changes])
    for one, chosen in zip(changes, outputs, strict=True):
        users, place = one.total.uses(), _first_user(one.to)
        changed = editor.add("Add", [one.to, chosen], dims_of(one.to), before=place, name=f"{one.total.name}.changed")
        for user, index in users:
            user.replace_input_with(index, changed)
        if one.total is not one.to and (node := one.total.producer()) is not None:
            editor.prune(node)


def _attention(node: ir.Node) -> ir.Node | None:
    """Return the operator that attends to what a layer makes, if that is all that takes it."""
    user = only_user(node.outputs[0])
    if user is None or (user.domain, user.op_type) not in _ATTENDING:
        return None
    return None if any(output.is_graph_output() for output in user.outputs) else user


def _attend(editor: GraphEditor, members: _Layers, given: Sequence[ir.Value]) -> None:
    """Let a branch attend to what layers make with their changes, another to that without: neither copies it."""
    user = _attention(members[0][0])
    assert user is not None
    (is_active,) = given
    with _branch(editor, user, "active") as active:
        inputs = list(user.inputs)
        for node, factors in members:
            made = node.outputs[0]
            down, up = factors.joined(editor, user)
            name = f"{made.name}.lora"
            low = editor.add("MatMul", [_taken(node), down], _unknown(made), before=user, name=f"{name}.low")
            change = editor.add("MatMul", [low, up], _unknown(made), before=user, name=name)
            inputs[inputs.index(made)] = editor.add(
                "Add", [made, change], dims_of(made), before=user, name=f"{name}.changed"
            )
        active.results += _again(editor, user, inputs)
    _swap(editor, is_active, active, [user], user.outputs)


def _is_merged(node: ir.Node) -> bool:
    """Tell whether adding down·up to the weight is cheaper than x·down·up."""
    weight = node.inputs[1]
    return (
        node.op_type == "MatMul"
        and weight is not None
        and weight.is_initializer()
        and weight.dtype == _dtype(node) == ir.DataType.FLOAT
        and _features(node)[0] <= _MERGED_FEATURES
    )


def _changed_weights(editor: GraphEditor, members: _Layers, before: ir.Node) -> list[ir.Value]:
    """Return the weights of layers with down·up in them, and whether that is other than 0 in one."""
    weights, sums = [], []
    for node, factors in members:
        down, up = factors.joined(editor, before)
        weight, name = node.inputs[1], f"{factors.name}.changed"
        assert weight is not None
        weights.append(editor.add("Gemm", [down, up, weight], dims_of(weight), before=before, name=name))
        sums.append(editor.add("ReduceL1", [up], (), before=before, name=f"{name}.sum", attributes={"keepdims": 0}))
    return [*weights, _truth(editor, sums, f"{members[0][0].name}.changes", before)]


def _merge(editor: GraphEditor, members: _Layers, given: Sequence[ir.Value]) -> None:
    """Let a branch multiply by weights that were changed, another by those that are constants.

    ONNX Runtime packs those, and then rounds otherwise: where all changes are 0 the latter is taken.
    """
    before = members[0][0]
    *weights, changes = given
    nodes, outputs = list[ir.Node](), list[ir.Value]()
    with _branch(editor, before, "changed") as changed:
        for (node, _), weight in zip(members, weights, strict=True):
            total, bias = _with_bias(node)
            made = _again(editor, node, [node.inputs[0], weight], before)
            nodes.append(node)
            if bias is not None and (user := total.producer()) is not None:
                inputs = [made[0] if one is node.outputs[0] else one for one in user.inputs]
                made = _again(editor, user, inputs, before)
                nodes.append(user)
            changed.results += made
            outputs.append(total)
    _swap(editor, changes, changed, nodes, outputs)


@dataclass
class _Branch:
    """What a branch computes, without inputs of its own."""

    name: str
    nodes: list[ir.Node] = field(default_factory=list)
    results: list[ir.Value] = field(default_factory=list)

    def graph(self) -> ir.Graph:
        return ir.Graph([], self.results, nodes=self.nodes, name=self.name)


@contextmanager
def _branch(editor: GraphEditor, before: ir.Node, name: str) -> Iterator[_Branch]:
    """Yield a branch that gets the nodes that are added before a node in the block."""
    known, branch = set(editor.graph), _Branch(f"{before.name}.{name}")
    yield branch
    branch.nodes += [node for node in editor.graph if node not in known]
    editor.graph.remove(branch.nodes)


def _choose(
    editor: GraphEditor, before: ir.Node, condition: ir.Value, then: _Branch, other: _Branch, shapes: Sequence[Dims]
) -> list[ir.Value]:
    """Insert the choice of one of two branches, and return its outputs."""
    outputs = [
        editor.value(f"{one.name}.chosen", dims, one.dtype) for one, dims in zip(then.results, shapes, strict=True)
    ]
    branches = {"then_branch": then.graph(), "else_branch": other.graph()}
    editor.graph.insert_before(before, ir.node("If", [condition], branches, outputs=outputs, name=outputs[0].name))
    return outputs


def _swap(
    editor: GraphEditor, condition: ir.Value, then: _Branch, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]
) -> None:
    """Put a choice in place of nodes: what a branch computes, or the nodes themselves."""
    before = min(nodes, key=list(editor.graph).index)
    other = _Branch(f"{before.name}.plain", list(nodes), list(outputs))
    users = [tuple(one.uses()) for one in outputs]
    place = ir.node("Identity", [condition], name=f"{before.name}.place")
    editor.graph.insert_before(before, place)
    editor.graph.remove(list(nodes))
    chosen = _choose(editor, place, condition, then, other, [_unknown(one) for one in outputs])
    editor.graph.remove(place)
    for uses, value in zip(users, chosen, strict=True):
        for user, index in uses:
            user.replace_input_with(index, value)


def _again(
    editor: GraphEditor, node: ir.Node, inputs: Sequence[ir.Value | None], before: ir.Node | None = None
) -> list[ir.Value]:
    """Insert a node like another one, of other inputs, and return its outputs."""
    outputs = [editor.value(f"{one.name}.changed", _unknown(one), one.dtype) for one in node.outputs]
    again = ir.node(
        node.op_type, list(inputs), {one.name: one.value for one in node.attributes.values()}, domain=node.domain,
        outputs=outputs, name=f"{node.name}.changed",
    )  # fmt: skip
    editor.graph.insert_before(before or node, again)
    return outputs


def _copied(editor: GraphEditor, value: ir.Value, like: ir.Value, before: ir.Node) -> ir.Value:
    """Return what a branch gives in place of another's result: a value from outside."""
    return editor.add("Identity", [value], dims_of(value), before=before, name=f"{like.name}.none")


def _chunks(groups: Sequence[_Group], places: Mapping[ir.Node, int]) -> Iterator[list[_Group]]:
    """Yield groups that have a gate together: of some layers that follow each other, as of a transformer's block."""
    chunk, count = list[_Group](), 0
    for way, members in sorted(groups, key=lambda group: min(places[node] for node, _ in group[1])):
        if chunk and count + len(members) > _GATED_LAYERS:
            yield chunk
            chunk, count = [], 0
        chunk.append((way, members))
        count += len(members)
    if chunk:
        yield chunk


def _gate(editor: GraphEditor, chunk: Sequence[_Group], before: ir.Node) -> Iterator[tuple[_Group, Sequence[ir.Value]]]:
    """Insert a branch that is taken if a layer has factors, and yield for each group what is decided there.

    That is whether the group is active, behind the weights that it merges. Factors of one size are joined to ask them
    for numbers all at once: an operator for each took half of the time that a network without LoRAs lost.
    """
    given = list[list[ir.Value]]()
    with _branch(editor, before, "gate") as taken:
        for way, members in chunk:
            if way == "merge":
                given.append(_changed_weights(editor, members, before))
            else:
                sizes = [
                    editor.add("Size", [one], (), before=before, name=f"{one.name}.size", dtype=ir.DataType.INT64)
                    for _, factors in members
                    for one in (*factors.downs, *factors.ups)
                ]
                given.append([_truth(editor, sizes, f"{members[0][0].name}.is_active", before)])
            taken.results += given[-1]
    nothing: Any = np.zeros((0, 0))
    empty, no = editor.constant(nothing, np.float32), editor.constant(False, np.bool_)
    with _branch(editor, before, "closed") as closed:
        closed.results += [
            _copied(editor, no if one.dtype == ir.DataType.BOOL else empty, one, before) for one in taken.results
        ]
    has_factors = _has_factors(editor, [factors for _, members in chunk for _, factors in members], before)
    shapes = [_unknown(one) for one in taken.results]
    chosen = iter(_choose(editor, before, has_factors, taken, closed, shapes))
    for group, values in zip(chunk, given, strict=True):
        yield group, [next(chosen) for _ in values]


def _has_factors(editor: GraphEditor, layers: Sequence[_Factors], before: ir.Node) -> ir.Value:
    """Return whether a factor of one of the layers has numbers; half of a pair does, so that the product refuses it."""
    alike: dict[tuple[ir.DataType | None, int, Dims], list[ir.Value]] = {}
    for layer in layers:
        for factors, axis in ((layer.downs, layer.down_axis), (layer.ups, layer.up_axis)):
            alike.setdefault((factors[0].dtype, axis, dims_of(factors[0])), []).extend(factors)
    name = f"{before.name}.factors"
    sizes = []
    for (_, axis, dims), values in alike.items():
        joined = editor.add("Concat", values, dims, before=before, name=name, attributes={"axis": axis})
        sizes.append(editor.add("Size", [joined], (), before=before, name=f"{name}.size", dtype=ir.DataType.INT64))
    return _truth(editor, sizes, f"{name}.are_there", before)


def _truth(editor: GraphEditor, numbers: Sequence[ir.Value], name: str, before: ir.Node) -> ir.Value:
    """Return whether one of the numbers, none of which is below 0, is not 0."""
    most = editor.add("Max", numbers, (), before=before, name=f"{name}.most")
    return editor.add(
        "Cast", [most], (), before=before, name=name, dtype=ir.DataType.BOOL,
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

    low = _low_of_rows(editor, node, down, before)
    if low is None:
        low = filtered(_taken(node), down, f"{made.name}.lora.low", attributes)
    change = filtered(low, up, f"{made.name}.lora")
    followed, moves = _followed(made)
    for move in moves:
        inputs, dims = [change, *move.inputs[1:]], _unknown(move.outputs[0])
        attributes = {attribute.name: attribute.value for attribute in move.attributes.values()}
        change = editor.add(move.op_type, inputs, dims, before=before, name=f"{made.name}.lora", attributes=attributes)
    return _Change(followed, followed, change, _zero(editor, followed))


def _low_of_rows(editor: GraphEditor, node: ir.Node, down: ir.Value, before: ir.Node) -> ir.Value | None:
    """Return what filters of a point make of rows that are turned into an image for the convolution alone.

    They are multiplied as rows: with another user of the image ONNX Runtime could not turn and reorder it in one.
    """
    turn, dims = producer(_taken(node), "Transpose"), dims_of(down)
    moves = any(
        value != default
        for name, default in (("strides", 1), ("pads", 0))
        for value in attribute(node, name, [default])
    )
    if turn is None or perm_of(turn) != _IMAGE or dims[2:] != (1, 1) or moves or len(_taken(node).uses()) > 1:
        return None
    rows, name = turn.inputs[0], f"{node.outputs[0].name}.lora.low"
    flat = editor.add(
        "Reshape", [down, editor.shape_constant(0, int(str(dims[1])))], dims[:2], before=before, name=name
    )
    turned = editor.transpose(flat, (1, 0), before=before, name=name)
    low = editor.add("MatMul", [rows, turned], (None,) * _FILTERS, before=before, name=name)
    return editor.transpose(low, _IMAGE, before=before, name=name)


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

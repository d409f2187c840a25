"""Joints of a UNet's way down and its way up, and inputs that are added there: what guides give, and cached features.

A joint is a `Concat` of images: what goes up, and what comes from the way down. Residuals of guides that enter the way
up (https://arxiv.org/abs/2302.05543) are added to what comes in at one; features of those that enter the way down
(https://arxiv.org/abs/2302.08453) to that wherever it is used, also by what goes further down.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.values import evaluate, required, type_of
from olivelike.model.graph import weight_values
from olivelike.model.guides import MIDDLE, GuideKind

_SAMPLE: Final = "sample"
_CHANNELS: Final = 1
"""Their place in what clients feed."""
_CHANNELS_LAST: Final = 3
_TO_CHANNELS_LAST: Final = (0, 2, 3, 1)
_TO_CHANNELS_FIRST: Final = (0, 3, 1, 2)
_RANK: Final = 4
_SIDE: Final = 1 << 10
"""Height and width at which sizes of features are looked at, a multiple of what networks halve."""
_NORMALISES_SUM: Final = "SkipGroupNorm"
"""An operator that gives a sum beside what it makes of it."""


def joints_of(graph: ir.Graph) -> list[ir.Node]:
    """Return where a UNet's features of the way down come in: images, joined in pairs, those of the way down second."""
    weights = weight_values(graph)
    return [
        node
        for node in graph
        if node.op_type == "Concat"
        and len(node.inputs) == 2
        and all(
            value is not None and value not in weights and value.shape is not None and len(value.shape) == _RANK
            for value in node.inputs
        )
    ]


def named_shape(features: ir.Shape | None, sample: ir.Shape | None) -> ir.Shape:
    """Return the shape of a UNet's features in names of the sample's dimensions.

    A half of them, rounded up, is `unet_sample_height/2`. Raises `PassError` for a size that does not follow from them.
    """
    assert features is not None
    assert sample is not None
    known = {dim.value for dim in sample if isinstance(dim, ir.SymbolicDim)}
    dims: list[int | str] = []
    for dim in features:
        if isinstance(dim, int):
            dims.append(dim)
            continue
        names = known.intersection(re.findall(r"\w+", dim.value or ""))
        if len(names) != 1:
            raise PassError(f"a size of the UNet's features is unknown: {features}; convert the network anew")
        (name,) = names
        share = _SIDE // evaluate(str(dim.value), lambda _: _SIDE)
        dims.append(f"{name}" if share == 1 else f"{name}/{share}")
    return ir.Shape(dims)


def graft(graph: ir.Graph, kind: GuideKind, connections: Sequence[int], *, on_cpu: bool) -> None:
    """Give a UNet's graph, in place, an input for each residual of a kind of guides, behind its other inputs.

    Inputs are (batch, channels, height, width), of the type of `sample`.

    Args:
        graph: A UNet's.
        kind: Says their names, and whether they are added at a joint or everywhere.
        connections: One for each residual, counted from the first one down; `MIDDLE` is what the innermost layers make.
        on_cpu: ONNX Runtime's CPU provider runs the graph.
    """
    joints = joints_of(graph)
    added = []
    for number, connection in enumerate(connections):
        joint, place = (joints[0], 0) if connection == MIDDLE else (joints[-1 - connection], 1)
        name = kind.input(number, connection)
        if kind.enters == "up":
            added.append(_add_at(graph, joint, place, name))
        else:
            added.append(_add_everywhere(graph, joint, place, name, in_blocks=on_cpu))
    _append_inputs(graph, added)


def _append_inputs(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Put inputs behind those that clients feed, before parameters."""
    position = 1 + max(place for place, value in enumerate(graph.inputs) if not value.metadata_props)
    for offset, value in enumerate(values):
        graph.inputs.insert(position + offset, value)


def _add_at(graph: ir.Graph, joint: ir.Node, place: int, name: str) -> ir.Value:
    """Add a residual to one of the two that meet; return the input."""
    features = required(joint, place)
    fed, added = _add_input(graph, joint, features, _channels_axis(joint), name)
    joint.replace_input_with(place, added)
    return fed


def _add_everywhere(graph: ir.Graph, joint: ir.Node, place: int, name: str, *, in_blocks: bool) -> ir.Value:
    """Add features to what comes in at a joint, there and wherever else it is used; return the input."""
    features, axis = _source(joint.inputs[place], _channels_axis(joint))
    node = features.producer()
    if node is not None and node.op_type == _NORMALISES_SUM:
        # The sum is used inside, too: the features join what is summed, which is in NHWC.
        summand = required(node, 0)
        fed, total = _add_input(graph, node, summand, _CHANNELS_LAST, name)
        node.replace_input_with(0, total)
        return fed
    users = features.uses()
    first = next(node for node in graph if any(user is node for user, _ in users))
    fed, total = _add_input(graph, first, features, axis, name, in_blocks=in_blocks)
    for user, index in users:
        user.replace_input_with(index, total)
    return fed


def _source(value: ir.Value | None, axis: int) -> tuple[ir.Value, int]:
    """Return a value before changes of layout and type, and the axis of its channels there."""
    assert value is not None
    node = value.producer()
    while node is not None and node.op_type in ("Cast", "Identity", "Transpose"):
        if node.op_type == "Transpose":
            order = tuple(node.attributes["perm"].as_ints())
            if order != (_TO_CHANNELS_LAST if axis == _CHANNELS_LAST else _TO_CHANNELS_FIRST):
                break
            axis = 1 if axis == _CHANNELS_LAST else _CHANNELS_LAST
        value = required(node, 0)
        node = value.producer()
    return value, axis


def _channels_axis(joint: ir.Node) -> int:
    """Return the axis along which features are joined: 1 for NCHW, 3 for NHWC."""
    rank: int = joint.attributes["axis"].as_int() % _RANK
    return rank


def _add_input(
    graph: ir.Graph, before: ir.Node, features: ir.Value, axis: int, name: str, *, in_blocks: bool = False
) -> tuple[ir.Value, ir.Value]:
    """Add to a UNet's features what an input of this name brings; return that, and the sum, which nothing uses yet.

    Args:
        before: where the nodes stand.
        axis: of the features' channels.
        in_blocks: have ONNX Runtime's CPU provider bring the input into the blocks of channels in which it keeps
            float32 features between convolutions. It does so for pools alone, so one of single values stands there. The
            sum would leave the blocks else, and what is computed of it be rounded otherwise than without the input.
    """
    sample = next(value for value in graph.inputs if value.name == _SAMPLE)
    shape = named_shape(features.shape, sample.shape)
    fed = ir.Value(name=name, shape=shape, type=sample.type)
    residual = fed
    if in_blocks and sample.dtype == features.dtype == ir.DataType.FLOAT and axis == _CHANNELS:
        residual = _insert(graph, before, "MaxPool", [residual], shape, sample.dtype, kernel_shape=(1, 1))
    if axis != _CHANNELS:
        fed.shape = ir.Shape([shape[0], shape[axis], *shape[1:axis]])
        residual = _insert(graph, before, "Transpose", [residual], shape, sample.dtype, perm=_TO_CHANNELS_LAST)
    if features.dtype != sample.dtype:
        dtype = type_of(features)
        residual = _insert(graph, before, "Cast", [residual], shape, dtype, to=int(dtype))
    assert features.shape is not None
    return fed, _insert(graph, before, "Add", [features, residual], features.shape, features.dtype)


def _insert(
    graph: ir.Graph,
    before: ir.Node,
    operator: str,
    inputs: list[ir.Value],
    shape: ir.Shape,
    dtype: ir.DataType | None,
    **attributes: object,
) -> ir.Value:
    last = inputs[-1].name
    node = ir.node(operator, inputs, attributes, name=f"{last}/{operator.lower()}")
    output = node.outputs[0]
    output.name, output.shape = f"{last}.{operator.lower()}", shape
    if dtype is not None:
        output.dtype = dtype
    graph.insert_before(before, node)
    return output

"""A UNet that ControlNets lead (https://arxiv.org/abs/2302.05543): their residuals are inputs of its graph.

Each is added to what goes from the way down to the way up, the last one to the middle. That is done to the graph which
`materialize` has just written, so that the plain one stays as it is, and both share their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.shallow import joints_of, named_shape
from olivelike.model.families import MID_RESIDUAL, down_residual

_MARK: Final = "olivelike.controlnet_inputs"
"""Metadata key of a model that is to have such a graph beside it."""
_SAMPLE: Final = "sample"
_CHANNELS: Final = 1
"""Their place in what clients feed."""
_RANK: Final = 4
TO_CHANNELS_LAST: Final = (0, 2, 3, 1)


def mark_controlled(model: ir.Model) -> dict[str, int]:
    """Have a graph with residual inputs written beside a UNet's; return how many inputs and operators that has.

    Raises `PassError` if it has no connections from its way down to its way up, or their sizes are not known.
    """
    if not joints_of(model.graph):
        raise PassError(
            "controlnet_inputs: the graph has no connections from its way down to its way up; it is no UNet"
        )
    before = len(model.graph.inputs)
    controlled = add_residual_inputs(model.clone())
    model.metadata_props[_MARK] = "1"
    return {"inputs": len(controlled.graph.inputs) - before, "controlled_operators": len(controlled.graph)}


def unmark_controlled(model: ir.Model) -> bool:
    """Have no such graph written, for clients that feed no residuals; tell whether there was to be one."""
    return model.metadata_props.pop(_MARK, None) is not None


def add_residual_inputs(model: ir.Model) -> ir.Model:
    """Give a UNet's graph, in place, an input for each residual, behind its other inputs, and return it.

    Inputs are (batch, channels, height, width), of the type of `sample`, and have the names of diffusers' arguments.
    """
    graph = model.graph
    joints = joints_of(graph)
    residuals = [_add(graph, joint, 1, down_residual(number)) for number, joint in enumerate(reversed(joints))]
    residuals.append(_add(graph, joints[0], 0, MID_RESIDUAL))
    append_inputs(graph, residuals)
    return model


def append_inputs(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Put inputs behind those that clients feed, before parameters."""
    position = 1 + max(place for place, value in enumerate(graph.inputs) if not value.metadata_props)
    for offset, value in enumerate(values):
        graph.inputs.insert(position + offset, value)


def _add(graph: ir.Graph, joint: ir.Node, place: int, name: str) -> ir.Value:
    """Add a residual to one of the two that meet; return the input."""
    features = joint.inputs[place]
    assert features is not None
    fed, added = add_input(graph, joint, features, channels_axis(joint), name)
    joint.replace_input_with(place, added)
    return fed


def channels_axis(joint: ir.Node) -> int:
    """Return the axis along which features are joined: 1 for NCHW, 3 for NHWC."""
    rank: int = joint.attributes["axis"].as_int() % _RANK
    return rank


def add_input(
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
        residual = _insert(graph, before, "Transpose", [residual], shape, sample.dtype, perm=TO_CHANNELS_LAST)
    if features.dtype != sample.dtype:
        assert features.dtype is not None
        residual = _insert(graph, before, "Cast", [residual], shape, features.dtype, to=int(features.dtype))
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

"""Group normalisations of images, in every known spelling, as a factor and an offset per channel.

Known are GroupNormalization; InstanceNormalization over groups, then scale and bias per channel; GroupNorm and
SkipGroupNorm of ONNX Runtime, in either layout, with or without a SiLU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from olivelike.model.onnx_messages import NodeProto, TensorProto, attribute, make_node
from olivelike.runtime.pipeline.strips import CutError

if TYPE_CHECKING:
    import numpy as np

    from olivelike.extras.strips.network_values import NetworkValues

    Array = np.ndarray[Any, Any]

_NORMS: Final = frozenset({"GroupNormalization", "GroupNorm", "SkipGroupNorm", "InstanceNormalization"})
_EPSILON: Final = 1e-5
_FIRST_BY_CHANNEL: Final = 21
"""GroupNormalization of older opsets has a scale per group."""
_AROUND: Final = frozenset({"Cast", "Squeeze", "Unsqueeze", "Reshape"})
_BY_CHANNELS: Final = 3
"""Dimensions of (N, groups, rest), where groups are channels of InstanceNormalization, and not pictures."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A group normalisation."""

    result: str
    value: str
    """Image that it normalises."""
    groups: int
    epsilon: float
    weight: Array
    """Per channel, float32."""
    bias: Array
    nchw: bool = True
    """Whether the image is in NCHW, and not in NHWC."""
    activated: bool = False
    """Whether its result is the SiLU of what is normalised."""

    @property
    def inputs(self) -> tuple[str, str]:
        """Names of its factor and its offset."""
        return f"{self.result}.factor", f"{self.result}.offset"

    @property
    def factor_shape(self) -> tuple[int, ...]:
        """The shape of its factor and of its offset, float32."""
        return (len(self.weight), *((1, 1) if self.nchw else ()))


def factor_norms(values: NetworkValues) -> Iterator[Norm]:
    """Yield normalisations of images, once each is made by its factor and its offset, which nothing makes.

    Raises `CutError` for one in a spelling that is not known.
    """
    for node in values.proto.graph.node:
        if node.op_type in _NORMS:
            norm = _read(node, values)
            if norm.groups < 1 or len(norm.weight) % norm.groups:
                raise CutError(f"{len(norm.weight)} channels do not divide into {norm.groups} groups")
            if values.maker(norm.value) != "Reshape":  # Those are tokens of an attention.
                _write(norm, values)
                yield norm


def _read(node: NodeProto, values: NetworkValues) -> Norm:
    if node.op_type == "InstanceNormalization":
        return _read_instance_norm(node, values)
    result, epsilon = node.output[0], float(attribute(node, "epsilon", _EPSILON))
    weight, bias = values.vector(node.input[1]), values.vector(node.input[2])
    if node.op_type == "GroupNormalization":
        opset = max(entry.version for entry in values.proto.opset_import if not entry.domain)
        if opset < _FIRST_BY_CHANNEL:
            raise CutError(f"it has GroupNormalization of opset {opset}, with a scale per group")
        return Norm(result, node.input[0], int(attribute(node, "num_groups")), epsilon, weight, bias)
    value = _write_sum(node, values) if node.op_type == "SkipGroupNorm" else node.input[0]
    return Norm(
        result, value, int(attribute(node, "groups")), epsilon, weight, bias,
        nchw=not attribute(node, "channels_last", 1), activated=bool(attribute(node, "activation", 0)),
    )  # fmt: skip


def _write_sum(node: NodeProto, values: NetworkValues) -> str:
    """Make what a SkipGroupNorm normalises by additions, and return its name."""
    total = node.output[1] if any(node.output[1:2]) else f"{node.output[0]}.sum"
    values.elements.setdefault(total, values.element(node.input[0]))
    added, *biases = [node.input[3], *(name for name in node.input[4:5] if name)]
    without = f"{total}.without_bias" if biases else total
    values.makers[without] = make_node("Add", [node.input[0], added], [without])
    if biases:
        values.makers[total] = make_node("Add", [without, biases[0]], [total])
    return total


def _read_instance_norm(node: NodeProto, values: NetworkValues) -> Norm:
    """Read Reshape, InstanceNormalization, Reshape, Mul, Add; groups are its channels, or pictures of one channel."""
    ones, zeros = (values.vector(name) for name in node.input[1:3])
    value, shape = node.input[0], None
    while shape is None and values.maker(value) in _AROUND:
        before = values.makers[value]
        value, shape = before.input[0], values.array(before.input[1]) if before.op_type == "Reshape" else None
    while values.maker(value) == "Cast":
        value = values.makers[value].input[0]
    factor = values.only_user(node)
    while factor is not None and factor.op_type in _AROUND:
        factor = values.only_user(factor)
    offset = None if factor is None else values.only_user(factor)
    while offset is not None and offset.op_type == "Cast":
        offset = values.only_user(offset)
    kinds = [one and one.op_type for one in (factor, offset)]
    if shape is None or (ones != 1).any() or zeros.any() or kinds != ["Mul", "Add"]:
        raise CutError("it has an InstanceNormalization that is no group normalisation")
    assert factor is not None
    assert offset is not None
    weight, bias = (
        next(values.vector(name) for name in one.input if values.array(name) is not None) for one in (factor, offset)
    )
    groups = len(ones) if len(shape) == _BY_CHANNELS else len(weight) // max(1, int(shape[1]))
    return Norm(offset.output[0], value, groups, float(attribute(node, "epsilon", _EPSILON)), weight, bias)


def _write(norm: Norm, values: NetworkValues) -> None:
    """Make a normalisation's result by its factor and its offset, in float32 inside."""
    element, inner = values.element(norm.result), values.element(norm.value)
    steps = [("Mul", norm.inputs[0]), ("Add", norm.inputs[1])]
    made = norm.value
    if inner != TensorProto.FLOAT:
        steps.insert(0, ("Cast", ""))
    for kind, operand in steps:
        name = f"{norm.result}.{kind}"
        more = {"to": TensorProto.FLOAT} if kind == "Cast" else {}
        values.makers[name] = make_node(kind, [made, *([operand] if operand else [])], [name], **more)
        made = name
    if norm.activated:
        gate, product = f"{norm.result}.gate", f"{norm.result}.product"
        values.makers[gate] = make_node("Sigmoid", [made], [gate])
        values.makers[product] = make_node("Mul", [made, gate], [product])
        made = product
    kind, more = ("Identity", {}) if element == TensorProto.FLOAT else ("Cast", {"to": element})
    values.makers[norm.result] = make_node(kind, [made], [norm.result], **more)

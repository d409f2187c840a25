"""`with_functions`: swap fused operators for calls to model-local functions that state their meaning.

For a statement of meaning `Call` is the fused operator's node, and `Body` writes the nodes of its function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.errors import PassError
from olivelike.graphs.functions import meanings
from olivelike.model.targets import CONTRIB_DOMAIN, TARGETS

Operand = ir.Value | float | Sequence[int]


class Body:
    """Collects nodes in order; `op.Add(x, 1.0)` writes an Add and returns its output.

    Numbers become float32 constants, sequences of integers int64 vectors. Operators keep to those whose form
    is the same from opset 17 on, so that a body can take the opset of the model that it is written for."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def __getattr__(self, op_type: str) -> Any:
        def write(*operands: Operand, **attributes: Any) -> ir.Value:
            return self.write(op_type, operands, attributes)[0]

        return write

    def write(
        self, op_type: str, operands: Sequence[Operand], attributes: Mapping[str, Any], outputs: int = 1
    ) -> Sequence[ir.Value]:
        """Append a node of the standard domain and return its outputs."""
        inputs = [operand if isinstance(operand, ir.Value) else self._constant(operand) for operand in operands]
        return self._append(op_type, inputs, attributes, outputs)

    def float32(self, value: ir.Value) -> ir.Value:
        """Return `value` as float32, in which every statement computes, as the kernels accumulate in it."""
        result: ir.Value = self.Cast(value, to=int(ir.DataType.FLOAT))
        return result

    def dimension(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of one axis, as an int64 vector of one element."""
        result: ir.Value = self.Shape(value, start=axis, end=axis + 1)
        return result

    def _constant(self, number: float | Sequence[int]) -> ir.Value:
        dtype = np.float32 if isinstance(number, float) else np.int64
        return self._append("Constant", [], {"value": ir.tensor(np.array(number, dtype))}, 1)[0]

    def _append(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], outputs: int
    ) -> Sequence[ir.Value]:
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs)
        for index, value in enumerate(node.outputs):
            value.name = f"{op_type}_{len(self.nodes)}_{index}"
        self.nodes.append(node)
        return node.outputs


@dataclass(frozen=True)
class Call:
    """A node's attributes, and the function inputs that stand for its operands."""

    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    """One per operand of the node; `None` where an optional one is absent."""

    def required(self, *names: str) -> tuple[ir.Value, ...]:
        """Return the first operands, which the schema calls `names` and never lets be absent."""
        values = self.inputs[: len(names)]
        present = tuple(value for value in values if value is not None)
        if len(present) != len(names):
            raise self.unstated(f"it needs the inputs {', '.join(names)}")
        return present

    def optional(self, index: int) -> ir.Value | None:
        """Return the operand at `index`, or `None` if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def rank(self, index: int) -> int | None:
        """Return the number of axes of the operand at `index`, or `None` if the graph does not say."""
        value = self.node.inputs[index]
        return None if value is None or value.shape is None else len(value.shape)

    def forbid(self, **positions: int) -> None:
        """Refuse operands that no Stable Diffusion network has: their meaning is not stated here."""
        for name, index in positions.items():
            if self.optional(index) is not None:
                raise self.unstated(f"the input {name} has no stated meaning")

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute, or `default`."""
        return self.node.attributes[name].as_int() if name in self.node.attributes else default

    def number(self, name: str, default: float) -> float:
        """Return a float attribute, or `default`."""
        return self.node.attributes[name].as_float() if name in self.node.attributes else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or `None`."""
        return tuple(self.node.attributes[name].as_ints()) if name in self.node.attributes else None

    def unstated(self, reason: str) -> PassError:
        """Return the error for a form of the operator that has no statement."""
        return PassError(f"{self.node.op_type} {self.node.name!r}: {reason}")


FUNCTION_DOMAIN: Final = "olivelike.graphs.functions"
"""Domain of the functions."""

MEANINGS: Final[Mapping[str, Callable[[Body, Call], list[ir.Value]]]] = {
    "Attention": meanings.attention,
    "BiasAdd": meanings.bias_add,
    "BiasGelu": meanings.bias_gelu,
    "BiasSplitGelu": meanings.bias_split_gelu,
    "FastGelu": meanings.fast_gelu,
    "GroupNorm": meanings.group_norm,
    "MultiHeadAttention": meanings.multi_head_attention,
    "NhwcConv": meanings.nhwc_conv,
    "QuickGelu": meanings.quick_gelu,
    "SkipGroupNorm": meanings.skip_group_norm,
    "SkipLayerNormalization": meanings.skip_layer_normalization,
}
"""The statement of each operator."""

_OLDEST_OPSET = 17  # LayerNormalization; the other operators of the statements are older
_DTYPES = {ir.DataType.FLOAT: "f", ir.DataType.FLOAT16: "h", ir.DataType.BFLOAT16: "b", ir.DataType.DOUBLE: "d"}


def with_functions(model: ir.Model, *, all: bool = False) -> ir.Model:  # noqa: A002
    """Return a copy of `model` that the CPU provider runs.

    Each fused operator that the CPU has no kernel for becomes a call to a function of domain
    `olivelike.graphs.functions`, in float32 inside, its outputs rounded to the operator's own type. Functions are
    written for the attributes and operands of the node; equal nodes share one. Raises `PassError` when a fused operator
    is used in a form whose meaning is not stated, or the model's opset is below 17.

    Args:
        all: Swap operators that the CPU has kernels for too, so that a kernel can be held against the statement."""
    model = model.clone()
    functions: dict[Hashable, ir.Function] = {}
    holders: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for node in [node for holder in holders for node in RecursiveGraphIterator(holder)]:
        if node.domain != CONTRIB_DOMAIN or node.op_type not in MEANINGS or (not all and _runs_on_cpu(node)):
            continue
        key = _form(node)
        if key not in functions:
            number = 1 + sum(function.name.startswith(f"{node.op_type}_") for function in functions.values())
            functions[key] = _state(node, f"{node.op_type}_{number}", model.graph.opset_imports.get("", 1))
        node.domain, node.op_type = FUNCTION_DOMAIN, functions[key].name
        node.attributes.clear()
    for function in functions.values():
        model.functions[function.identifier()] = function
        model.graph.opset_imports[FUNCTION_DOMAIN] = 1
    return model


def _runs_on_cpu(node: ir.Node) -> bool:
    kernel, first = TARGETS["cpu"].kernels.get(node.op_type), node.inputs[0]
    letter = _DTYPES.get(first.dtype) if first is not None and first.dtype is not None else None
    if kernel is None or letter not in kernel.dtypes:
        return False
    packed = node.op_type == "MultiHeadAttention" and any(value is None for value in (*node.inputs, None, None)[1:3])
    return kernel.packed or not packed


def _form(node: ir.Node) -> Hashable:
    """Return all that the function depends on."""
    attributes = tuple(sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items()))
    operands = tuple(None if value is None else Call(node, ()).rank(i) for i, value in enumerate(node.inputs))
    present = tuple(value is not None for value in node.inputs)
    return node.op_type, attributes, operands, present, len(node.outputs)


def _state(node: ir.Node, name: str, opset: int) -> ir.Function:
    if opset < _OLDEST_OPSET:
        raise PassError(
            f"{node.op_type}: its meaning is written in opset {_OLDEST_OPSET} operators, "
            f"and the model is at opset {opset}; convert it to {_OLDEST_OPSET} or newer"
        )
    inputs = [ir.Value(name=f"input_{index}") for index in range(len(node.inputs))]
    operands = tuple(None if value is None else stand_in for value, stand_in in zip(node.inputs, inputs, strict=True))
    body = Body()
    outputs = MEANINGS[node.op_type](body, Call(node, operands))
    graph = ir.Graph(inputs, outputs, nodes=body.nodes, opset_imports={"": opset}, name=name)
    return ir.Function(FUNCTION_DOMAIN, name, graph=graph, attributes=[])

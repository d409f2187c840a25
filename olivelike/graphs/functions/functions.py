"""`with_functions`: swap fused operators for calls to model-local functions that state their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.errors import PassError
from olivelike.graphs.functions import attention, meanings
from olivelike.graphs.functions.body import Body, Call
from olivelike.model.targets import CONTRIB_DOMAIN, TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

FUNCTION_DOMAIN: Final = "olivelike.graphs.functions"
"""Domain of the functions."""

MEANINGS: Final[Mapping[str, Callable[[Body, Call], list[ir.Value]]]] = {
    "Attention": attention.attention,
    "BiasAdd": meanings.bias_add,
    "BiasGelu": meanings.bias_gelu,
    "BiasSplitGelu": meanings.bias_split_gelu,
    "FastGelu": meanings.fast_gelu,
    "GroupNorm": meanings.group_norm,
    "MultiHeadAttention": attention.multi_head_attention,
    "NhwcConv": meanings.nhwc_conv,
    "QuickGelu": meanings.quick_gelu,
    "SkipGroupNorm": meanings.skip_group_norm,
    "SkipLayerNormalization": meanings.skip_layer_normalization,
}
"""The statement of each operator."""

_OLDEST_OPSET = 17  # LayerNormalization; the other operators of the statements are older
_DTYPES = {
    ir.DataType.FLOAT: "f",
    ir.DataType.FLOAT16: "h",
    ir.DataType.BFLOAT16: "b",
    ir.DataType.DOUBLE: "d",
}


def with_functions(model: ir.Model, *, all: bool = False) -> ir.Model:  # noqa: A002
    """Return a copy of `model` that the CPU provider runs.

    Each fused operator that the CPU has no kernel for becomes a call to a function of domain
    `olivelike.graphs.functions`, in float32 inside, its outputs rounded to the operator's own type. Functions are
    written for the attributes and operands of the node; equal nodes share one.

    Args:
        model: Any model, weightless or not; it is not changed.
        all: Swap operators that the CPU has kernels for too, so that a kernel can be held against the statement.

    Raises:
        PassError: when a fused operator is used in a form whose meaning is not stated, or the model's opset is
            below 17.
    """
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
    packed = node.op_type == "MultiHeadAttention" and any(
        value is None for value in (*node.inputs, None, None)[1:3]
    )
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
    operands = tuple(
        None if value is None else stand_in for value, stand_in in zip(node.inputs, inputs, strict=True)
    )
    body = Body()
    outputs = MEANINGS[node.op_type](body, Call(node, operands))
    graph = ir.Graph(inputs, outputs, nodes=body.nodes, opset_imports={"": opset}, name=name)
    return ir.Function(FUNCTION_DOMAIN, name, graph=graph, attributes=[])

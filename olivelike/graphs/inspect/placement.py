"""Which nodes of a graph a target's provider would leave to the CPU, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.graphs.inspect.registries import REGISTRIES
from olivelike.model.graph import weight_values
from olivelike.model.targets.target import CONTRIB_DOMAIN

if TYPE_CHECKING:
    from olivelike.model.targets import Kernel, Target

_LETTERS = {
    ir.DataType.FLOAT: "f",
    ir.DataType.FLOAT16: "h",
    ir.DataType.BFLOAT16: "b",
    ir.DataType.DOUBLE: "d",
}


_MOVES = frozenset(
    {"Cast", "Concat", "Expand", "Gather", "Identity", "Reshape"}
    | {"Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that move values of any type."""


@dataclass(frozen=True)
class LeftNode:
    """A node that the provider does not run."""

    name: str
    operator: str
    """As `domain::name`; standard operators by their name alone."""
    reason: str


def left_to_cpu(model: ir.Model, target: Target) -> tuple[LeftNode, ...]:
    """Return the nodes without a kernel, in graph order; for `cpu`, those that do not run at all.

    Nodes over weights alone do not count: they are gone once the graph has its weights.
    Operators that ONNX defines by a function body count as run: the runtime puts the body in their place.
    Types are checked for fused operators, and where a standard one computes in bfloat16. Where a provider's
    registry can't be listed (`tensorrt`, `migraphx`, `webgpu`, `openvino`), standard operators count as run up to
    the target's opset.
    """
    local = {(function.domain, function.name) for function in model.functions.values()}
    opsets = model.graph.opset_imports
    folded = weight_values(model.graph)
    found = []
    for node in RecursiveGraphIterator(model.graph):
        if (node.domain, node.op_type) in local or folded.issuperset(node.outputs):
            continue
        reason = _why_left(node, target, opsets)
        if reason is not None:
            operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            found.append(LeftNode(node.name or "unnamed", operator, reason))
    return tuple(found)


def _why_left(node: ir.Node, target: Target, opsets: dict[str, int]) -> str | None:
    if node.domain == "":
        if not target.bfloat16 and node.op_type not in _MOVES and _in_bfloat16(node):
            return f"{target.name} is not known to have it in bfloat16"
        return _why_standard(node.op_type, target, opsets.get("", 1))
    if node.domain != CONTRIB_DOMAIN:
        return f"{target.name} knows no domain {node.domain!r}"
    kernel = target.kernels.get(node.op_type)
    if kernel is not None:
        return _why_form(node, kernel, target.name)
    registry = REGISTRIES.get(target.name)
    known = registry is not None and node.op_type in registry.contrib
    return None if known else f"{target.name} has no kernel for it"


def _in_bfloat16(node: ir.Node) -> bool:
    values = (*node.inputs, *node.outputs)
    return any(value is not None and value.dtype == ir.DataType.BFLOAT16 for value in values)


def _why_standard(op_type: str, target: Target, opset: int) -> str | None:
    if op_type == "Constant":
        return None
    if not onnx.defs.has(op_type, opset):
        return f"ONNX has no such operator at opset {opset}"
    schema = onnx.defs.get_schema(op_type, opset)
    if schema.has_function or schema.has_context_dependent_function:
        return None
    registry = REGISTRIES.get(target.name)
    if registry is not None and op_type not in registry.standard:
        return f"{target.name} has no kernel for it"
    since = schema.since_version
    newest, knows = target.opset, "reads up to"
    if registry is not None:
        newest, knows = registry.standard[op_type], "knows it up to"
    return (
        f"its form dates from opset {since}, and {target.name} {knows} {newest}" if since > newest else None
    )


def _why_form(node: ir.Node, kernel: Kernel, target: str) -> str | None:
    first = node.inputs[0] if node.inputs else None
    if first is not None and first.dtype in _LETTERS and not _takes(kernel, _LETTERS[first.dtype], target):
        return f"{target} has no kernel for {first.dtype.name.lower()}"
    width = None if first is None or first.shape is None or not first.shape else first.shape[-1]
    if kernel.channels is not None and isinstance(width, int) and width not in kernel.channels:
        allowed = ", ".join(map(str, sorted(kernel.channels)))
        return f"{target} has kernels for widths of {allowed}, not {width}"
    if kernel.layouts == {"NHWC"} and not _flag(node, "channels_last", default=1):
        return f"{target} has a kernel for the channels-last layout alone"
    if node.op_type != "MultiHeadAttention":
        return None
    packed = sum(value is not None for value in node.inputs[:3]) < 3
    if packed and not kernel.packed:
        return f"{target} has no kernel for packed inputs"
    causal = _flag(node, "unidirectional", default=0)
    return f"{target} has no causal kernel" if causal and not kernel.causal else None


def _takes(kernel: Kernel, letter: str, target: str) -> bool:
    """The CPU provider casts around a kernel that lacks float16."""
    return letter in kernel.dtypes or (target == "cpu" and letter == "h" and "f" in kernel.dtypes)


def _flag(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default

"""Nodes that rules write in place of others, image layouts (NCHW and NHWC), and the biases of linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB, GraphEditor
from olivelike.graphs.editing.values import (
    Attributes,
    Dims,
    dims_of,
    is_used_once,
    node_of,
    producer,
    rank_of,
    required,
    same_shape,
    width_of,
)

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope

MASKED = -65504.0
"""Added to a score that does not count; the softmax of it is 0 in float16 as in float32."""

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)


def to_nhwc_dims(dims: Dims) -> Dims:
    """Return the shape in NHWC of an image of this NCHW shape."""
    return tuple(dims[axis] for axis in TO_NHWC)


def attributes_of(node: ir.Node) -> Attributes:
    """Return the values of a node's attributes, for another node."""
    return {name: node.attributes[name].value for name in sorted(node.attributes)}


def write(
    scope: Scope,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    result: ir.Value,
    suffix: str = "",
    *,
    attributes: Attributes | None = None,
    domain: str = CONTRIB,
    before: ir.Node | None = None,
    counted: str = "",
) -> None:
    """Let an operator with the shape of `result` take the place of it, and count it.

    Args:
        result: What it computes from now on.
        suffix: What its output is called, behind the name of `result`; by default after the operator.
        attributes: As `onnx_ir.node` takes them.
        before: Where to insert; by default where `result` was computed.
        counted: What is counted; by default the operator.
    """
    fused = scope.editor.add(
        op_type, inputs, dims_of(result), before=before or node_of(result),
        name=f"{result.name}.{suffix or op_type.lower()}", attributes=attributes, domain=domain,
    )  # fmt: skip
    scope.editor.replace(result, fused)
    scope.fused[counted or op_type] += 1


def write_nhwc(
    scope: Scope,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    result: ir.Value,
    *,
    attributes: Attributes,
    domain: str = CONTRIB,
    counted: str = "",
) -> None:
    """Let an operator in NHWC, with a Transpose behind it, take the place of an image in NCHW; arguments as `write`."""
    editor, before = scope.editor, node_of(result)
    fused = editor.add(
        op_type, inputs, to_nhwc_dims(dims_of(result)), before=before, name=f"{result.name}.nhwc",
        attributes=attributes, domain=domain, dtype=result.dtype,
    )  # fmt: skip
    editor.replace(result, editor.transpose(fused, TO_NCHW, before=before, name=f"{result.name}.nchw"))
    scope.fused[counted or op_type] += 1


@dataclass(frozen=True)
class Biased:
    """`value + bias`, where `value` has the shape of the sum."""

    value: ir.Value
    bias: ir.Value


def biased(total: ir.Value | None, editor: GraphEditor) -> Biased | None:
    """Return the parts of `total` if it is a value plus a 1-D weight along the last axis."""
    add = producer(total, "Add")
    if add is None:
        return None
    for value, bias in ((0, 1), (1, 0)):
        found = Biased(required(add, value), required(add, bias))
        fits = found.bias in editor.weights and rank_of(found.bias) == 1
        if fits and width_of(found.bias) == width_of(found.value) and same_shape(found.value, add.outputs[0]):
            return found
    return None


def private_bias(total: ir.Value | None, editor: GraphEditor) -> Biased | None:
    """Return the parts of `total` like `biased`, if nothing else uses `total`."""
    return biased(total, editor) if total is not None and is_used_once(total) else None


def vector_of(value: ir.Value | None, width: int | str | None, editor: GraphEditor) -> bool:
    """Say whether `value` is a 1-D weight of this width."""
    return value is not None and value in editor.weights and dims_of(value) == (width,) and width is not None

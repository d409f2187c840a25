"""`group_norm` and `group_norm_silu`: GroupNormalization and the SiLU behind it become one GroupNorm.

An operator in NHWC gets a Transpose on each side; the rule `transposes` moves and cancels them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    attribute,
    dims_of,
    input_of,
    other_input,
    producer,
    rank_of,
    required,
)
from olivelike.graphs.fusion.bias import vector_of
from olivelike.graphs.fusion.nhwc import TO_NCHW, TO_NHWC, to_nhwc_dims

if TYPE_CHECKING:
    from olivelike.graphs.fusion.rule import Scope


def group_norm(scope: Scope) -> None:
    """GroupNormalization of (N, C, H, W) → GroupNorm, in NHWC where the target can, else in NCHW."""
    for node in scope.editor.nodes("GroupNormalization"):
        layout = _layout(scope)
        if layout is None:
            continue
        reason = _unusual(node, scope)
        if reason is not None:
            scope.refuse(reason)
            continue
        _write(node, layout, scope)


def group_norm_silu(scope: Scope) -> None:
    """SiLU of what GroupNorm or SkipGroupNorm gives, and nothing else uses → its `activation`."""
    for node in scope.editor.nodes("GroupNorm", "SkipGroupNorm", domain=CONTRIB):
        result = node.outputs[0]
        back = _transpose_behind(result)
        normal = result if back is None else back.outputs[0]
        product = _silu(normal)
        if product is None or attribute(node, "activation", 0):
            continue
        node.attributes.add(ir.AttrInt64("activation", 1))
        scope.editor.replace(product.outputs[0], normal)
        scope.fused[f"{node.op_type}, SiLU"] += 1


def _layout(scope: Scope) -> str | None:
    """Return the layout to write in; NHWC first, as convolutions are faster in it."""
    if scope.why_not("GroupNorm", "NHWC") is None:
        return "NHWC"
    return "NCHW" if scope.may_write("GroupNorm", "NCHW") else None


def _unusual(node: ir.Node, scope: Scope) -> str | None:
    value = required(node, 0)
    rank = rank_of(value)
    if rank != 4:
        return f"GroupNorm takes images, not {rank}-D values"
    channels, groups = dims_of(value)[1], attribute(node, "num_groups", 0)
    if not isinstance(channels, int) or not groups or channels % groups:
        return f"{channels} channels do not divide into {groups} groups"
    # Kernels read channels in pairs.
    if channels // groups % 2:
        return f"its groups have an odd number of channels: {channels // groups}"
    if attribute(node, "stash_type", 1) != 1:
        return "GroupNormalization is not computed in float32"
    if not all(vector_of(input_of(node, index), channels, scope.editor) for index in (1, 2)):
        return "GroupNormalization's scale or bias is no 1-D weight"
    return None


def _write(node: ir.Node, layout: str, scope: Scope) -> None:
    editor, result = scope.editor, node.outputs[0]
    value, scale, bias = (required(node, index) for index in range(3))
    last = layout == "NHWC"
    source = editor.transpose(value, TO_NHWC, before=node, name=f"{value.name}.nhwc") if last else value
    attributes = {
        "activation": 0,
        "channels_last": int(last),
        "epsilon": attribute(node, "epsilon", 1e-5),
        "groups": attribute(node, "num_groups", 0),
    }
    dims = dims_of(result)
    fused = editor.add(
        "GroupNorm", [source, scale, bias], to_nhwc_dims(dims) if last else dims,
        before=node, name=f"{result.name}.{layout.lower()}", attributes=attributes, domain=CONTRIB,
    )  # fmt: skip
    if last:
        fused = editor.transpose(fused, TO_NCHW, before=node, name=f"{result.name}.nchw")
    editor.replace(result, fused)
    scope.fused["GroupNorm"] += 1


def _transpose_behind(value: ir.Value) -> ir.Node | None:
    uses = value.uses()
    if len(uses) != 1:
        return None
    ((node, _),) = uses
    return node if node.op_type == "Transpose" else None


def _silu(value: ir.Value) -> ir.Node | None:
    """Return the Mul of `value` and its Sigmoid if nothing else uses `value`."""
    users = {node for node, _ in value.uses()}
    sigmoids = [node for node in users if node.op_type == "Sigmoid"]
    products = [node for node in users if node.op_type == "Mul"]
    if value.is_graph_output() or len(users) != 2 or len(sigmoids) != 1 or len(products) != 1:
        return None
    product, gate = products[0], sigmoids[0].outputs[0]
    private = len(gate.uses()) == 1 and not gate.is_graph_output()
    return product if private and producer(other_input(product, value), "Sigmoid") is sigmoids[0] else None

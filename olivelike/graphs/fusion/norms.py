"""`group_norm` and `group_norm_silu`: GroupNormalization and the SiLU behind it become one GroupNorm.

An operator in NHWC gets a Transpose on each side; the rule `transposes` moves and cancels them.

`skip_group_norm`: what is added in front of GroupNorm joins it, in NHWC. The other operand may be an image of the same
shape, or one value per channel: the time embedding. The bias of a linear layer whose tokens are added as an image joins
too.

`skip_layer_norm` and `bias_skip_layer_norm`: what is added in front of LayerNormalization joins it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    attribute,
    dims_of,
    input_of,
    is_used_once,
    node_of,
    only_user,
    other_input,
    perm_of,
    producer,
    rank_of,
    required,
    same_dims,
    same_shape,
    width_of,
)
from olivelike.graphs.fusion.rule import Scope
from olivelike.graphs.fusion.transposes import per_channel
from olivelike.graphs.fusion.writing import (
    TO_NCHW,
    TO_NHWC,
    attributes_of,
    biased,
    private_bias,
    to_nhwc_dims,
    vector_of,
    write,
    write_nhwc,
)
from olivelike.model.graph import BLOCK_KEY


def group_norm(scope: Scope) -> None:
    """GroupNormalization of (N, C, H, W) → GroupNorm, in NHWC where the target can, else in NCHW."""
    for node in scope.editor.nodes("GroupNormalization"):
        layout = _layout(scope)
        if layout is None:
            continue
        reason = _unusual_group_norm(node, scope)
        if reason is not None:
            scope.refuse(reason)
            continue
        _write_norm(node, layout, scope)


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


def _unusual_group_norm(node: ir.Node, scope: Scope) -> str | None:
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


def _write_norm(node: ir.Node, layout: str, scope: Scope) -> None:
    result = node.outputs[0]
    value, scale, bias = (required(node, index) for index in range(3))
    attributes = {
        "activation": 0,
        "channels_last": int(layout == "NHWC"),
        "epsilon": attribute(node, "epsilon", 1e-5),
        "groups": attribute(node, "num_groups", 0),
    }
    if layout == "NHWC":
        turned = scope.editor.transpose(value, TO_NHWC, before=node, name=f"{value.name}.nhwc")
        write_nhwc(scope, "GroupNorm", [turned, scale, bias], result, attributes=attributes)
    else:
        write(scope, "GroupNorm", [value, scale, bias], result, "nchw", attributes=attributes)


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


@dataclass(frozen=True)
class _Operands:
    value: ir.Value
    skip: ir.Value
    is_image: bool
    """Whether `skip` is an image of the shape of `value`, and not one value per channel, (N, C)."""


def skip_group_norm(scope: Scope) -> None:
    """Add, then GroupNorm in NHWC → SkipGroupNorm, its sum used on; a token bias joins it."""
    for node in scope.editor.nodes("GroupNorm", domain=CONTRIB):
        into = producer(node.inputs[0], "Transpose")
        add = None if into is None else producer(into.inputs[0], "Add")
        if into is None or add is None or perm_of(into) != TO_NHWC:
            continue
        operands = _operands(add)
        if operands is None:
            scope.refuse("what is added in front of GroupNorm is neither an image nor one value per channel")
            continue
        if scope.may_write("SkipGroupNorm", "NHWC"):
            _write_skip_group_norm(node, add, operands, scope)


def _operands(add: ir.Node) -> _Operands | None:
    total = add.outputs[0]
    for value, skip in ((0, 1), (1, 0)):
        operand, other = required(add, value), required(add, skip)
        if rank_of(operand) != 4 or not same_shape(operand, total):
            continue
        if same_shape(other, total):
            return _Operands(operand, other, is_image=True)
        vector = per_channel(other)
        if vector is not None and same_dims(dims_of(vector), dims_of(total)[:2]):
            return _Operands(operand, vector, is_image=False)
    return None


def _write_skip_group_norm(node: ir.Node, add: ir.Node, operands: _Operands, scope: Scope) -> None:
    editor, total, result = scope.editor, add.outputs[0], node.outputs[0]
    value, bias = _without_bias(operands.value, add, scope)
    skip = operands.skip
    if bias is None and operands.is_image:
        skip, bias = _without_bias(skip, add, scope)
    images = [value, skip] if operands.is_image else [value]
    turned = [editor.transpose(image, TO_NHWC, before=add, name=f"{image.name}.nhwc") for image in images]
    dims = to_nhwc_dims(dims_of(total))
    # The sum may be used between the two nodes, so the fused one stands where the sum was computed.
    fused = editor.add(
        "SkipGroupNorm", [turned[0], *node.inputs[1:3], turned[1] if operands.is_image else skip, bias], dims,
        before=add, name=f"{result.name}.skip", domain=CONTRIB,
        attributes=attributes_of(node),
        block=node.metadata_props.get(BLOCK_KEY, ""),
    )  # fmt: skip
    only_normalised = only_user(total, "Transpose") is not None and is_used_once(required(node, 0))
    if not only_normalised:
        written = node_of(fused)
        kept = editor.value(f"{total.name}.sum", dims, total.dtype)
        editor.add_outputs(written, kept)
        back = editor.transpose(written.outputs[1], TO_NCHW, before=add, name=f"{total.name}.nchw")
        editor.replace(result, fused)
        editor.replace(total, back)
    else:
        editor.replace(result, fused)
    scope.fused["SkipGroupNorm"] += 1
    if bias is not None:
        scope.fused["SkipGroupNorm, bias"] += 1


def _without_bias(image: ir.Value, before: ir.Node, scope: Scope) -> tuple[ir.Value, ir.Value | None]:
    """Take the bias off an image that is tokens plus bias, reshaped to (N, H, W, C) and transposed."""
    transpose = producer(image, "Transpose") if is_used_once(image) else None
    reshape = producer(transpose.inputs[0], "Reshape") if transpose is not None else None
    if transpose is None or reshape is None or perm_of(transpose) != TO_NCHW:
        return image, None
    apart = reshape.outputs[0]
    tokens = required(reshape, 0)
    found = private_bias(tokens, scope.editor) if is_used_once(apart) else None
    if found is None or rank_of(tokens) != 3 or dims_of(apart)[-1] != dims_of(tokens)[-1]:
        return image, None
    editor = scope.editor
    plain = editor.add(
        "Reshape", [found.value, reshape.inputs[1]], dims_of(apart),
        before=before, name=f"{apart.name}.plain",
        attributes=attributes_of(reshape),
    )  # fmt: skip
    return editor.transpose(plain, TO_NCHW, before=before), found.bias


def skip_layer_norm(scope: Scope) -> None:
    """Add of two values of one shape, then LayerNormalization → SkipLayerNormalization, its sum used on."""
    for node in scope.editor.nodes("LayerNormalization"):
        add = producer(node.inputs[0], "Add")
        if add is None or biased(add.outputs[0], scope.editor) is not None:
            continue
        reason = _unusual_layer_norm(node, add, scope)
        if reason is not None:
            scope.refuse(reason)
        elif scope.may_write("SkipLayerNormalization"):
            _write_skip_layer_norm(node, add, scope)


def bias_skip_layer_norm(scope: Scope) -> None:
    """Bias added to an input of SkipLayerNormalization → its bias input."""
    for node in scope.editor.nodes("SkipLayerNormalization", domain=CONTRIB):
        if input_of(node, 4) is not None:
            continue
        for index in (0, 1):
            found = private_bias(node.inputs[index], scope.editor)
            if found is None:
                continue
            total = required(node, index)
            node.replace_input_with(index, found.value)
            node.resize_inputs(5)
            node.replace_input_with(4, found.bias)
            scope.editor.prune(node_of(total))
            scope.fused["SkipLayerNormalization, bias"] += 1
            break


def _unusual_layer_norm(node: ir.Node, add: ir.Node, scope: Scope) -> str | None:
    total = add.outputs[0]
    rank = rank_of(total)
    if rank != 3:
        return f"SkipLayerNormalization takes 3-D values, not {rank}-D"
    if not same_shape(required(add, 0), total) or not same_shape(required(add, 1), total):
        return "what is added in front of LayerNormalization is broadcast"
    if attribute(node, "axis", -1) not in {-1, 2} or attribute(node, "stash_type", 1) != 1:
        return "LayerNormalization is not over the last axis in float32"
    width = width_of(total)
    if not vector_of(node.inputs[1], width, scope.editor):
        return "LayerNormalization's scale is no 1-D weight"
    if input_of(node, 2) is not None and not vector_of(node.inputs[2], width, scope.editor):
        return "LayerNormalization's bias is no 1-D weight"
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "LayerNormalization's mean is used elsewhere"
    return None


def _write_skip_layer_norm(node: ir.Node, add: ir.Node, scope: Scope) -> None:
    editor, total, result = scope.editor, add.outputs[0], node.outputs[0]
    # The sum may be used between the two nodes, so the fused one stands where the sum was computed.
    fused = editor.add(
        "SkipLayerNormalization", [add.inputs[0], add.inputs[1], *node.inputs[1:3]], dims_of(result),
        before=add, name=f"{result.name}.skip", domain=CONTRIB,
        attributes={"epsilon": attribute(node, "epsilon", 1e-5)},
        block=node.metadata_props.get(BLOCK_KEY, ""),
    )  # fmt: skip
    if only_user(total) is not node:
        written = node_of(fused)
        kept = editor.value(f"{total.name}.sum", dims_of(total), total.dtype)
        editor.add_outputs(written, None, None, kept)
        editor.replace(total, written.outputs[3])
    editor.replace(result, fused)
    scope.fused["SkipLayerNormalization"] += 1

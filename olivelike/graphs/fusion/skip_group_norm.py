"""`skip_group_norm`: what is added in front of GroupNorm joins it, in NHWC.

The other operand may be an image of the same shape, or one value per channel: the time embedding.
The bias of a linear layer whose tokens are added as an image joins too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import (
    dims_of,
    is_used_once,
    node_of,
    only_user,
    perm_of,
    producer,
    rank_of,
    required,
    same_dims,
    same_shape,
)
from olivelike.graphs.fusion.bias import private_bias
from olivelike.graphs.fusion.nhwc import TO_NCHW, TO_NHWC, per_channel, to_nhwc_dims
from olivelike.model.graph import BLOCK_KEY

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.fusion.rule import Scope


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
            _write(node, add, operands, scope)


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


def _write(node: ir.Node, add: ir.Node, operands: _Operands, scope: Scope) -> None:
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
        attributes={name: node.attributes[name].value for name in sorted(node.attributes)},
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
        attributes={name: reshape.attributes[name].value for name in sorted(reshape.attributes)},
    )  # fmt: skip
    return editor.transpose(plain, TO_NCHW, before=before), found.bias

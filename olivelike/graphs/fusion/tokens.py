"""`image_tokens`: images become tokens, and tokens images, through NHWC.

The VAE's attention and the vision tower go through (N, C, H·W). By way of (N, H, W, C) the Transposes meet
those of NHWC convolutions and group norms, and cancel.
"""

from __future__ import annotations

import onnx_ir as ir

from olivelike.graphs.editing.values import (
    attribute,
    constant_array,
    dims_of,
    perm_of,
    producer,
    rank_of,
    required,
    same_dims,
)
from olivelike.graphs.fusion.rule import Scope
from olivelike.graphs.fusion.writing import TO_NHWC, attributes_of, write, write_nhwc

_SWAP = (0, 2, 1)


def image_tokens(scope: Scope) -> None:
    """(N, C, H, W) ↔ (N, C, H·W) ↔ (N, H·W, C) → (N, C, H, W) ↔ (N, H, W, C) ↔ (N, H·W, C)."""
    kept_apart = all(scope.why_not(op_type, "NHWC") is not None for op_type in ("NhwcConv", "GroupNorm"))
    if kept_apart and not scope.target.sizes_on_cpu:
        return
    for norm in scope.editor.nodes("GroupNormalization"):
        _normalise_image(norm, scope)
    for transpose in scope.editor.nodes("Transpose"):
        _to_tokens(transpose, scope)
    for reshape in scope.editor.nodes("Reshape"):
        _to_image(reshape, scope)


def _normalise_image(norm: ir.Node, scope: Scope) -> None:
    """Normalise the image and flatten it afterwards: groups of channels are the same."""
    flatten = _flattening(norm.inputs[0])
    if flatten is None:
        return
    editor, result = scope.editor, norm.outputs[0]
    image = required(flatten, 0)
    fused = editor.add(
        "GroupNormalization", [image, *norm.inputs[1:]], dims_of(image),
        before=norm, name=f"{result.name}.image",
        attributes=attributes_of(norm),
    )  # fmt: skip
    write(
        scope, "Reshape", [fused, flatten.inputs[1]], result, "flat",
        attributes=_allowzero(flatten), domain="", counted="GroupNormalization of an image",
    )  # fmt: skip


def _to_tokens(transpose: ir.Node, scope: Scope) -> None:
    flatten = _flattening(transpose.inputs[0])
    if flatten is None or perm_of(transpose) != _SWAP:
        return
    editor, result = scope.editor, transpose.outputs[0]
    image = required(flatten, 0)
    channels = dims_of(image)[1]
    if not isinstance(channels, int):
        return
    turned = editor.transpose(image, TO_NHWC, before=transpose, name=f"{image.name}.nhwc")
    inputs = [turned, editor.shape_constant(0, -1, channels)]
    write(scope, "Reshape", inputs, result, "tokens", domain="", counted="tokens")


def _to_image(reshape: ir.Node, scope: Scope) -> None:
    transpose = producer(reshape.inputs[0], "Transpose")
    result = reshape.outputs[0]
    if transpose is None or perm_of(transpose) != _SWAP or rank_of(result) != 4:
        return
    tokens = required(transpose, 0)
    if not same_dims(dims_of(transpose.outputs[0])[:2], dims_of(result)[:2]):
        return
    shape = _nhwc_shape(reshape, scope)
    if shape is not None:
        write_nhwc(
            scope, "Reshape", [tokens, shape], result,
            attributes=_allowzero(reshape), domain="", counted="image",
        )  # fmt: skip


def _flattening(value: ir.Value | None) -> ir.Node | None:
    """Return the Reshape from (N, C, H, W) to (N, C, H·W)."""
    reshape = producer(value, "Reshape")
    if reshape is None:
        return None
    image, flat = required(reshape, 0), reshape.outputs[0]
    merges = rank_of(image) == 4 and rank_of(flat) == 3 and same_dims(dims_of(image)[:2], dims_of(flat)[:2])
    return reshape if merges else None


def _nhwc_shape(reshape: ir.Node, scope: Scope) -> ir.Value | None:
    """Return the shape (N, H, W, C) where the Reshape has (N, C, H, W); a 0 would copy another dimension."""
    known = constant_array(reshape.inputs[1])
    if known is not None:
        return None if 0 in known else scope.editor.shape_constant(*(int(known[axis]) for axis in TO_NHWC))
    sizes = producer(reshape.inputs[1], "Concat")
    if sizes is None or len(sizes.inputs) != 4 or not all(_is_size(value) for value in sizes.inputs):
        return None
    return scope.editor.add(
        "Concat", [sizes.inputs[axis] for axis in TO_NHWC], (4,), before=reshape,
        name=f"{sizes.outputs[0].name}.nhwc", attributes={"axis": 0}, dtype=ir.DataType.INT64,
    )  # fmt: skip


def _is_size(value: ir.Value | None) -> bool:
    known = constant_array(value)
    return value is not None and dims_of(value) == (1,) and (known is None or 0 not in known)


def _allowzero(reshape: ir.Node) -> dict[str, int]:
    return {"allowzero": attribute(reshape, "allowzero", 0)}

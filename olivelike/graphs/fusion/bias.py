"""Finding a bias: the 1-D weight that is added to a linear layer's product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.graphs.editing.values import dims_of, is_used_once, producer, rank_of, required, same_shape, width_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.editing.editor import GraphEditor


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

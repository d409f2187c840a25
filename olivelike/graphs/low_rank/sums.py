"""What is done with that which layers make: a bias added, sums and moves of images, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.editing.values import dims_of, only_user
from olivelike.graphs.low_rank.layer_factors import CONVOLUTIONS, MATRIX

if TYPE_CHECKING:
    import onnx_ir as ir

_ATTENDING: Final = frozenset({(CONTRIB, "MultiHeadAttention"), ("", "Attention")})


def with_bias(node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """Return what a product makes with its bias, and the bias, if it is added behind it."""
    made = node.outputs[0]
    user = only_user(made, "Add")
    if user is None or user.outputs[0].is_graph_output() or not user.outputs[0].uses():
        return made, None
    other = next((one for one in user.inputs if one is not made), None)
    fits = other is not None and other.is_initializer() and len(dims_of(other)) == 1
    return (user.outputs[0], other) if fits else (made, None)


def user_of(node: ir.Node) -> ir.Node | None:
    """Return what alone takes that which a product makes, if it is cheap enough to be in two branches.

    That is attention, or the sum with a bias. Of matrices ONNX Runtime adds the bias where it multiplies.
    """
    made = node.outputs[0]
    total, bias = with_bias(node)
    if bias is not None:
        return total.producer() if len(dims_of(made)) > MATRIX else None
    user = only_user(made)
    if node.op_type in CONVOLUTIONS or user is None or (user.domain, user.op_type) not in _ATTENDING:
        return None
    return None if any(output.is_graph_output() for output in user.outputs) else user

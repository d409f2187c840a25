"""Changes that are added behind layers: computed in a branch, and a 0 where there are no factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from olivelike.graphs.editing.values import attribute, dims_of, only_user, perm_of, producer
from olivelike.graphs.low_rank.branches import choose, copied, new_branch
from olivelike.graphs.low_rank.in_users import multiplied
from olivelike.graphs.low_rank.layer_factors import CONVOLUTIONS, dtype_of, taken_by, unknown
from olivelike.graphs.low_rank.sums import with_bias

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.editing.values import Attributes
    from olivelike.graphs.low_rank.layer_factors import Factors, Layers

_IMAGE: Final = (0, 3, 1, 2)
"""Axes of an image, from those of its rows with channels last."""
_ROWS: Final = (0, 2, 3, 1)
_FILTERS: Final = 4


def add_changes(editor: GraphEditor, members: Layers, condition: ir.Value) -> None:
    """Add changes to what layers of one input make."""
    before = min((_place(node) for node, _ in members), key=list(editor.graph).index)
    with new_branch(editor, before, "active") as active:
        changes = [_change(editor, node, factors, before) for node, factors in members]
        active.results += [change for _, change in changes]
    with new_branch(editor, before, "none") as inactive:
        inactive.results += [copied(editor, _zero(editor, to), change, before) for to, change in changes]
    outputs = choose(editor, before, condition, active, inactive, [unknown(to) for to, _ in changes])
    for (to, _), chosen in zip(changes, outputs, strict=True):
        users = to.uses()
        changed = editor.add("Add", [to, chosen], dims_of(to), before=_first_user(to), name=f"{to.name}.changed")
        for user, index in users:
            user.replace_input_with(index, changed)


def _change(editor: GraphEditor, node: ir.Node, factors: Factors, before: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return what a change is added to, and the change."""
    if node.op_type in CONVOLUTIONS:
        return _convolved(editor, node, factors, before)
    return with_bias(node)[0], multiplied(editor, node, factors, before)


def _zero(editor: GraphEditor, value: ir.Value) -> ir.Value:
    """Return a 0 of as many axes and of the type of a value."""
    assert value.dtype is not None
    zero: Any = np.zeros((1,) * len(dims_of(value)))
    return editor.constant(zero, value.dtype.numpy().type)


def _place(node: ir.Node) -> ir.Node:
    """Return the node before which the change of a layer is computed: by then all is there that it is made of."""
    followed, moves = _followed(node.outputs[0]) if node.op_type in CONVOLUTIONS else (None, [])
    return _first_user(followed) if followed is not None and moves else node


def _first_user(value: ir.Value) -> ir.Node:
    users = {id(user) for user, _ in value.uses()}
    node = value.producer()
    assert node is not None
    assert node.graph is not None
    return next(other for other in node.graph if id(other) in users)


def _convolved(editor: GraphEditor, node: ir.Node, factors: Factors, before: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return what a change is added to, and what the filters `down`, of a convolution's size, and then `up` make."""
    made = node.outputs[0]
    down, up = factors.joined(editor, before)
    attributes = {attribute.name: attribute.value for attribute in node.attributes.values()}

    def filtered(value: ir.Value, filters: ir.Value, name: str, attributes: Attributes | None = None) -> ir.Value:
        return editor.add(
            node.op_type, [value, filters], unknown(made), before=before, name=name,
            attributes=attributes, domain=node.domain, dtype=dtype_of(node),
        )  # fmt: skip

    low = _low_of_rows(editor, node, down, before)
    if low is None:
        low = filtered(taken_by(node), down, f"{made.name}.lora.low", attributes)
    followed, moves = _followed(made)
    name = f"{made.name}.lora"
    if node.op_type == "Conv" and (turn := only_user(made, "Transpose")) is not None and perm_of(turn) == _ROWS:
        # What has few features is turned, as rows are wanted.
        low, moves = editor.transpose(low, _ROWS, before=before, name=f"{name}.rows"), moves[1:]
        change = _multiplied(editor, low, up, before, name)
    elif node.op_type == "NhwcConv":
        change = _multiplied(editor, low, up, before, name)
    else:
        change = filtered(low, up, name)
    for move in moves:
        inputs, dims = [change, *move.inputs[1:]], unknown(move.outputs[0])
        attributes = {attribute.name: attribute.value for attribute in move.attributes.values()}
        change = editor.add(move.op_type, inputs, dims, before=before, name=name, attributes=attributes)
    return followed, change


def _multiplied(editor: GraphEditor, rows: ir.Value, filters: ir.Value, before: ir.Node, name: str) -> ir.Value:
    """Return what filters of a point make of rows, features last."""
    dims = dims_of(filters)
    dims = (dims[0], dims[-1] if dims[1:3] == (1, 1) else dims[1])
    sizes = editor.shape_constant(*(dim if isinstance(dim, int) else -1 for dim in dims))
    flat = editor.add("Reshape", [filters, sizes], dims, before=before, name=name)
    turned = editor.transpose(flat, (1, 0), before=before, name=name)
    return editor.add("MatMul", [rows, turned], (None,) * _FILTERS, before=before, name=name)


def _low_of_rows(editor: GraphEditor, node: ir.Node, down: ir.Value, before: ir.Node) -> ir.Value | None:
    """Return what filters of a point make of rows that are turned into an image for the convolution alone.

    They are multiplied as rows: with another user of the image ONNX Runtime could not turn and reorder it in one. An
    image whose features are last is rows: CUDA opens no `NhwcConv` in a branch.
    """
    turn, dims, name = producer(taken_by(node), "Transpose"), dims_of(down), f"{node.outputs[0].name}.lora.low"
    moves = any(
        value != default
        for name, default in (("strides", 1), ("pads", 0))
        for value in attribute(node, name, [default])
    )
    if node.op_type == "NhwcConv":
        return None if dims[1:3] != (1, 1) or moves else _multiplied(editor, taken_by(node), down, before, name)
    if turn is None or perm_of(turn) != _IMAGE or dims[2:] != (1, 1) or moves or len(taken_by(node).uses()) > 1:
        return None
    assert turn.inputs[0] is not None
    low = _multiplied(editor, turn.inputs[0], down, before, name)
    return editor.transpose(low, _IMAGE, before=before, name=name)


def _followed(made: ir.Value) -> tuple[ir.Value, list[ir.Node]]:
    """Return what sums and moves make of a convolution's output while nothing else takes it, and the moves in order.

    A change is added behind these: ONNX Runtime merges a convolution with the sum behind it, and so as in the plain
    network.
    """
    moves: list[ir.Node] = []
    while len(made.uses()) == 1:
        user, index = next(iter(made.uses()))
        if user.domain or user.outputs[0].is_graph_output():
            break
        if user.op_type == "Transpose" or (user.op_type == "Reshape" and index == 0):
            moves.append(user)
        elif user.op_type != "Add":
            break
        made = user.outputs[0]
    return made, moves

"""Inputs for the factors of LoRAs: which layers are changed together, and how, and whether there are any factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import GraphEditor
from olivelike.graphs.low_rank.adding import add_changes
from olivelike.graphs.low_rank.branches import choose, copied, new_branch, truth
from olivelike.graphs.low_rank.in_users import change_in_user
from olivelike.graphs.low_rank.layer_factors import (
    CONVOLUTIONS,
    add_factors,
    add_input,
    dtype_of,
    features_of,
    taken_by,
)
from olivelike.graphs.low_rank.merging import can_merge, changes_of, merge
from olivelike.graphs.low_rank.sums import user_of
from olivelike.graphs.low_rank.widening import widen
from olivelike.model.low_rank_inputs import strength_input

if TYPE_CHECKING:
    from olivelike.graphs.low_rank.layer_choice import Choice, LowRankLayer
    from olivelike.graphs.low_rank.layer_factors import Layers

_Way: TypeAlias = Literal["add", "in user", "merge", "in user of few rows", "merge for many rows"]
_MANY_ROWS: Final = 2
"""Rows by features from which on a weight that takes the change is cheaper than x·down·up."""


def add_low_rank_inputs(model: ir.Model, layers: Sequence[LowRankLayer], choice: Choice) -> None:
    """Give layers of a graph, in place, the inputs of as many LoRAs at once as wanted, and a strength for each.

    Factors are of the type that the layer computes in. `down` is (features in, rank) and `up` (rank, features out); of
    a convolution they are filters, `down` of the layer's own size and `up` of one pixel. Layers of one input, or those
    that one operator takes, have a branch, which is taken if one of them has factors.

    Raises `PassError` if there is no layer.
    """
    if not layers:
        raise PassError("no layer of the graph can take a LoRA; name layers that are there, such as `layers: ['*']`")
    editor, slots = GraphEditor(model), choice.slots
    first, own_inputs = next(iter(model.graph)), len(model.graph.inputs)
    strengths = [add_input(editor, strength_input(slot), (), np.ones((), np.float32)) for slot in range(slots)]
    scales: dict[ir.DataType, list[ir.Value]] = {ir.DataType.FLOAT: strengths}
    groups: dict[tuple[_Way, object], Layers] = {}
    for layer in layers:
        dtype = dtype_of(layer.nodes[0])
        if dtype not in scales:
            scales[dtype] = [
                editor.add(
                    "Cast", [value], (), before=first, name=f"{value.name}.cast", dtype=dtype, block="",
                    attributes={"to": int(dtype)},
                )
                for value in strengths
            ]  # fmt: skip
        factors = add_factors(editor, layer.initializer, layer.nodes[0], scales[dtype])
        for node in layer.nodes:
            if node.op_type == "Attention":
                widen(editor, node, factors)
                continue
            for key in _ways(node):
                groups.setdefault(key, []).append((node, factors))
    conditions = _conditions(editor, [(way, members) for (way, _), members in groups.items()], first)
    for wanted in ("add", "in user", "in user of few rows", "merge", "merge for many rows"):  # Others move nodes.
        for ((way, _), members), condition in zip(groups.items(), conditions, strict=True):
            if way == wanted:
                _change(editor, way, members, condition)
    if not choice.defaults:
        for value in model.graph.inputs[own_inputs:]:
            del model.graph.initializers[str(value.name)]
            value.const_value = None
    editor.import_contrib()


def _ways(node: ir.Node) -> list[tuple[_Way, object]]:
    """Return how a layer is changed, each with what those layers have in common that share a branch."""
    user, taken = user_of(node), taken_by(node)
    if not can_merge(node):
        return [("in user", user) if user is not None else ("add", (taken, node.op_type in CONVOLUTIONS))]
    products = [value.producer() for value in user.inputs if value is not None] if user is not None else []
    alike = [product for product in products if product is not None]
    if user is not None and all(_is_alike(product, taken) for product in alike):
        return [("in user of few rows", user), ("merge for many rows", taken)]
    return [("merge", taken)]


def _is_alike(product: ir.Node, taken: ir.Value) -> bool:
    return can_merge(product) and taken_by(product) is taken


def _change(editor: GraphEditor, way: _Way, members: Layers, condition: ir.Value) -> None:
    """Change layers if a condition holds, in a way."""
    if way == "add":
        add_changes(editor, members, condition)
        return
    change = merge if way.startswith("merge") else change_in_user
    if way in ("in user of few rows", "merge for many rows"):
        condition = _with_rows(
            editor, members[0][0], condition, "Less" if change is change_in_user else "GreaterOrEqual"
        )
    change(editor, members, condition)


def _with_rows(editor: GraphEditor, node: ir.Node, condition: ir.Value, operator: str) -> ir.Value:
    """Return whether a condition holds and a layer takes many rows, or few."""
    features = features_of(node)[0]
    name = f"{node.name}.{operator}"
    size = editor.add("Size", [taken_by(node)], (), before=node, name=f"{name}.size", dtype=ir.DataType.INT64)
    most = editor.constant(_MANY_ROWS * features * features, np.int64)
    fits = editor.add(operator, [size, most], (), before=node, name=name, dtype=ir.DataType.BOOL)
    return editor.add("And", [condition, fits], (), before=node, name=f"{name}.changes")


def _conditions(editor: GraphEditor, groups: Sequence[tuple[_Way, Layers]], first: ir.Node) -> list[ir.Value]:
    """Insert a gate before a node, and return whether each group of layers has factors.

    For weights that are merged it is whether these change anything. Without a factor nothing is asked but their sizes.
    """
    factors = {one.name: one for _, members in groups for _, one in members}.values()
    sizes = {
        value: editor.add(
            "Size", [value], (), before=first, name=f"{value.name}.size", dtype=ir.DataType.INT64, block=""
        )
        for one in factors
        for value in (*one.downs, *one.ups)
    }
    with new_branch(editor, first, "gate") as taken:
        for way, members in groups:
            numbers = (
                changes_of(editor, members, first)
                if way.startswith("merge")
                else [sizes[value] for _, one in members for value in (*one.downs, *one.ups)]
            )
            taken.results.append(truth(editor, numbers, f"{members[0][0].name}.is_active", first))
    no: Any = False
    with new_branch(editor, first, "closed") as closed:
        closed.results += [copied(editor, editor.constant(no, np.bool_), one, first) for one in taken.results]
    are_there = truth(editor, list(sizes.values()), "lora.are_there", first)
    return choose(editor, first, are_there, taken, closed, [()] * len(groups))

"""Branches of a graph: what is computed if there are factors, and what if there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx_ir as ir

from olivelike.graphs.editing.values import dims_of
from olivelike.graphs.low_rank.layer_factors import unknown

if TYPE_CHECKING:
    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.editing.values import Dims


@dataclass
class Branch:
    """What a branch computes, without inputs of its own."""

    name: str
    nodes: list[ir.Node] = field(default_factory=list)
    results: list[ir.Value] = field(default_factory=list)

    def graph(self) -> ir.Graph:
        """Return it as an attribute of `If` has it."""
        return ir.Graph([], self.results, nodes=self.nodes, name=self.name)


@contextmanager
def new_branch(editor: GraphEditor, before: ir.Node, name: str) -> Iterator[Branch]:
    """Yield a branch that gets the nodes that are added before a node in the block."""
    known, branch = set(editor.graph), Branch(f"{before.name}.{name}")
    yield branch
    branch.nodes += [node for node in editor.graph if node not in known]
    editor.graph.remove(branch.nodes)


def choose(
    editor: GraphEditor, before: ir.Node, condition: ir.Value, then: Branch, other: Branch, shapes: Sequence[Dims]
) -> list[ir.Value]:
    """Insert the choice of one of two branches, and return its outputs."""
    outputs = [
        editor.value(f"{one.name}.chosen", dims, one.dtype) for one, dims in zip(then.results, shapes, strict=True)
    ]
    branches = {"then_branch": then.graph(), "else_branch": other.graph()}
    editor.graph.insert_before(before, ir.node("If", [condition], branches, outputs=outputs, name=outputs[0].name))
    return outputs


def swap(
    editor: GraphEditor, condition: ir.Value, then: Branch, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]
) -> None:
    """Put a choice in place of nodes: what a branch computes, or the nodes themselves."""
    before = min(nodes, key=list(editor.graph).index)
    other = Branch(f"{before.name}.plain", list(nodes), list(outputs))
    users = [tuple(one.uses()) for one in outputs]
    place = ir.node("Identity", [condition], name=f"{before.name}.place")
    editor.graph.insert_before(before, place)
    editor.graph.remove(list(nodes))
    chosen = choose(editor, place, condition, then, other, [unknown(one) for one in outputs])
    editor.graph.remove(place)
    for uses, value in zip(users, chosen, strict=True):
        for user, index in uses:
            user.replace_input_with(index, value)


def again(editor: GraphEditor, node: ir.Node, inputs: Sequence[ir.Value | None], before: ir.Node) -> list[ir.Value]:
    """Insert a node like another one, of other inputs, and return its outputs."""
    outputs = [editor.value(f"{one.name}.changed", unknown(one), one.dtype) for one in node.outputs]
    made = ir.node(
        node.op_type, list(inputs), {one.name: one.value for one in node.attributes.values()}, domain=node.domain,
        outputs=outputs, name=f"{node.name}.changed",
    )  # fmt: skip
    editor.graph.insert_before(before, made)
    return outputs


def copied(editor: GraphEditor, value: ir.Value, like: ir.Value, before: ir.Node) -> ir.Value:
    """Return what a branch gives in place of another's result: a value from outside."""
    return editor.add("Identity", [value], dims_of(value), before=before, name=f"{like.name}.none")


def truth(editor: GraphEditor, numbers: Sequence[ir.Value], name: str, before: ir.Node) -> ir.Value:
    """Return whether one of the numbers, none of which is below 0, is not 0."""
    most = editor.add("Max", numbers, (), before=before, name=f"{name}.most", block="")
    return editor.add(
        "Cast", [most], (), before=before, name=name, dtype=ir.DataType.BOOL, block="",
        attributes={"to": int(ir.DataType.BOOL)},
    )  # fmt: skip

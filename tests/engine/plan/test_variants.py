"""Nodes that variants have in common."""

from __future__ import annotations

from pathlib import Path

from olivelike.engine.plan.node import Node
from olivelike.engine.plan.variants import merge_variants
from olivelike.workflow import Output, Step
from olivelike.workflow.findings import Document, Position
from olivelike.workflow.passes import Registry

REGISTRY = Registry.built_in()
SOMEWHERE = Position(Document("test"), 1, 1)


def chain(variant, *steps):
    """Return a chain of nodes: `load`, the steps, and the writing of a folder."""
    nodes = [Node("unet.load", "unet", "load", None)]
    for name, options in steps:
        step = Step(name, REGISTRY.get(name).cls(**options), SOMEWHERE)
        nodes.append(Node(f"unet.{name}", "unet", "pass", nodes[-1].id, step))
    output = Output(Path(variant), variant=variant)
    return [*nodes, Node("unet.materialize", "unet", "materialize", nodes[-1].id, output=output)]


CONVERT, HALF = ("convert", {}), ("float16", {})


def test_equal_beginnings_are_shared_and_what_some_lack_is_named_after_the_first():
    nodes = merge_variants(
        {
            "raw": chain("raw", CONVERT),
            "half": chain("half", CONVERT, HALF),
            "io": chain("io", CONVERT, ("float16", {"keep_io": True})),
            "again": chain("again", CONVERT, ("float16", {"keep_io": False})),
        }
    )
    assert [(node.id, node.parent) for node in nodes] == [
        ("unet.load", None),
        ("unet.convert", "unet.load"),
        ("unet.materialize@raw", "unet.convert"),
        ("unet.float16@half", "unet.convert"),
        ("unet.materialize@half", "unet.float16@half"),
        ("unet.float16@io", "unet.convert"),
        ("unet.materialize@io", "unet.float16@io"),
        ("unet.materialize@again", "unet.float16@half"),
    ]


def test_the_same_step_behind_another_one_is_another_node():
    nodes = merge_variants({"a": chain("a", CONVERT, HALF), "b": chain("b", HALF)})
    assert [node.id for node in nodes if node.name == "float16"] == ["unet.float16@a", "unet.float16@b"]


def test_a_single_variant_keeps_its_names():
    nodes = chain("only", CONVERT, HALF)
    assert merge_variants({"only": nodes}) == tuple(nodes)

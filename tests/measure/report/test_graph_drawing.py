"""Drawings of a plan."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from olivelike.engine.plan.node import Node
from olivelike.engine.plan.planner import Plan, PlannedNode
from olivelike.measure.report.graph_drawing import FORMATS


@pytest.fixture
def plan() -> Plan:
    load = Node("unet.load", "unet", "load", None)
    nodes = [
        (load, "hit", "stored"),
        (Node("unet.materialize@one", "unet", "materialize", "unet.load"), "miss", "never run here"),
        (Node("unet.materialize@two", "unet", "materialize", "unet.load"), "pending", 'a "quoted" <reason>'),
    ]
    return Plan(tuple(PlannedNode(node, status, reason, None, 0, 0) for node, status, reason in nodes))


def test_mermaid_has_every_node_and_edge(plan: Plan) -> None:
    text = FORMATS["mermaid"](plan)
    assert text.startswith("flowchart LR")
    assert text.count("-->") == 2
    assert 'unet_load["load<br/>hit"]:::hit' in text


def test_dot_has_every_node_and_edge(plan: Plan) -> None:
    text = FORMATS["dot"](plan)
    assert text.startswith("digraph")
    assert text.count("->") == 2
    assert text.count("{") == text.count("}")


def test_svg_is_well_formed_and_shows_each_node_once_in_its_own_place(plan: Plan) -> None:
    root = ET.fromstring(FORMATS["svg"](plan))
    boxes = [element for element in root.iter() if element.tag.endswith("rect")]
    places = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(boxes) == len(places) == 3


def test_boxes_of_two_outputs_carry_their_names_and_hold_them(plan: Plan) -> None:
    for text in (draw(plan) for draw in FORMATS.values()):
        assert "materialize@one" in text
    node = Node("unet.materialize@" + "x" * 60, "unet", "materialize", None)
    root = ET.fromstring(FORMATS["svg"](Plan((PlannedNode(node, "hit", "", None, 0, 0),))))
    (box,) = (element for element in root.iter() if element.tag.endswith("rect"))
    assert int(box.get("width", "0")) > 400

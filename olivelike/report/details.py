"""What else steps left in the record: whatever no other section shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.report.element import Html, fold, section, table
from olivelike.report.operators import OPERATOR_FACTS, is_fused
from olivelike.report.pictures import PICTURES
from olivelike.report.reading import shown
from olivelike.report.verification import VERIFICATION_FACTS

if TYPE_CHECKING:
    from olivelike.report.reading import NodeReport, RunReport

_ELSEWHERE = frozenset({PICTURES, *VERIFICATION_FACTS})
"""Facts that other sections show."""


def details(run: RunReport) -> Html:
    """Return the facts of all steps that no other section shows."""
    rows = [
        (node.id, name.replace("_", " "), shown(value))
        for node in run.nodes
        for name, value in node.facts.items()
        if _is_shown_here(node, name) and shown(value)
    ]
    found = table("Facts that steps recorded", ("Step", "Fact", "Value"), rows)
    return section("details", "Details", fold("What steps recorded", found))


def _is_shown_here(node: NodeReport, name: str) -> bool:
    if node.name == "materialize" and name == "files":
        return False
    return name not in (_ELSEWHERE | OPERATOR_FACTS if is_fused(node) else _ELSEWHERE)

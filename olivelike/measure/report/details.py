"""What else steps left in the record: whatever no other section shows, a row for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import count
from olivelike.measure.report.element import Html, facts, fold, section, table
from olivelike.measure.report.operators import OPERATOR_FACTS, is_fused
from olivelike.measure.report.pictures_section import PICTURES
from olivelike.measure.report.record_reading import shown
from olivelike.measure.report.verification_section import VERIFICATION_FACTS

if TYPE_CHECKING:
    from olivelike.measure.report.record_reading import NodeReport, RunReport

_ELSEWHERE = frozenset({PICTURES, *VERIFICATION_FACTS})
"""Facts that other sections show."""


def details(run: RunReport) -> Html:
    """Return the facts of all steps that no other section shows."""
    rows = []
    for node in run.nodes:
        named = [(name, shown(value)) for name, value in node.facts.items() if _is_shown_here(node, name)]
        if found := facts((name.replace("_", " "), value) for name, value in named):
            rows.append((node.id, found))
    found = table("Facts that no other section shows", ("Step", "Recorded"), rows, class_="facts")
    return section(
        "details", "Details", fold(f"What {count(len(rows), 'step')} recorded", found) if rows else Html()
    )


def _is_shown_here(node: NodeReport, name: str) -> bool:
    if node.name == "materialize" and name == "files":
        return False
    return name not in (_ELSEWHERE | OPERATOR_FACTS if is_fused(node) else _ELSEWHERE)

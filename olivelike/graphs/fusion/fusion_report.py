"""What fusion did to one component, as facts for the run record."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.fusion.rule import Scope


class Report:
    """Collects what each rule wrote and left; made before the first one runs."""

    def __init__(self, editor: GraphEditor) -> None:
        self._editor = editor
        self._before = operator_counts(editor)
        self._fused: dict[str, dict[str, int]] = {}
        self._left: dict[str, dict[str, int]] = {}

    def add(self, rule: str, scope: Scope) -> None:
        """Take in what a rule tells."""
        if scope.fused:
            self._fused[rule] = dict(sorted(scope.fused.items()))
        if scope.left:
            self._left[rule] = dict(sorted(scope.left.items()))

    def facts(self) -> dict[str, Any]:
        """Return node and operator counts before and after, and what was fused and left by rule."""
        after = operator_counts(self._editor)
        return {
            "nodes_before": sum(self._before.values()),
            "nodes_after": sum(after.values()),
            "operators_before": self._before,
            "operators_after": after,
            "fused": self._fused,
            "left": self._left,
        }


def operator_counts(editor: GraphEditor) -> dict[str, int]:
    """Count the operators that run: what derives weights is evaluated beforehand and does not count."""
    running = (node for node in editor.graph if node.outputs[0] not in editor.weights)
    counts = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in running)
    return dict(sorted(counts.items()))

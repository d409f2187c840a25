"""Fusion: rules that rewrite a weightless graph into the operators that a target runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx_ir as ir

    from olivelike.model.targets import Precision, Target

__all__ = ["fuse"]


def fuse(
    model: ir.Model,
    target: Target,
    switches: Mapping[str, bool] | None = None,
    precision: Precision | None = None,
    float32_operators: Iterable[str] = (),
) -> dict[str, Any]:
    """Rewrite a weightless model for a target, in place.

    Args:
        model: As `convert` makes it: opset 23, float32.
        target: What to write for.
        switches: Rules to turn on or off, by name; the others keep their default.
        precision: What the graph will be computed in; the target's own by default.
        float32_operators: Operators that will stay in float32 all the same.

    Returns:
        Facts for the run record: node and operator counts before and after, what each rule wrote, and what it
        left and why.

    Raises:
        UsageError: when `switches` names no rule.
        PassError: when a rule leaves a graph that is not valid, or the target can't read the result.
    """
    from olivelike.errors import UsageError
    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.graphs.fusion.check import check
    from olivelike.graphs.fusion.fusion_report import Report
    from olivelike.graphs.fusion.lowering import lower
    from olivelike.graphs.fusion.rule import Scope
    from olivelike.graphs.fusion.rules import RULES

    chosen = {rule.name: rule.default for rule in RULES}
    unknown = sorted(set(switches or {}) - set(chosen))
    if unknown:
        raise UsageError(f"fuse: no rule {', '.join(unknown)}; there are {', '.join(chosen)}")
    chosen.update(switches or {})
    editor = GraphEditor(model)
    report = Report(editor)
    steps = [(rule.name, rule.apply) for rule in RULES if chosen[rule.name]]
    for name, apply in (*steps, ("lower", lower)):
        scope = Scope(editor, target, precision or target.precision, frozenset(float32_operators))
        apply(scope)
        if scope.fused or name == "lower":
            check(editor, name)
        report.add(name, scope)
    return report.facts()

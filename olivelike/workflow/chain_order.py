"""Checks that the steps of a chain stand in an order that their passes allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from olivelike.workflow.findings import Findings
    from olivelike.workflow.schema import Step


def check_order(component: str, chain: Sequence[Step], findings: Findings) -> None:
    """Report each step whose pass requires, forbids or repeats another one."""
    for index, step in enumerate(chain):
        for message in _mistakes(step, chain[:index], chain[index + 1 :]):
            findings.add(step.position, f"pass {step.pass_name!r} of {component} {message}")


def _mistakes(step: Step, earlier: Sequence[Step], later: Sequence[Step]) -> Iterator[str]:
    wanted = step.instance
    before, behind = ([other.pass_name for other in steps] for steps in (earlier, later))
    for name in wanted.requires_before:
        if name not in before:
            remedy = "move it there" if name in behind else "add it"
            yield f"needs `{name}` before it; {remedy}"
    for name in wanted.requires_after:
        if name not in behind:
            remedy = "move it there" if name in before else "add it"
            yield f"needs `{name}` behind it; {remedy}"
    for name in wanted.comes_before:
        if name in before:
            yield f"must come before `{name}`; move it there"
    for other in earlier:  # A conflict is one mistake, told where the second pass stands.
        if other.pass_name in wanted.conflicts or step.pass_name in other.instance.conflicts:
            yield f"can't be in one chain with `{other.pass_name}`; remove one of the two"
    if wanted.once and step.pass_name in before:
        yield "stands in the chain twice; remove one"

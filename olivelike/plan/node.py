"""Nodes of the DAG: steps placed in the chains of a workflow's components."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from olivelike.errors import UsageError, WorkflowError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from olivelike.targets import Target
    from olivelike.workflow import LoadedWorkflow, Output, Step

Kind = Literal["load", "pass", "materialize", "assets"]

PIPELINE = "pipeline"
"""Stands for a component in nodes that concern the whole pipeline."""


@dataclass(frozen=True)
class Node:
    """One step in the DAG.

    `load` resolves a component's checkpoint to an architecture and parameter names; a `pass` runs a step;
    `materialize` streams graph and weights into an output; `assets` brings tokenizers, scheduler and feature
    extractor up to date.
    """

    id: str
    """`unet.convert`; `unet.materialize` carries the output's index if there are several."""
    component: str
    kind: Kind
    parent: str | None
    """The node whose model this one takes; `None` for `load`."""
    step: Step | None = None
    output: Output | None = None

    @property
    def name(self) -> str:
        """The step's own name: that of its pass, or `load` or `materialize`."""
        return self.step.pass_name if self.step is not None else self.kind


def build_nodes(
    workflow: LoadedWorkflow,
    outputs: Sequence[Output],
    only: Collection[str] = (),
    until: str | None = None,
) -> tuple[Node, ...]:
    """Place a workflow's steps into a DAG, in an order that puts parents first.

    Args:
        workflow: The resolved workflow.
        outputs: Folders to write.
        only: Components to keep; all if empty.
        until: Last pass to run in each chain; nothing after it, and no output, becomes a node.

    Raises:
        UsageError: for a component or pass that the workflow does not have.
    """
    _check_names(workflow, outputs, only, until)
    nodes: list[Node] = []
    for component, steps in workflow.steps.items():
        if only and component not in only:
            continue
        load = Node(f"{component}.load", component, "load", None)
        chain = [load]
        counts: Counter[str] = Counter()
        for step in steps:
            counts[step.pass_name] += 1
            number = counts[step.pass_name]
            suffix = f".{number}" if number > 1 else ""
            chain.append(Node(f"{component}.{step.pass_name}{suffix}", component, "pass", chain[-1].id, step))
        _check_chain(component, chain, workflow.workflow.target, materialized=until is None)
        nodes += chain[: _length(chain, until)]
        if until is not None:
            continue
        for index, output in enumerate(outputs):
            last = chain[_length(chain, output.until) - 1]
            suffix = f".{index + 1}" if len(outputs) > 1 else ""
            nodes.append(
                Node(f"{component}.materialize{suffix}", component, "materialize", last.id, output=output)
            )
    if until is None:
        nodes.append(Node(f"{PIPELINE}.assets", PIPELINE, "assets", None))
    return tuple(nodes)


def _length(chain: Sequence[Node], until: str | None) -> int:
    """Return how many nodes of a chain run, up to the last one of pass `until`; all if it has none."""
    found = [index for index, node in enumerate(chain) if node.kind == "pass" and node.name == until]
    return found[-1] + 1 if found else len(chain)


def _check_chain(component: str, chain: Sequence[Node], target: Target, *, materialized: bool) -> None:
    """Refuse a chain in which a pass reads a facet that nothing before it makes, or lacks what must follow it."""
    present = {"architecture", "weights", "target"}
    for node in chain[1:]:
        assert node.step is not None
        instance = node.step.instance
        missing = sorted(set(instance.reads) - present)
        if missing:
            raise WorkflowError(
                f"{node.step.position}: pass {node.name!r} of {component} needs a {missing[0]}, which no step before "
                "it makes; put `convert` before it",
            )
        present |= set(instance.writes)
        followers = instance.followers(target)
        if followers and not any(later.name in followers for later in chain[chain.index(node) + 1 :]):
            raise WorkflowError(
                f"{node.step.position}: for target {target.name!r} in {target.precision}, pass {node.name!r} of "
                f"{component} needs `{followers[0]}` behind it; add it, or set `{node.name}: {{precision: fp32}}`",
            )
    if materialized and "graph" not in present:
        step = chain[-1].step
        where = f"{step.position}: " if step is not None else ""
        raise WorkflowError(f"{where}the chain of {component} makes no graph; put `convert` into it")


def _check_names(
    workflow: LoadedWorkflow, outputs: Sequence[Output], only: Collection[str], until: str | None
) -> None:
    for component in only:
        if component not in workflow.steps:
            known = ", ".join(workflow.steps)
            raise UsageError(f"--only {component}: the workflow has no such component; it has {known}")
    passes = {step.pass_name for steps in workflow.steps.values() for step in steps}
    for name, place in [(until, "--until"), *((output.until, "until") for output in outputs)]:
        if name is not None and name not in passes:
            raise UsageError(f"{place} {name}: no chain has that pass; they have {', '.join(sorted(passes))}")

"""Nodes of the DAG: steps placed in the chains of a workflow's components."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from olivelike.errors import UsageError, WorkflowError
from olivelike.workflow import Step

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from olivelike.plan.additions import Additions
    from olivelike.workflow import LoadedWorkflow, Output

Kind = Literal["load", "pass", "materialize", "assets"]

ADD_EMBEDDINGS = "add_embeddings"
"""The pass that textual inversions bring with them."""

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
    additions: Additions,
    only: Collection[str] = (),
    until: str | None = None,
) -> tuple[Node, ...]:
    """Place a workflow's steps into a DAG, in an order that puts parents first.

    Args:
        workflow: The resolved workflow.
        outputs: Folders to write.
        additions: LoRAs and textual inversions; a step that reads them is left out where none apply.
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
        for step in effective_steps(component, steps, workflow, additions):
            counts[step.pass_name] += 1
            number = counts[step.pass_name]
            suffix = f".{number}" if number > 1 else ""
            chain.append(Node(f"{component}.{step.pass_name}{suffix}", component, "pass", chain[-1].id, step))
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


def effective_steps(
    component: str, steps: Sequence[Step], workflow: LoadedWorkflow, additions: Additions
) -> list[Step]:
    """Return the steps that have something to do for a component.

    Textual inversions belong to the source, so the step that adds them comes first without being written.

    Raises:
        WorkflowError: if a LoRA applies to the component and no step merges it.
    """
    if additions.loras_of(component) and not any("loras" in step.instance.reads for step in steps):
        names = ", ".join(str(lora.file.path.name) for lora in additions.loras_of(component))
        raise WorkflowError(
            f"{steps[0].position}: {names} changes {component}, whose chain has no `merge_lora`; add it, or give the "
            f"LoRA `weights: {{{component}: 0}}`"
        )
    if additions.embeddings_of(component) and not any("embeddings" in step.instance.reads for step in steps):
        entry = workflow.registry.get(ADD_EMBEDDINGS)
        steps = [Step(ADD_EMBEDDINGS, entry.cls(), steps[0].position), *steps]
    return [
        step
        for step in steps
        if ("loras" not in step.instance.reads or additions.loras_of(component))
        and ("embeddings" not in step.instance.reads or additions.embeddings_of(component))
    ]


def _length(chain: Sequence[Node], until: str | None) -> int:
    """Return how many nodes of a chain run, up to the last one of pass `until`; all if it has none."""
    found = [index for index, node in enumerate(chain) if node.kind == "pass" and node.name == until]
    return found[-1] + 1 if found else len(chain)


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

"""Checks that a chain's steps fit each other and the source that they begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.errors import WorkflowError
from olivelike.pass_api import INPUTS
from olivelike.plan.building import effective_steps
from olivelike.plan.node import changes_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.plan.additions import Additions
    from olivelike.sources import Checkpoint, PipelineSource
    from olivelike.targets import Target
    from olivelike.workflow import LoadedWorkflow, Step


def check_chains(
    workflow: LoadedWorkflow, source: PipelineSource, additions: Additions, *, materialized: bool
) -> None:
    """Check the chain of each component that the source was opened for.

    Raises:
        WorkflowError: if a pass reads a facet that nothing before it makes, lacks what must follow it, compares with
            an original that nobody has, or the chain makes no graph although an output is `materialized`.
    """
    chains = (chain for variant in workflow.variants.values() for chain in variant.steps.items())
    for component, steps in chains:
        if component not in source.checkpoints:
            continue
        effective = effective_steps(component, steps, workflow, additions)
        _check_chain(source.checkpoint(component), effective, workflow.workflow.target, materialized)


def _check_chain(checkpoint: Checkpoint, steps: Sequence[Step], target: Target, materialized: bool) -> None:
    component, exported = checkpoint.component, checkpoint.graph is not None
    changed: Step | None = None
    mixed: tuple[Step, Step] | None = None
    present = {"weights", *INPUTS, "graph" if exported else "architecture"}
    for index, step in enumerate(steps):
        instance = step.instance
        missing = sorted(set(instance.reads) - set(instance.optional) - present)
        if missing == ["architecture"]:
            raise WorkflowError(
                f"{step.position}: pass {step.pass_name!r} needs the torch network of {component}, and this source has "
                f"it as an ONNX graph; drop `{step.pass_name}`, or use the checkpoint that it was exported from"
            )
        if missing:
            raise WorkflowError(
                f"{step.position}: pass {step.pass_name!r} of {component} needs a {missing[0]}, which no step before "
                "it makes; put `convert` before it"
            )
        if mixed is not None and "original" in instance.reads:
            raise WorkflowError(
                f"{step.position}: pass {step.pass_name!r} compares {component} with its weights as loaded, LoRAs and "
                f"textual inversions added, and `{mixed[1].pass_name}` adds them to what `{mixed[0].pass_name}` made; "
                f"put `{mixed[1].pass_name}` before `{mixed[0].pass_name}`"
            )
        if changes_network(instance):
            changed = changed or step
        elif changed is not None and {"architecture", "weights"} & set(instance.writes):
            mixed = changed, step
        present |= set(instance.writes)
        if refusal := instance.refusal(target):
            raise WorkflowError(f"{step.position}: {refusal}")
        followers = instance.followers(target)
        if followers and not any(later.pass_name in followers for later in steps[index + 1 :]):
            raise WorkflowError(
                f"{step.position}: for target {target.name!r} in {target.precision}, pass {step.pass_name!r} of "
                f"{component} needs `{followers[0]}` behind it; add it, or set "
                f"`{step.pass_name}: {{precision: fp32}}`"
            )
    if materialized and "graph" not in present:
        where = f"{steps[-1].position}: " if steps else ""
        raise WorkflowError(f"{where}the chain of {component} makes no graph; put `convert` into it")

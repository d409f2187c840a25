"""Checks that a chain's steps fit each other and the source that they begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._untrusted import read_settings
from olivelike.engine.plan.node import changes_network
from olivelike.errors import SourceError
from olivelike.families import LORA_COMPONENTS, TOKENIZERS
from olivelike.model.components import WEIGHT_FILE_SUFFIXES
from olivelike.pass_api import INPUTS
from olivelike.workflow.findings import Findings, Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from olivelike.engine.plan.building import ActiveSteps
    from olivelike.model.targets import Target
    from olivelike.sources import PipelineSource
    from olivelike.workflow import LoadedWorkflow, Lora, Step

_TORCH, _ONNX = "architecture", "graph"
"""The facet that a source has of a network, by what it is."""


def check_chains(workflow: LoadedWorkflow, steps: ActiveSteps, source: PipelineSource, *, materialized: bool) -> None:
    """Check the chain of each component that the source was opened for.

    Raises `WorkflowError` if passes read a facet that nothing before them makes, compare with an original that nobody
    has, or a chain makes no graph although an output is `materialized`.
    """
    findings = Findings()
    target = workflow.workflow.target
    for name, variant in workflow.variants.items():
        for component, active in steps[name].items():
            if component not in source.checkpoints:
                continue
            has = _TORCH if source.checkpoint(component).graph is None else _ONNX
            end = variant.steps[component][-1].position
            for mistake in _mistakes(component, active, has, target, end, materialized):
                findings.add(*mistake)
    findings.raise_if_any()


def check_scheduler(source: PipelineSource) -> None:
    """Check the settings of a pipeline's scheduler, where the source has one.

    Raises `SourceError` for those that no scheduler could work with.
    """
    from olivelike.runtime.schedulers.class_settings import check_scheduler_config

    path = source.extras.get("scheduler/scheduler_config.json")
    if path is None or source.few_steps is not None:
        return
    config = read_settings(path, "get the file again", unbounded=True)
    try:
        check_scheduler_config(config)
    except SourceError as error:
        raise SourceError(f"{source.origin.place}: {error}") from error


def check_without_source(workflow: LoadedWorkflow) -> None:
    """Check what is wrong with the chains whatever the source holds, for which no file is opened.

    Raises `WorkflowError` with every mistake, if a chain fits neither a torch network nor an ONNX model, or there are
    LoRAs and no chain merges them.
    """
    findings = Findings()
    loaded = workflow.workflow
    single_file = loaded.source.path is not None and loaded.source.path.suffix in WEIGHT_FILE_SUFFIXES
    for variant in workflow.variants.values():
        for lora in loaded.loras:
            for mistake in _unmerged(lora, variant):
                findings.add(*mistake)
        for component, steps in variant.steps.items():
            if component in TOKENIZERS:
                continue
            left = [step for step in steps if loaded.loras or "loras" not in step.instance.reads]
            of_torch, of_onnx = (
                list(_mistakes(component, left, has, loaded.target, steps[-1].position, materialized=True))
                for has in (_TORCH, _ONNX)
            )
            for mistake in of_torch:
                if single_file or of_onnx:
                    findings.add(*mistake)
    findings.raise_if_any()


def _unmerged(lora: Lora, workflow: LoadedWorkflow) -> Iterator[tuple[Position, str]]:
    """Yield a finding if a LoRA is given and no chain of a component that it may change merges it."""
    chains = [
        workflow.steps[name] for name in reversed(LORA_COMPONENTS) if name in workflow.steps and lora.weight_of(name)
    ]
    if chains and not any("loras" in step.instance.reads for chain in chains for step in chain):
        yield (
            chains[0][0].position,
            (
                f"`loras` has {lora.file}, and no chain has `merge_lora`; add it before `convert` to each component "
                "that the LoRA changes"
            ),
        )


def _mistakes(
    component: str, steps: Sequence[Step], has: str, target: Target, where: Position, materialized: bool
) -> Iterator[tuple[Position, str]]:
    """Yield what is wrong with a chain that begins with a network of which the facet `has` is there."""
    changed: Step | None = None
    mixed: tuple[Step, Step] | None = None
    present = {"weights", *INPUTS, has}
    for step in steps:
        instance = step.instance
        missing = sorted(set(instance.reads) - set(instance.optional) - present)
        if missing == ["architecture"]:
            yield (
                step.position,
                (
                    f"pass {step.pass_name!r} needs the torch network of {component}, and this source has it as an "
                    f"ONNX graph; drop `{step.pass_name}`, or use the checkpoint that it was exported from"
                ),
            )
        elif missing:
            yield (
                step.position,
                (
                    f"pass {step.pass_name!r} of {component} needs a {missing[0]}, which no step before it makes; put "
                    "`convert` before it"
                ),
            )
        if mixed is not None and "original" in instance.reads:
            yield (
                step.position,
                (
                    f"pass {step.pass_name!r} compares {component} with its weights as loaded, LoRAs and textual "
                    f"inversions added, and `{mixed[1].pass_name}` adds them to what `{mixed[0].pass_name}` made; put "
                    f"`{mixed[1].pass_name}` before `{mixed[0].pass_name}`"
                ),
            )
        if changes_network(instance):
            changed = changed or step
        elif changed is not None and {"architecture", "weights"} & set(instance.writes):
            mixed = changed, step
        present |= set(instance.writes)
        if reason := instance.unsupported_reason(target):
            yield step.position, reason
    if materialized and "graph" not in present:
        yield where, f"the chain of {component} makes no graph; put `convert` into it"

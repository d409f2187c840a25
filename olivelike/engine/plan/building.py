"""Building the DAG: steps of a workflow, and what its outputs and adapters bring with them, placed as nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from olivelike.engine.output.packages import package_of
from olivelike.engine.plan.calibrated import is_calibrated, with_calibration
from olivelike.engine.plan.node import ADD_EMBEDDINGS, LAYOUT, ONNX_TOKENIZER, Node
from olivelike.engine.plan.variants import merge_variants
from olivelike.errors import UsageError, WorkflowError
from olivelike.families import TOKENIZER_OF, TOKENIZERS, denoiser_among, denoisers_with
from olivelike.families.networks.unet import COMPONENT as UNET
from olivelike.model.client_layouts import DEFAULT, LAYOUTS
from olivelike.model.components import PIPELINE
from olivelike.model.guides import GUIDES, GuideKind
from olivelike.model.low_rank_inputs import LORA_INPUTS
from olivelike.workflow import Step

if TYPE_CHECKING:
    from olivelike.engine.plan.adapters import Adapters
    from olivelike.workflow import LoadedWorkflow, Output


ActiveSteps = Mapping[str | None, Mapping[str, Sequence[Step]]]
"""By variant and component, the steps that have something to do; without a sweep the variant is `None`."""


def active_steps(
    workflow: LoadedWorkflow, outputs: Sequence[Output], adapters: Adapters, only: Collection[str] = ()
) -> ActiveSteps:
    """Return the chains that a run has, those of tokenizers included that a layout wants as ONNX models.

    Raises `UsageError` for a component that the workflow does not have, or that a layout lacks, and `WorkflowError` if
    a LoRA applies to a component and no step merges it.

    Args:
        workflow: The resolved workflow.
        outputs: Folders to write.
        adapters: LoRAs and textual inversions; a step that reads them is left out where none apply.
        only: Components to keep; all if empty.
    """
    _check_components(workflow, outputs, only)
    for output in outputs:
        if (package := package_of(output.layout)) is not None:
            package.check(output, workflow, only)
    found: dict[str | None, dict[str, Sequence[Step]]] = {}
    for name, variant in workflow.variants.items():
        mine = [output for output in outputs if output.variant == name]
        found[name] = {
            component: _active(component, steps, variant, adapters)
            for component, steps in _with_tokenizers(variant, mine).items()
            if (not only or component in only) and any(_holds(o, component, variant) for o in mine)
        }
    return found


def build_nodes(
    workflow: LoadedWorkflow, outputs: Sequence[Output], steps: ActiveSteps, until: str | None = None
) -> tuple[Node, ...]:
    """Place a workflow's steps into a DAG, in an order that puts parents first.

    Raises `UsageError` for a pass that no chain has.

    Args:
        workflow: The resolved workflow.
        outputs: Folders to write.
        steps: Its chains.
        until: Last pass to run in each chain; nothing after it, and no output, becomes a node.
    """
    _check_until(workflow, outputs, until)
    chains = {
        name: with_calibration(_chains(variant, [o for o in outputs if o.variant == name], steps[name], until), variant)
        for name, variant in workflow.variants.items()
    }
    return chains[None] if None in chains else merge_variants(chains)


def _chains(
    workflow: LoadedWorkflow, outputs: Sequence[Output], active: Mapping[str, Sequence[Step]], until: str | None
) -> tuple[Node, ...]:
    assets = Node(f"{PIPELINE}.assets", PIPELINE, "assets", None)
    networks: list[Node] = []
    tokenizers: list[Node] = []
    joins: dict[str, list[str]] = {suffix: [] for suffix in _suffixes(outputs)}
    for component, steps in active.items():
        if component in TOKENIZERS:
            begin = Node(f"{component}.tokenizer", component, "tokenizer", assets.id)
        else:
            begin = Node(f"{component}.load", component, "load", None)
        chain = [begin]
        counts: Counter[str] = Counter()
        for step in steps:
            counts[step.pass_name] += 1
            number = counts[step.pass_name]
            suffix = f".{number}" if number > 1 else ""
            chain.append(Node(f"{component}.{step.pass_name}{suffix}", component, "pass", chain[-1].id, step))
        nodes = tokenizers if component in TOKENIZERS else networks
        nodes += chain[: _length(chain, until)]
        if until is not None:
            continue
        for output, suffix in zip(outputs, _suffixes(outputs), strict=True):
            if not _holds(output, component, workflow):
                continue
            end = chain[: _length(chain, output.until)]
            if LAYOUTS[output.layout].one_file:
                joins[suffix].append(end[-1].id)
            else:
                nodes += _ending(end, output, suffix, workflow)
    wants_assets = until is None or tokenizers or any(map(is_calibrated, networks))
    joined = [
        Node(f"{PIPELINE}.one_file{suffix}", PIPELINE, "one_file", assets.id, output=output, joins=tuple(joins[suffix]))
        for output, suffix in zip(outputs, _suffixes(outputs), strict=True)
        if joins[suffix]
    ]
    return (*networks, *([assets] if wants_assets else []), *tokenizers, *joined)


def _with_tokenizers(workflow: LoadedWorkflow, outputs: Sequence[Output]) -> dict[str, tuple[Step, ...]]:
    """Return the chains, those of tokenizers included that an output's layout wants as ONNX models."""
    chains = dict(workflow.steps)
    if any(LAYOUTS[output.layout].onnx_tokenizer for output in outputs):
        entry = workflow.registry.get(ONNX_TOKENIZER)
        for encoder, tokenizer in TOKENIZER_OF.items():
            if encoder in chains:
                position = chains[encoder][0].position
                chains.setdefault(tokenizer, (Step(ONNX_TOKENIZER, entry.cls(), position),))
    return chains


def _suffixes(outputs: Sequence[Output]) -> list[str]:
    """Return how the nodes of each output are told apart, such as `@ship-optimum`: by as few folders as that takes."""
    if len(outputs) == 1:
        return [""]
    longest = max(len(output.path.parts) for output in outputs)
    for length in range(1, longest + 1):
        # Without what is special in ids, paths and shells.
        names = [re.sub(r"[^\w.+-]+", "-", "-".join(output.path.parts[-length:])) for output in outputs]
        if len(set(names)) == len(names):
            return [f"@{name}" for name in names]
    return [f"@{number}" for number in range(1, len(outputs) + 1)]


def _holds(output: Output, component: str, workflow: LoadedWorkflow) -> bool:
    """Tell whether an output has a component: its layout has it, and, if a tokenizer, wants it or the workflow does."""
    layout = LAYOUTS[output.layout]
    if layout.one_file and component in TOKENIZERS:
        return layout.onnx_tokenizer
    if component in TOKENIZERS:
        return layout.is_pipeline and (layout.onnx_tokenizer or component in workflow.steps)
    return layout.has(component)


def _ending(chain: Sequence[Node], output: Output, suffix: str, workflow: LoadedWorkflow) -> list[Node]:
    """Return the nodes that write the end of a chain to an output, in its layout unless the chain says one."""
    last, nodes = chain[-1], []
    laid_out = last.component in TOKENIZERS or any(node.name == LAYOUT for node in chain)
    if output.layout != DEFAULT and not laid_out:
        position = last.step.position if last.step is not None else workflow.steps[last.component][0].position
        step = Step(LAYOUT, workflow.registry.get(LAYOUT).cls.model_validate({"profile": output.layout}), position)
        last = Node(f"{last.component}.{LAYOUT}{suffix}", last.component, "pass", last.id, step)
        nodes.append(last)
    written = Node(f"{last.component}.materialize{suffix}", last.component, "materialize", last.id, output=output)
    return [*nodes, written]


def _active(component: str, steps: Sequence[Step], workflow: LoadedWorkflow, adapters: Adapters) -> Sequence[Step]:
    """Return the steps that have something to do for a component.

    Textual inversions belong to the source, so the step that adds them comes first without being written. Guides bring
    the step with them that has the UNet take what they give.
    """
    for kind in GUIDES.values():
        if component in denoisers_with(kind.name) and not {*kind.components}.isdisjoint(workflow.steps):
            steps = _with_guide(steps, component, kind, workflow)
    if adapters.loras_of(component) and not any("loras" in step.instance.reads for step in steps):
        names = ", ".join(str(lora.file.path.name) for lora in adapters.loras_of(component))
        raise WorkflowError(
            f"{steps[0].position}: {names} changes {component}, whose chain has no `merge_lora`; add it, or give the "
            f"LoRA `weights: {{{component}: 0}}`"
        )
    if adapters.embeddings_of(component) and not any("embeddings" in step.instance.reads for step in steps):
        entry = workflow.registry.get(ADD_EMBEDDINGS)
        steps = [Step(ADD_EMBEDDINGS, entry.cls(), steps[0].position), *steps]
    return [
        step
        for step in steps
        if ("loras" not in step.instance.reads or adapters.loras_of(component))
        and ("embeddings" not in step.instance.reads or adapters.embeddings_of(component))
    ]


def _with_guide(steps: Sequence[Step], component: str, kind: GuideKind, workflow: LoadedWorkflow) -> Sequence[Step]:
    """Return a denoiser's chain with the step that a kind of guides brings with it."""
    if any(step.pass_name == kind.step for step in steps):
        return steps
    place = len(steps)
    if kind.behind is not None:
        place = next((place for place, step in enumerate(steps, 1) if step.pass_name == kind.behind), 0)
    if not place:
        raise WorkflowError(
            f"{steps[0].position}: {kind.one} changes the attention of the graph that `{kind.behind}` makes, and the "
            f"chain of {component} has no such step; add it, or drop `{kind.key}`"
        )
    entry = workflow.registry.get(kind.step)
    return [*steps[:place], Step(kind.step, entry.cls(), steps[place - 1].position), *steps[place:]]


def _length(chain: Sequence[Node], until: str | None) -> int:
    """Return how many nodes of a chain run, up to the last one of pass `until`; all if it has none."""
    found = [index for index, node in enumerate(chain) if node.step is not None and node.name == until]
    return found[-1] + 1 if found else len(chain)


def _check_components(workflow: LoadedWorkflow, outputs: Sequence[Output], only: Collection[str]) -> None:
    components = dict.fromkeys(name for variant in workflow.variants.values() for name in variant.steps)
    for component in only:
        if component not in components:
            known = ", ".join(components)
            raise UsageError(f"--only {component}: the workflow has no such component; it has {known}")
    for kind in GUIDES.values():
        if {*components} & {*kind.components} and not any(output.layout in kind.clients for output in outputs):
            fed = [layout for layout in LAYOUTS if layout in kind.clients]
            choice = f"one of the layouts {', '.join(fed)}" if len(fed) > 1 else f"the layout {fed[0]}"
            raise UsageError(
                f"the workflow has {kind.some}, and no client of its layouts feeds any ({outputs[0].layout}); choose "
                f"{choice}, or drop `{kind.key}`"
            )
    denoiser = denoiser_among(components)
    passes = {step.pass_name for one in workflow.variants.values() for steps in one.steps.values() for step in steps}
    for output in outputs:
        if LAYOUTS[output.layout].only_unets and denoiser not in (None, UNET):
            raise UsageError(
                f"layout {output.layout} is for pipelines with a UNet, and this one has a {denoiser}; take layout "
                f"{DEFAULT}"
            )
        if only and LAYOUTS[output.layout].one_file:
            raise UsageError(f"--only: the layout {output.layout} is one file of all components; run without it")
        if LAYOUTS[output.layout].one_file and LORA_INPUTS in passes:
            raise UsageError(
                f"layout {output.layout} is one file, and {LORA_INPUTS} writes a graph beside each network; take "
                f"layout {DEFAULT}, or drop the pass"
            )
        if not any(LAYOUTS[output.layout].has(component) for component in components):
            wanted = ", ".join(LAYOUTS[output.layout].components or ())
            raise UsageError(
                f"layout {output.layout} is for {wanted}, which the workflow lacks; add it to `components`"
            )


def _check_until(workflow: LoadedWorkflow, outputs: Sequence[Output], until: str | None) -> None:
    chains = [chain for variant in workflow.variants.values() for chain in variant.steps.values()]
    passes = {step.pass_name for chain in chains for step in chain}
    for name, place in [(until, "--until"), *((output.until, "until") for output in outputs)]:
        if name is not None and name not in passes:
            raise UsageError(f"{place} {name}: no chain has that pass; they have {', '.join(sorted(passes))}")

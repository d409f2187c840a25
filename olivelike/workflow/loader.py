"""Loads a workflow: file, bases and overrides in; a validated `Workflow` with pass instances out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from olivelike._text import did_you_mean
from olivelike.errors import PluginError, UsageError
from olivelike.families import denoisers_with
from olivelike.model.guides import GUIDES, IMAGE_ENCODER, GuideKind
from olivelike.model.plugin_targets import target_names
from olivelike.model.targets import Target, find_target
from olivelike.workflow.calibration_prompts import resolve_calibration
from olivelike.workflow.extends import PIPELINE_KEYS, apply_overrides
from olivelike.workflow.findings import Findings, Position
from olivelike.workflow.long_form import parse_lora
from olivelike.workflow.matrix import Combination, UnnamedCombinationError, is_of_matrix, read_matrix
from olivelike.workflow.passes import Registry, resolve_plugin
from olivelike.workflow.places import Place, absolute, find_workflow, is_hub_id, may_be_path
from olivelike.workflow.validation import resolve_components, resolve_sweep, validate, with_unets_chain
from olivelike.workflow.workflow_file import PARTS, Output, Step, Workflow, WorkflowFile
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, Sequence

if TYPE_CHECKING:
    from olivelike.workflow.passes.allowed_plugins import Ask


@dataclass(frozen=True)
class LoadedWorkflow:
    """A workflow, ready to be planned."""

    workflow: Workflow
    path: Path
    project_folder: Path
    registry: Registry
    steps: dict[str, tuple[Step, ...]]
    """Each component's chain, in the order of a pipeline."""
    sweep: dict[str, dict[str, tuple[Step, ...]]] = field(default_factory=dict)
    """The chains of each variant, by its name, in place of `steps`."""
    combination: str | None = None
    """Name of the combination of a `matrix` that this is."""

    @property
    def variants(self) -> dict[str | None, LoadedWorkflow]:
        """Return the workflow of each variant, by its name; itself, under `None`, where there is no sweep."""
        if not self.sweep:
            return {None: self}
        return {name: replace(self, steps=steps, sweep={}) for name, steps in self.sweep.items()}


def load_workflow(
    ref: str | Path | Place,
    overrides: SequenceOf[str] = (),
    extra_plugins: SequenceOf[str] = (),
    extra_loras: SequenceOf[str] = (),
    *,
    combination: str | Combination | None = None,
    allow_plugins: bool = False,
    ask: Ask | None = None,
) -> LoadedWorkflow:
    """Load and validate a workflow.

    Args:
        ref: path of a workflow file, or name of a shipped one; or a place that brings its own text.
        overrides: `key.path=value`, applied in order after `extends`.
        extra_plugins: more plugins, relative to the current folder.
        extra_loras: more LoRAs, `FILE` or `FILE:WEIGHT`, relative to the current folder.
        combination: which one of the workflow's `matrix`, if it has one.
        allow_plugins: run the plugins that workflow files name; `extra_plugins` run in any case.
        ask: asks whether those may run that were not allowed before; by default they may not.

    Raises:
        WorkflowError: with everything that is wrong, each with its position; a plugin that is not allowed is wrong.
        PluginError: if a plugin can't be loaded.
    """
    place = find_workflow(ref)
    findings = Findings()
    root, combined = _combined(place, combination, overrides, findings)
    apply_overrides(root, [text for text in overrides if not is_of_matrix(text)], place.project_folder, findings)
    listed = list(_listed_plugins(root, place, findings))
    if listed and not allow_plugins:
        from olivelike.workflow.passes.allowed_plugins import require_allowed

        require_allowed(listed, ask, findings)
    plugins = [*(plugin for plugin, _ in listed), *(resolve_plugin(text, Path.cwd()) for text in extra_plugins)]
    registry = Registry.load(plugins)
    steps: dict[str, tuple[Step, ...]] = {}
    if "components" in root.entries:
        steps = resolve_components(root.entries["components"], registry, findings)
    sweep = resolve_sweep(root, registry, findings)
    file = validate(WorkflowFile, root, "", "keys", findings, place.project_folder)
    target = _target(root, findings)
    for key in PIPELINE_KEYS:
        _check_source(root.entries.get(key), key, findings)
    for kind in GUIDES.values():
        components = _check_guides(root, kind, findings)
        if components:
            steps = with_unets_chain(steps, components, registry)
            sweep = {name: with_unets_chain(chains, components, registry) for name, chains in sweep.items()}
            _check_guided(root, kind, steps, findings)
        elif kind.is_file and (unused := steps.keys() & {*kind.components}):
            name = unused.pop()
            findings.add(steps[name][0].position, f"`{name}` is part of {kind.one}; name one as `{kind.key}:`")
    _check_outputs(root, steps, place.project_folder, findings)
    calibration = resolve_calibration(root, file.calibration if file is not None else None, place, findings)
    findings.raise_if_any()
    # Without findings both are there; the checkers can't see that.
    workflow = _workflow(cast("WorkflowFile", file), cast("Target", target), sweep, place)
    added = tuple(parse_lora(text, Path.cwd()) for text in extra_loras)
    workflow = replace(workflow, loras=workflow.loras + added, calibration=calibration)
    if combined is not None:
        outputs = tuple(replace(one, path=_below(one.path, one.variant, combined)) for one in workflow.outputs)
        workflow = replace(workflow, name=f"{workflow.name}@{combined}", outputs=outputs)
    return LoadedWorkflow(workflow, place.path, place.project_folder, registry, steps, sweep, combined)


def _combined(
    place: Place, combination: str | Combination | None, overrides: SequenceOf[str], findings: Findings
) -> tuple[Mapping, str | None]:
    """Return the workflow of one combination of a matrix and its name, or the one that has none.

    Raises `UsageError` if it has a matrix and no combination is named, or none of that name.
    """
    if combination is not None and not isinstance(combination, str):
        return combination.tree(place.project_folder), combination.name
    root, combinations = read_matrix(place, overrides, findings)
    found = {one.name: one for one in combinations}
    if combination in found:
        return found[combination].tree(place.project_folder), combination
    findings.raise_if_any()
    if combination is not None:
        hint = did_you_mean(combination, list(found), "combinations") if found else "it has no `matrix`"
        raise UsageError(f"{place.path} has no combination {combination!r}; {hint}")
    if found:
        raise UnnamedCombinationError(
            f"{place.path} has a `matrix` of {len(found)}, and one is wanted here; name it, such as --combination "
            f"{next(iter(found))} (in Python: Options(combination=…), or run_fleet for all)"
        )
    return root, None


def _below(path: Path, variant: str | None, combination: str) -> Path:
    """Return the folder of a combination: in `output`, around those of a sweep."""
    return path / combination if variant is None else path.parent / combination / variant


def default_cache_dir(loaded: LoadedWorkflow) -> Path:
    """Return the store's folder when the command line names none.

    `$OLIVELIKE_CACHE_DIR`, else `cache/` in the project folder: beside the folder `workflows/` that the file
    lies in, or beside the file itself, or in the current folder for a shipped workflow that was named.
    """
    named = os.environ.get("OLIVELIKE_CACHE_DIR")
    if named and "://" in named:
        raise UsageError("$OLIVELIKE_CACHE_DIR names a folder; a shared store's URL goes into $OLIVELIKE_SHARED_CACHE")
    return absolute(named, Path.cwd()) if named else loaded.project_folder / "cache"


def _listed_plugins(root: Mapping, place: Place, findings: Findings) -> Iterator[tuple[str, Position]]:
    """Yield the plugins, each path relative to the file that lists it, and where they are listed."""
    listed = root.entries.get("plugins")
    for item in listed.items if isinstance(listed, Sequence) else ():
        if isinstance(item, Scalar) and isinstance(item.value, str):
            try:
                folder = (item.position.document.path or place.path).parent
                yield resolve_plugin(item.value, folder), item.position
            except PluginError as error:
                findings.add(item.position, str(error))


def _workflow(file: WorkflowFile, target: Target, sweep: Collection[str], place: Place) -> Workflow:
    """Fill in defaults and make paths absolute."""
    folder = place.project_folder
    outputs = [(output.path, output.until, output.layout or file.layout) for output in file.outputs or ()]
    if file.output is not None:
        outputs = [(file.output, None, file.layout)]
    return Workflow(
        name=file.name or place.path.stem,
        source=file.source,
        vae=file.vae,
        preview=file.preview,
        loras=tuple(file.loras),
        embeddings=tuple(file.embeddings),
        target=replace(
            target,
            device_id=target.device_id if file.target.device_id is None else file.target.device_id,
            precision=file.target.precision or target.precision,
            options={**target.options, **file.target.options},
            session_options=file.target.session_options,
            run_options=file.target.run_options,
        ),
        outputs=tuple(
            Output(absolute(path, folder) / (variant or ""), until, layout, variant)
            for path, until, layout in outputs
            for variant in sweep or (None,)
        ),
        guides=file.guides,
        scheduler_model=file.scheduler_model,
    )


def _target(root: Mapping, findings: Findings) -> Target | None:
    node = _inner(root, "target", "provider")
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        return None
    try:
        target_names()  # A plugin that takes a name of ours is refused, whoever's target is asked for.
        target = find_target(node.value)
    except (UsageError, PluginError) as error:
        findings.add(node.position, str(error))
        return None
    precision = _inner(root, "target", "precision")
    if isinstance(precision, Scalar) and precision.value == "bf16" and not target.bfloat16:
        findings.add(precision.position, f"target {target.name!r} runs no graphs in bfloat16; use fp16")
    return target


def _check_source(source: Node | None, key: str, findings: Findings) -> None:
    if not isinstance(source, Mapping):
        return
    hub, path = _inner(source, "hub"), _inner(source, "path")
    if (hub is None) == (path is None):
        findings.add(source.position, f"`{key}` has either `hub` or `path`; keep exactly one")
    elif (stray := _inner(source, "transformer")) is not None:
        findings.add(stray.position, "`transformer` stands in place of `path`; keep one of them")
    elif hub is not None and (part := next((name for name in PARTS if _inner(source, name) is not None), None)):
        findings.add(source.keys[part], f"`{part}` stands beside the file of a denoiser; a hub id has its own")
    elif path is not None and _inner(source, "revision") is not None:
        findings.add(source.keys["revision"], "`revision` belongs to a hub id; remove it, or use `hub`")
    elif isinstance(hub, Scalar) and isinstance(hub.value, str) and not is_hub_id(hub.value):
        findings.add(hub.position, f"{hub.value!r} is no hub id; write OWNER/NAME, or use `path` for a folder")


def _check_guides(root: Mapping, kind: GuideKind, findings: Findings) -> tuple[str, ...]:
    """Check where the guides of a kind are said to be; return what they become."""
    named = _inner(root, kind.key)
    listed = named.items if isinstance(named, Sequence) else [] if named is None else [named]
    for number, item in enumerate(listed):
        key = f"{kind.key}.{number}" if kind.is_list else kind.key
        if kind.is_file:
            _check_source(_inner(item, IMAGE_ENCODER), f"{key}.{IMAGE_ENCODER}", findings)
        else:
            _check_source(item, key, findings)
    return kind.components[: len(listed)]


def _check_guided(root: Mapping, kind: GuideKind, steps: dict[str, tuple[Step, ...]], findings: Findings) -> None:
    """Check that chains have what a kind of guides asks for."""
    first = kind.components[0]
    (denoiser, *_) = denoisers_with(kind.name)
    if kind.is_file and steps and not {denoiser, first} <= steps.keys():
        findings.add(root.keys[kind.key], f"{kind.one} changes the UNet; add `{denoiser}` to `components`")
    elif steps and first not in steps:
        findings.add(
            root.keys[kind.key],
            f"nothing says which passes run on {kind.some}; add `{first}: [convert, fuse]` to `components`",
        )


def _check_outputs(root: Mapping, steps: dict[str, tuple[Step, ...]], project_folder: Path, findings: Findings) -> None:
    several = _inner(root, "outputs")
    if (several is None) == (_inner(root, "output") is None):
        findings.add(
            root.position if several is None else root.keys["outputs"],
            "a workflow has either `output` or `outputs`; keep exactly one, such as `output: models/NAME`",
        )
    items = several.items if isinstance(several, Sequence) else []
    for path in (_inner(root, "output"), *(_inner(item, "path") for item in items)):
        if isinstance(path, Scalar) and isinstance(path.value, str) and not may_be_path(path.value):
            findings.add(path.position, "this is no path: it holds a character that no file's name can have")
    if not isinstance(several, Sequence):
        return
    names = list(dict.fromkeys(step.pass_name for chain in steps.values() for step in chain))
    seen: dict[Path, str] = {}
    above: dict[Path, str] = {}
    for item in several.items:
        until, path = _inner(item, "until"), _inner(item, "path")
        if isinstance(until, Scalar) and isinstance(until.value, str) and until.value not in names:
            hint = did_you_mean(until.value, names, "passes in this workflow")
            findings.add(until.position, f"no chain has the pass {until.value!r}; {hint}")
        if isinstance(path, Scalar) and isinstance(path.value, str):
            folder = Path(str(absolute(path.value, project_folder)).casefold())  # Some disks do not tell case.
            clash = _clash(path.value, folder, seen, above)
            if clash is not None:
                findings.add(path.position, f"{clash}; give each a folder of its own")
            seen[folder] = path.value
            above |= dict.fromkeys(folder.parents, path.value)


def _clash(text: str, folder: Path, others: dict[Path, str], above: dict[Path, str]) -> str | None:
    """Tell how an output meets one of the others, `None` if it lies apart: a run replaces whole folders.

    Args:
        others: folder → text of those before it.
        above: folder around one of those → its text.
    """
    if folder in others:
        other = others[folder]
        in_case = text != other and text.casefold() == other.casefold()
        return f"the output {text!r} differs from {other!r} in case alone" if in_case else f"two outputs are {text!r}"
    around = next((others[parent] for parent in folder.parents if parent in others), None)
    if around is not None:
        return f"the output {text!r} lies inside another, {around!r}"
    if folder in above:
        return f"the output {above[folder]!r} lies inside another, {text!r}"
    return None


def _inner(node: Node, *keys: str) -> Node | None:
    """Return the node below a chain of keys, or `None` if there is none or it is empty."""
    found: Node | None = node
    for key in keys:
        found = found.entries.get(key) if isinstance(found, Mapping) else None
    return None if isinstance(found, Scalar) and found.value is None else found

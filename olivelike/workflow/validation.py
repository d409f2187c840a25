"""Validates parts of the tree with pydantic and turns its errors into findings with positions.

Resolves `components` and `sweep`: each step becomes a validated instance of its pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence as SequenceOf
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.families import COMPONENTS, TOKENIZERS, denoiser_among
from olivelike.model.records.output import is_device
from olivelike.pass_api import Pass, PrecisionPlan
from olivelike.workflow.extends import merge
from olivelike.workflow.passes.plugin_files import explain_import
from olivelike.workflow.workflow_file import Lora, Step
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, Sequence, kind_of, plain

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from olivelike.workflow.findings import Findings, Position
    from olivelike.workflow.passes import Registry
    from olivelike.workflow.passes.registry import PassEntry

ModelT = TypeVar("ModelT", bound=BaseModel)

_REMEDIES = {
    "bool_type": "use true or false",
    "int_type": "use a whole number",
    "int_from_float": "use a whole number",
    "float_type": "use a number",
    "string_type": "use text, in quotes if it looks like something else",
    "list_type": "use a list, such as [a, b]",
    "tuple_type": "use a list, such as [a, b]",
    "dict_type": "use a map, such as {key: value}",
    "model_type": "use a map, such as {key: value}",
}

_WORDS = {"an object": "a map", "a valid array": "a list", "a valid string": "text", " after validation": ""}


def validate(
    model: type[ModelT], node: Node, path: str, kind: str, findings: Findings, folder: Path | None = None
) -> ModelT | None:
    """Return an instance of `model` with the values of `node`, or `None` with everything wrong in `findings`.

    Values are taken strictly, as JSON: `on` is no boolean and `"1"` no number.

    Args:
        model: the pydantic model.
        node: the part of the tree.
        path: how messages name the part, such as `unet.1.float16`; empty for the whole file.
        kind: what its keys are, in the plural, such as `options`.
        findings: where errors go.
        folder: the project's, where the part names files.
    """
    try:
        return model.model_validate_json(json.dumps(plain(node)), strict=True, context=folder)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
    by_place: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for detail in details:
        # Branches of a union add their own names to the location.
        known = _known_part(node, detail["loc"])
        by_place.setdefault(known, []).append(detail)
    for known, group in by_place.items():
        first = group[0]
        if first["type"] in ("missing", "extra_forbidden"):
            for detail in group:
                _report_key(model, node, detail, kind, findings)
            continue
        target, position = _at(node, known)
        name = ".".join(str(part) for part in (*([path] if path else []), *known))
        wanted = ", or ".join(dict.fromkeys(_wanted(detail["msg"]) for detail in group))
        remedy = _REMEDIES.get(first["type"], "correct it")
        subject = f"`{name}` " if name else ""
        findings.add(position, f"{subject}{wanted}, found {kind_of(target)}; {remedy}")
    return None


def _report_key(model: type[BaseModel], node: Node, detail: ErrorDetails, kind: str, findings: Findings) -> None:
    """Report a key that is unknown or missing."""
    *parents, key = detail["loc"]
    known = _known_part(node, tuple(parents))
    holder, position = _at(node, known)
    if known[:1] == ("loras",) and (spaced := _spaced_weight(holder)) is not None:
        name, weight = spaced
        findings.add(
            position,
            f"a space behind the colon makes a map of this; write {name}:{weight} without it, or "
            f"{{file: {name}, weight: {weight}}}",
        )
        return
    if detail["type"] == "missing":
        findings.add(position, f"missing key {key!r}; add `{'.'.join(map(str, (*known, key)))}: …`")
        return
    removed = getattr(model, "removed_options", {}) if not parents else {}
    fields = [field.alias or name for name, field in _model_at(model, parents).model_fields.items()]
    if isinstance(holder, Mapping):
        position = holder.keys.get(str(key), position)
    if key in removed:
        findings.add(position, f"{key!r} is no longer one of the {kind}: {removed[key]}")
    else:
        findings.add(position, f"unknown key {key!r}; {did_you_mean(str(key), fields, kind)}")


def _spaced_weight(node: Node) -> tuple[str, object] | None:
    """Return name and weight of a LoRA that was written as `FILE: WEIGHT`; `None` of anything else."""
    match node:
        case Mapping(entries=entries) if len(entries) == 1:
            ((name, value),) = entries.items()
            if (
                isinstance(value, Scalar)
                and isinstance(value.value, (int, float))
                and not isinstance(value.value, bool)
                and name not in Lora.model_fields
            ):
                return name, value.value
    return None


def _known_part(node: Node, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the parts of a location that exist in the tree."""
    known: list[str | int] = []
    for part in loc:
        inner = _step_into(node, part)
        if inner is not None:
            known.append(part)
            node = inner
    return tuple(known)


def _at(node: Node, loc: tuple[str | int, ...]) -> tuple[Node, Position]:
    for part in loc:
        node = _step_into(node, part) or node
    return node, node.position


def _step_into(node: Node, part: str | int) -> Node | None:
    match node:
        case Mapping() if isinstance(part, str):
            return node.entries.get(part)
        case Sequence() if isinstance(part, int) and part < len(node.items):
            return node.items[part]
        case _:
            return None


def _model_at(model: type[BaseModel], loc: list[Any]) -> type[BaseModel]:
    """Return the model whose keys stand at a location, as far as annotations tell."""
    for part in loc:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            model = _inner_model(field.annotation) or model
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if inner := _inner_model(argument):
            return inner
    return None


def _wanted(message: str) -> str:
    """Say `must be a list` where pydantic says `Input should be a valid array`."""
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = re.sub(r"^(Input|List|String|Tuple|Set|Dictionary) should", "must", message)
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


def resolve_components(node: Node, registry: Registry, findings: Findings) -> dict[str, tuple[Step, ...]]:
    """Return the steps of each component, networks before tokenizers; mistakes go to `findings`."""
    known = (*COMPONENTS, *TOKENIZERS)
    if not isinstance(node, Mapping):
        findings.add(node.position, f"`components` is {kind_of(node)}; use a map such as {{unet: [convert]}}")
        return {}
    if not node.entries:
        findings.add(node.position, "`components` is empty; add one, such as `unet: [convert]`")
    chains: dict[str, tuple[Step, ...]] = {}
    for component, chain in node.entries.items():
        if component not in known:
            hint = did_you_mean(component, known, "components")
            findings.add(node.keys[component], f"unknown component {component!r}; {hint}")
        if not isinstance(chain, Sequence) or not chain.items:
            found = kind_of(chain) if not isinstance(chain, Sequence) else "an empty list"
            findings.add(chain.position, f"`{component}` is {found}; use a list of steps, such as [convert, float16]")
            continue
        resolved = [
            _step(item, f"{component}.{index}", component, registry, findings) for index, item in enumerate(chain.items)
        ]
        found_steps = [step for step in resolved if step is not None]
        if len(found_steps) == len(resolved):  # A step that is wrong may be the one that another needs.
            _check_order(component, found_steps, findings)
        chains[component] = _with_precision(found_steps)
    return {component: chains[component] for component in known if component in chains}


def with_unets_chain(
    chains: dict[str, tuple[Step, ...]], components: Iterable[str], registry: Registry
) -> dict[str, tuple[Step, ...]]:
    """Return the chains, with those of networks beside the UNet: its own, as far as it applies, where one has none."""
    found = dict(chains)
    denoiser = denoiser_among(chains)
    for component in components:
        if component in chains or denoiser is None:
            continue
        allowed = ((step, registry.get(step.pass_name).cls.components) for step in chains[denoiser])
        kept = [step for step, components in allowed if not components or component in components]
        found[component] = _with_precision(kept)
    return {component: found[component] for component in (*COMPONENTS, *TOKENIZERS) if component in found}


def resolve_sweep(root: Mapping, registry: Registry, findings: Findings) -> dict[str, dict[str, tuple[Step, ...]]]:
    """Return the chains of each variant, laid over `components` as `extends` does; mistakes go to `findings`.

    What is wrong with the shape of an entry is a finding of the schema.
    """
    entries, base = root.entries.get("sweep"), root.entries.get("components")
    if not isinstance(entries, Sequence):
        return {}
    outputs = root.entries.get("outputs")
    if outputs is not None:
        findings.add(
            root.keys["sweep"], "`sweep` writes each variant to a folder in `output`; use that in place of `outputs`"
        )
    variants: dict[str, dict[str, tuple[Step, ...]]] = {}
    folders: dict[str, str] = {}
    for entry in entries.items:
        if not isinstance(entry, Mapping):
            continue
        name, components = entry.entries.get("name"), entry.entries.get("components")
        if not isinstance(name, Scalar) or not isinstance(name.value, str) or not isinstance(base, Mapping):
            continue
        # Some disks do not tell upper from lower case.
        if other := folders.get(name.value.lower()):
            message = (
                f"two variants are {name.value!r}"
                if other == name.value
                else f"{name.value!r} differs from {other!r} in case alone"
            )
            findings.add(name.position, f"{message}; give each a name of its own")
            continue
        if is_device(name.value):
            findings.add(name.position, f"{name.value!r} can't be a folder's name on Windows; give the variant another")
        folders[name.value.lower()] = name.value
        if components is None or (isinstance(components, Scalar) and components.value is None):
            components = Mapping({}, {}, entry.position)
        laid_over = merge(base, components) if isinstance(components, Mapping) else components
        variants[name.value] = resolve_components(laid_over, registry, findings)
    return variants


def _check_order(component: str, chain: SequenceOf[Step], findings: Findings) -> None:
    """Report each step whose pass requires, forbids or repeats another one."""
    for index, step in enumerate(chain):
        for message in _mistakes(step, chain[:index], chain[index + 1 :]):
            findings.add(step.position, f"pass {step.pass_name!r} of {component} {message}")


def _mistakes(step: Step, earlier: SequenceOf[Step], later: SequenceOf[Step]) -> Iterator[str]:
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


def _with_precision(chain: SequenceOf[Step]) -> tuple[Step, ...]:
    """Tell each step that reads it what the nearest step behind it that does so converts the graph to."""
    told: list[Step] = []
    plan = PrecisionPlan()
    for step in reversed(chain):
        told.append(replace(step, precision=plan) if "precision" in step.instance.reads else step)
        plan = step.instance.converts_to() or plan
    return tuple(reversed(told))


def _step(node: Node, path: str, component: str, registry: Registry, findings: Findings) -> Step | None:
    if isinstance(node, Mapping) and (outdented := _outdented(node, registry)):
        name, option = outdented
        findings.add(node.keys[option], f"`{option}` is an option of {name}: indent it below `{name}:`")
        return None
    if not isinstance(node, Mapping) or len(node.entries) != 1:
        found = f"a map with {len(node.entries)} keys" if isinstance(node, Mapping) else kind_of(node)
        findings.add(
            node.position,
            "a step is a pass name or a map with one key, such as {float16: {keep_io: true}}, "
            f"found {found}; give each pass a step of its own",
        )
        return None
    ((name, options),) = node.entries.items()
    position = node.keys[name]
    try:
        entry = registry.get(name)
    except UsageError as error:
        findings.add(position, str(error))
        return None
    allowed = entry.cls.components or COMPONENTS
    if component not in allowed and (entry.cls.components or component in TOKENIZERS):
        findings.add(
            position, f"pass {name!r} does not apply to {component!r}, only to {', '.join(allowed)}; remove the step"
        )
    if not isinstance(options, Mapping):
        findings.add(
            options.position, f"options of {name!r} are a map, such as {{key: value}}, found {kind_of(options)}"
        )
        return None
    instance = _instance(entry, options, f"{path}.{name}", findings)
    return None if instance is None else Step(name, instance, position)


def _outdented(node: Mapping, registry: Registry) -> tuple[str, str] | None:
    """Return a pass without options and the key behind it that is one of them, if a step is that."""
    name, *others = node.entries or ("",)
    options = node.entries.get(name)
    if not others or not isinstance(options, Mapping) or options.entries or name not in registry.names():
        return None
    fields = registry.get(name).cls.model_fields
    return next(((name, key) for key in others if key in fields), None)


def _instance(entry: PassEntry, options: Mapping, path: str, findings: Findings) -> Pass | None:
    folder = entry.module_file.parent if entry.module_file else Path.cwd()
    with explain_import(f"pass {entry.name!r}", folder, "fix the validation of its options"):
        instance = validate(entry.cls, options, path, f"options of {entry.name}", findings)
        return instance and instance.chosen()

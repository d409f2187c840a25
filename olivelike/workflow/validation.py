"""Validates parts of the tree with pydantic and turns its errors into findings with positions."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from olivelike._text import did_you_mean
from olivelike.workflow.yaml_tree import Mapping, Node, Sequence, kind_of, plain

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from olivelike.workflow.findings import Findings, Position

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


def validate(model: type[ModelT], node: Node, path: str, kind: str, findings: Findings) -> ModelT | None:
    """Return an instance of `model` with the values of `node`, or `None` with everything wrong in `findings`.

    Values are taken strictly, as JSON: `on` is no boolean and `"1"` no number.

    Args:
        model: the pydantic model.
        node: the part of the tree.
        path: how messages name the part, such as `unet.1.float16`; empty for the whole file.
        kind: what its keys are, in the plural, such as `options`.
        findings: where errors go."""
    try:
        return model.model_validate_json(json.dumps(plain(node)), strict=True)
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

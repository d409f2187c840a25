"""Descriptions of passes, what they read, write and can be told, as `olivelike passes` shows it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from olivelike._untrusted import Json
from olivelike.workflow.code.code_digest import code_digest
from olivelike.workflow.passes.registry import PassEntry


@dataclass(frozen=True)
class PassOption:
    """One option of a pass."""

    name: str
    type: str
    """As people read it, such as `'fp32' | 'fp16' | none`."""
    required: bool
    default: Any
    """A JSON value."""
    help: str


@dataclass(frozen=True)
class PassDescription:
    """A pass's word on itself; `None` where it says nothing."""

    name: str
    purpose: str
    """The first line of the docstring."""
    description: str
    origin: str
    file: Path | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    tools: tuple[str, ...]
    """Distributions whose version changes the result."""
    files: tuple[str, ...] | None
    environment: tuple[str, ...] | None
    components: tuple[str, ...] | None

    def to_json(self) -> Json:
        """Return the fields as JSON values."""
        lists = {name: list(value) for name, value in vars(self).items() if isinstance(value, tuple)}
        return {**vars(self), **lists, "file": None if self.file is None else str(self.file)}


def describe_pass(entry: PassEntry) -> PassDescription:
    """Say what a pass of a registry does."""
    cls, text = entry.cls, inspect.cleandoc(entry.cls.__doc__ or "")
    return PassDescription(
        name=entry.name,
        purpose=text.partition("\n")[0],
        description=text,
        origin=entry.origin,
        file=entry.module_file,
        reads=tuple(cls.reads),
        writes=tuple(cls.writes),
        tools=tuple(sorted({*cls.tools, *code_digest(entry).tools})),
        files=cls.files,
        environment=cls.environment,
        components=cls.components,
    )


def pass_options(entry: PassEntry) -> tuple[PassOption, ...]:
    """Return the options of a pass of a registry."""
    defaults = entry.cls.model_json_schema().get("properties", {})
    return tuple(
        PassOption(
            name,
            _type_name(field.annotation),
            field.is_required(),
            defaults.get(name, {}).get("default"),
            " ".join((field.description or "").split()),
        )
        for name, field in entry.cls.model_fields.items()
    )


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "none"
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if origin in {Union, UnionType}:
        return " | ".join(map(_type_name, arguments))
    if isinstance(annotation, type) and not arguments:
        return annotation.__name__
    return str(annotation).replace("typing.", "")

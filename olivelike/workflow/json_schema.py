"""The JSON schema of workflow files, for editors; it knows every installed pass and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike.model.components import COMPONENTS, TOKENIZERS
from olivelike.workflow.schema import WorkflowFile

if TYPE_CHECKING:
    from olivelike.workflow.passes import Registry
    from olivelike.workflow.passes.entry import PassEntry


def json_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema, draft 2020-12, of files that use the passes of `registry`."""
    schema = WorkflowFile.model_json_schema(ref_template="#/$defs/{model}")
    definitions = schema["$defs"]
    properties = schema["properties"]
    definitions["TargetSection"]["properties"]["provider"] = _target_names()
    text = {"type": "string", "minLength": 1}
    properties["source"] = _either(text, properties["source"])
    for key in ("loras", "embeddings"):
        properties[key]["items"] = {"oneOf": [text, properties[key]["items"]]}
    properties["vae"]["anyOf"].insert(0, text)
    properties["target"] = _either(_target_names(), properties["target"])
    definitions["Step"] = _step(registry, definitions)
    chain = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Step"}}
    for holder in (properties, definitions["VariantSection"]["properties"]):
        # Nothing can't stand for a map of chains.
        holder["components"] = {
            "description": holder["components"]["description"],
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "properties": {component: {"oneOf": [chain, {"type": "null"}]} for component in (*COMPONENTS, *TOKENIZERS)},
        }
    for key in ("output", "outputs"):
        # Nothing can't stand for a folder; elsewhere it means the default.
        (wanted,) = (branch for branch in properties[key]["anyOf"] if branch != {"type": "null"})
        properties[key] = {"description": properties[key]["description"], **wanted}
    del schema["required"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "olivelike workflow",
        "description": "Which passes run on each component of a Stable Diffusion pipeline.",
        "dependentSchemas": {
            "sweep": {"if": {"properties": {"sweep": {"type": "array"}}}, "then": {"not": {"required": ["outputs"]}}}
        },
        # A file that extends another may leave keys out, and remove components with `~`.
        "if": {"required": ["extends"], "properties": {"extends": {"type": "string"}}},
        "then": {"not": {"required": ["output", "outputs"]}},
        "else": {
            "required": ["source", "target", "components"],
            "oneOf": [{"required": ["output"]}, {"required": ["outputs"]}],
            "properties": {"components": {"additionalProperties": {"type": "array"}}},
        },
    }


def _either(short: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """Return a schema for text or the map that `described` refers to, with its description."""
    return {"description": described["description"], "oneOf": [short, {"$ref": described["$ref"]}]}


def _target_names() -> dict[str, Any]:
    from olivelike.model.targets import ALIASES, TARGETS

    return {"enum": [*TARGETS, *ALIASES], "description": "Name of the target."}


def _step(registry: Registry, definitions: dict[str, Any]) -> dict[str, Any]:
    names = [{"const": entry.name, "description": _purpose(entry)} for entry in registry.entries()]
    options: dict[str, Any] = {}
    for entry in registry.entries():
        reference = f"pass.{entry.name}"
        options_schema = entry.cls.model_json_schema(ref_template=f"#/$defs/{reference}.{{model}}")
        for name, definition in options_schema.pop("$defs", {}).items():
            definitions[f"{reference}.{name}"] = definition
        definitions[reference] = options_schema
        options[entry.name] = {
            "description": _purpose(entry),
            "oneOf": [{"$ref": f"#/$defs/{reference}"}, {"type": "null"}],
        }
    one_key = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": options,
    }
    return {"description": "A pass name, or a map from a pass name to its options.", "oneOf": [*names, one_key]}


def _purpose(entry: PassEntry) -> str:
    """Return the first line of the pass's docstring."""
    return (entry.cls.__doc__ or "").strip().partition("\n")[0]

"""By what code a worker makes the result of each kind of node; `olivelike.engine.execute.tasks` runs it.

A key holds these modules with all that they import, and the versions of the libraries that those import.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from olivelike.engine.keys.key import Key
from olivelike.engine.keys.named import named_inputs
from olivelike.workflow.code.code_digest import CodeDigest, code_digest, module_code_digest
from olivelike.workflow.code.tool_versions import tool_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.engine.plan.node import Node
    from olivelike.pass_api import Pass
    from olivelike.sources import PipelineSource
    from olivelike.workflow.passes import PassEntry

LOAD = ("olivelike.sources.names.adapt",)
LOAD_ONNX = ("olivelike.graphs.adopt.onnx_graph",)
ASSETS = ("olivelike.engine.output.assets",)
TOKENIZER = ("olivelike.engine.output.tokenizer_step",)
MATERIALIZE = ("olivelike.engine.output.materialize", "olivelike.engine.output.pipeline_files")
PASS = ("olivelike.model.model",)
"""What every pass is handed, beside its own code."""
LENT: Mapping[str, tuple[str, ...]] = {
    "architecture": ("olivelike.model.architecture",),
    "weights": ("olivelike.model.weights", "olivelike.engine.execute.stored_tensors"),
    "graph": ("olivelike.model.graph",),
    "original": (
        "olivelike.model.architecture",
        "olivelike.model.weights",
        "olivelike.engine.execute.stored_tensors",
    ),
    "target": ("olivelike.model.targets.target",),
}
"""What a pass is handed for what it reads."""

_BEHIND: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ASSETS: ("tokenizers",),
    MATERIALIZE: ("diffusers", "transformers"),
}
"""Distributions whose version changes a result although no import names them: configs say it, or libraries use it."""


def modules_of(node: Node, source: PipelineSource) -> tuple[str, ...]:
    """Return the modules that make the result of a node that is no pass."""
    match node.kind:
        case "load":
            return LOAD if source.checkpoint(node.component).graph is None else LOAD_ONNX
        case "assets":
            return ASSETS
        case "tokenizer":
            return TOKENIZER
        case _:
            return MATERIALIZE


def code_of(modules: tuple[str, ...]) -> CodeDigest:
    """Return the code behind such modules."""
    return module_code_digest(*modules)


def versions_of(modules: tuple[str, ...], code: CodeDigest) -> dict[str, str]:
    """Return the version of each library behind such modules."""
    return tool_versions(_BEHIND.get(modules, ()), code.tools)


def pass_code(entry: PassEntry, instance: Pass) -> CodeDigest:
    """Return the code of a step: that of its pass and of rules that plugins add, and of what the engine hands it."""
    lent = (module for name in instance.reads for module in LENT.get(name, ()))
    code = code_digest(replace(entry, cls=type(instance)), (*PASS, *lent))
    for added in entry.rules:
        code = code.with_rule(
            added.rule.name, module_code_digest(added.rule.apply.__module__, plugin=added.plugin)
        )
    return code


def pass_key(
    entry: PassEntry, instance: Pass, facets: dict[str, str], target: dict[str, Any] | None
) -> Key | str:
    """Return the key of a step, or why it has none.

    Raises:
        MissingError: if a tool that the pass declares is not installed.
        PluginError: if a data file that it names can't be read.
    """
    code = pass_code(entry, instance)
    if code.digest is None:
        return f"its result can't be kept: {code.uncacheable}"
    options = instance.model_dump(mode="json")
    tools = tool_versions(instance.tools, code.tools)
    return Key(
        entry.name, code.digest, dict(code.modules), options, facets, target, tools, named_inputs(entry)
    )

"""Every formula by which results are told apart, on one page; each digests a list that begins with a word for its kind.

| word | what it tells apart |
| --- | --- |
| `node/1` | results of nodes: `Key.digest` |
| `maker/1` | what works in a node, without what it works on: `Key.maker` |
| `code/1` | code: the digest of each module; `olivelike.workflow.code.code_digest` |
| `loras/1`, `embeddings/1` | what is merged into a component |
| `assets/1`, `tokens/1` | the files beside the networks, and what is added to their tokenizers |
| `precision/1` | what steps behind a pass make of precision |
| `environment/1` | an environment variable that a pass names; `olivelike.engine.keys` |
| `memory/1` | what a pass remembers: its maker, and the question |
| `output-lock/1` | the lock on an output folder |
| `stand-in/1` | files that are not hashed yet, by name; in no key that is kept; `olivelike.engine.plan.inputs` |
"""

from __future__ import annotations

import dis
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from olivelike._untrusted import Json, JsonView
from olivelike.digest import digest_file, digest_json
from olivelike.errors import PluginError
from olivelike.model.architecture import Config
from olivelike.pass_api import Pass, PrecisionPlan
from olivelike.workflow.code.code_digest import CodeDigest, code_digest, module_code_digest
from olivelike.workflow.code.imports import tool_versions
from olivelike.workflow.passes import PassEntry

CONTENT = "content"
"""Name that an item of `Key.behind` has for the digests of its files."""


@dataclass(frozen=True)
class Key:
    """All that decides one node's result."""

    name: str
    """Pass name, or the kind of a node that is no pass, such as `load`."""
    code: str
    """Digest over the modules that do the work and the local modules that they import."""
    modules: dict[str, str]
    """Digest of each of those modules, by name; explains a changed `code`."""
    options: Json
    """The step's options after defaults."""
    facets: dict[str, str]
    """Digest of each facet that the node reads, and of what else it works on."""
    target: Json | None = None
    """Facts of the target, if the pass reads them."""
    tools: dict[str, str] = field(default_factory=dict)
    """Version of each library that the code imports, and of each tool that the pass declares."""
    named: dict[str, str] = field(default_factory=dict)
    """Digest of each data file and environment variable that the pass names."""
    behind: Mapping[str, Mapping[str, JsonView]] = field(default_factory=dict, compare=False)
    """Lists behind digests of `facets`, by the facet and the item's name; no part of the key: for records."""

    @cached_property
    def digest(self) -> str:
        """SHA-256, 64 hexadecimal digits."""
        named = [self.named] if self.named else []
        return digest_json(["node/1", self.name, self.code, self.options, self.facets, self.target, self.tools, *named])

    @property
    def maker(self) -> str:
        """Digest of what works, without what it works on: pass, code, tools, and data files that it names."""
        named = [self.named] if self.named else []
        return digest_json(["maker/1", self.name, self.code, self.tools, *named])

    def inputs(self) -> Json:
        """Return the parts as JSON, for records and for `explain`."""
        parts = asdict(self)
        return {"pass": parts.pop("name"), **parts}


def digest_of_inputs(inputs: JsonView) -> str | None:
    """Return the digest of the key whose parts a record has, as `Key.inputs` gave them; `None` if they are no such."""
    parts = dict(inputs)
    kinds = {"pass": str, "code": str, "modules": dict, "options": dict, "facets": dict, "tools": dict, "named": dict}
    texts = (parts.get(name, {}) for name in ("modules", "facets", "tools", "named"))
    if not all(isinstance(parts.get(name, kind()), kind) for name, kind in kinds.items()):
        return None
    if not all(isinstance(text, str) for table in texts for text in table.values()):
        return None
    try:
        return Key(parts.pop("pass"), **parts).digest
    except (KeyError, TypeError, ValueError):  # A part is missing, there are more, or JSON can't hold it.
        return None


# Nodes that are no pass


def work_key(
    name: str, work: Callable[..., Any], libraries: tuple[str, ...], options: Json, facets: dict[str, str]
) -> Key:
    """Return the key of a node that is no pass.

    Args:
        work: The function that makes its result; the modules that it imports inside itself are its code.
        libraries: Distributions whose version changes the result although no import names them.
        facets: Digest of each thing that it works on.
    """
    code = code_behind(work)
    assert code.digest is not None, code.uncacheable
    versions = tool_versions(libraries, code.tools)
    return Key(name, code.digest, dict(code.modules), options, facets, tools=versions)


def code_behind(work: Callable[..., Any]) -> CodeDigest:
    """Return the code of the modules that a function imports inside itself, with all that they import."""
    return module_code_digest(*_imported_inside(work))


@cache
def _imported_inside(work: Callable[..., Any]) -> tuple[str, ...]:
    names = [step.argval for step in dis.get_instructions(work) if step.opname == "IMPORT_NAME"]
    return tuple(dict.fromkeys(name for name in names if name.startswith("olivelike.")))


# Passes

_LENT_ALWAYS = ("olivelike.model.model",)
_NETWORK = ("olivelike.model.architecture", "olivelike.model.weights", "olivelike.engine.execute.stored_tensors")
_LENT: Mapping[str, tuple[str, ...]] = {
    "architecture": ("olivelike.model.architecture",),
    "weights": ("olivelike.model.weights", "olivelike.engine.execute.stored_tensors"),
    "graph": ("olivelike.model.graph",),
    "original": _NETWORK,
    "target": ("olivelike.model.targets",),
    "calibration": ("olivelike.model.observations",),
    "drawing": ("olivelike.engine.calibration",),
}
"""Modules of the objects that a pass is handed for each thing that it reads; they decide its result too."""


def pass_code(entry: PassEntry, instance: Pass) -> CodeDigest:
    """Return the code of a step: that of its pass and of rules that plugins add, and of what the engine hands it."""
    lent = (module for name in instance.reads for module in _LENT.get(name, ()))
    code = code_digest(replace(entry, cls=type(instance)), (*_LENT_ALWAYS, *lent))
    for added in entry.rules:
        behind = module_code_digest(added.rule.apply.__module__, plugin=added.plugin)
        code = code.with_rule(added.rule.name, behind)
    return code


def pass_key(entry: PassEntry, instance: Pass, facets: dict[str, str], target: Json | None) -> Key | str:
    """Return the key of a step, or why it has none.

    Raises `MissingError` if a tool that the pass declares is not installed, and `PluginError` if a data file that it
    names can't be read.
    """
    code = pass_code(entry, instance)
    if code.digest is None:
        return f"its result can't be kept: {code.uncacheable}"
    options = instance.model_dump(mode="json")
    tools = tool_versions(instance.tools, code.tools)
    named = named_inputs(entry)
    return Key(entry.name, code.digest, dict(code.modules), options, facets, target, tools, named)


# What nodes work on beside facets


def loras_digest(loras: Iterable[tuple[Sequence[str], float, str | None]]) -> str:
    """Return the digest of LoRAs, in whatever order: of each the digests of its files, weight and adapter."""
    rows = [[*files, weight, adapter] for files, weight, adapter in loras]
    return digest_json(["loras/1", sorted(rows, key=str)])


def embeddings_digest(embeddings: Iterable[tuple[str, str]]) -> str:
    """Return the digest of tokens, each with that of its file; their order decides the numbers of the tokens."""
    return digest_json(["embeddings/1", [list(row) for row in embeddings]])


def guides_digest(files: Mapping[str, str]) -> str:
    """Return the digest of guides that are files, by their keys in a workflow, each with that of its file."""
    return digest_json(["guides/1", dict(files)])


def precision_digest(plan: PrecisionPlan) -> str:
    """Return the digest of what steps behind a pass make of precision."""
    return digest_json(["precision/1", asdict(plan)])


def assets_digest(index: Config, files: Mapping[str, str]) -> str:
    """Return the digest of the files beside the networks, and of the classes that the index names for them."""
    classes = {name: entry for name, entry in index.items() if not name.startswith("_")}
    return digest_json(["assets/1", classes, dict(files)])


def tokens_digest(tokens: JsonView) -> str:
    """Return the digest of what tokenizers get, by their folder."""
    return digest_json(["tokens/1", tokens])


def question_digest(maker: str, question: Any) -> str:
    """Return what a pass's answer to a question is kept under."""
    return digest_json(["memory/1", maker, question])


def output_lock(folder: str) -> str:
    """Return the key of the lock on an output folder."""
    return digest_json(["output-lock/1", folder])


def named_inputs(entry: PassEntry) -> dict[str, str]:
    """Return the digest of each file's content and each variable's value; values themselves are kept nowhere.

    Raises `PluginError` if a file is missing or can't be read, or Python does not say where the pass lies.
    """
    found: dict[str, str] = {}
    for name in entry.cls.files or ():
        if entry.module_file is None:
            raise PluginError(f"pass {entry.name}: its data files can't be found, since its module is no file")
        path = entry.module_file.parent / name
        try:
            if not path.is_file():
                raise PluginError(_refused(entry, name, f"there is no file {path}"))
            found[f"data file {name}"] = digest_file(path)
        except OSError as error:
            raise PluginError(_refused(entry, name, f"{path} can't be read: {error.strerror}")) from error
    for name in entry.cls.environment or ():
        found[f"environment variable {name}"] = digest_json(["environment/1", name, os.environ.get(name)])
    return found


def _refused(entry: PassEntry, name: str, reason: str) -> str:
    return (
        f"{entry.module_file}: pass {entry.name} names the data file {name!r} in `files`, but {reason}; "
        "put it there, or correct the name"
    )

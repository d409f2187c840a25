"""Rewrites the short spellings of a workflow file into the long ones, so that later code sees one form.

A source or target given as text becomes a map; a step given as a bare name becomes a map with no options.
"""

from __future__ import annotations

import re
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from olivelike.sources.files.weight_table import WEIGHT_FILE_SUFFIXES
from olivelike.workflow.passes.text_paths import exists
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, Sequence

if TYPE_CHECKING:
    from olivelike.workflow.findings import Position

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def expand_short_forms(root: Node, project_folder: Path) -> None:
    """Rewrite the tree in place; doing it twice changes nothing."""
    if not isinstance(root, Mapping):
        return
    entries = root.entries
    for name in ("source", "vae"):
        match entries.get(name):
            case Scalar(value=str(text)) as scalar:
                key = "path" if is_path(text, project_folder) else "hub"
                entries[name] = _one_key(key, scalar, scalar.position)
    match entries.get("loras"):
        case Sequence() as loras:
            loras.items = [_lora(item) for item in loras.items]
    match entries.get("embeddings"):
        case Sequence() as embeddings:
            embeddings.items = [_named(item, "file") for item in embeddings.items]
    match entries.get("target"):
        case Scalar(value=str()) as scalar:
            entries["target"] = _one_key("provider", scalar, scalar.position)
    sweep = entries.get("sweep")
    variants = sweep.items if isinstance(sweep, Sequence) else []
    for holder in (root, *variants):
        match holder.entries.get("components") if isinstance(holder, Mapping) else None:
            case Mapping(entries=chains):
                for chain in chains.values():
                    if isinstance(chain, Sequence):
                        chain.items = [_step(item) for item in chain.items]


def is_path(text: str, project_folder: Path) -> bool:
    """Tell whether a source given as text is a folder or file; otherwise it is a hub id."""
    return (
        text.startswith(("./", "../", ".\\", "..\\", "/", "~"))
        or bool(PureWindowsPath(text).drive)
        or exists(project_folder / text)
        or text.lower().endswith(WEIGHT_FILE_SUFFIXES)
        or not is_hub_id(text)
    )


def is_hub_id(text: str) -> bool:
    """Tell whether a text has the shape `owner/name`."""
    return _HUB_ID.fullmatch(text) is not None


def split_weight(text: str) -> tuple[str, float | None]:
    """Split `FILE:WEIGHT`; a colon that no number follows belongs to the file, as behind a Windows drive."""
    file, colon, number = text.rpartition(":")
    if colon and file and _NUMBER.fullmatch(number):
        return file, float(number)
    return text, None


def _lora(node: Node) -> Node:
    node = _named(node, "file")
    file = node.entries.get("file") if isinstance(node, Mapping) else None
    if isinstance(node, Mapping) and isinstance(file, Scalar) and isinstance(file.value, str):
        name, weight = split_weight(file.value)
        if weight is not None and "weight" not in node.entries:
            node.put("file", Scalar(name, file.position), file.position)
            node.put("weight", Scalar(weight, file.position), file.position)
    return node


def _named(node: Node, key: str) -> Node:
    match node:
        case Scalar(value=str()) as scalar:
            return _one_key(key, scalar, scalar.position)
    return node


def _step(node: Node) -> Node:
    match node:
        case Scalar(value=str(name)):
            return _one_key(name, Mapping({}, {}, node.position), node.position)
        case Mapping():
            for name, options in node.entries.items():
                if isinstance(options, Scalar) and options.value is None:
                    node.entries[name] = Mapping({}, {}, node.keys[name])
    return node


def _one_key(key: str, node: Node, position: Position) -> Mapping:
    return Mapping({key: node}, {key: position}, position)

"""`--set key.path=value`: changes to a workflow from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from olivelike.workflow.extends import PIPELINE_KEYS, choose_output
from olivelike.workflow.findings import Document, Findings, Position
from olivelike.workflow.long_form import expand_short_forms
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, Sequence, kind_of, parse_yaml

_LONGEST_LABEL = 200
_MOST_KEYS = 20


def apply_overrides(root: Mapping, texts: Iterable[str], project_folder: Path, findings: Findings) -> None:
    """Apply each `key.path=value` to the tree in place; numbers in the path index lists, from 0.

    The value is YAML: a scalar, or a list or map in flow style. Nothing (`key=` or `key=null`) removes the
    key, but for options of a pass, where it is a value.

    Raises:
        WorkflowError: if a value is not YAML; other mistakes go to `findings`.
    """
    for text in texts:
        label = text if len(text) <= _LONGEST_LABEL else f"{text[:_LONGEST_LABEL]}…"
        position = Position(Document(f"--set {label}"), 1, 1)
        path, equals, value_text = text.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys) or len(keys) > _MOST_KEYS:
            findings.add(position, "expected KEY.PATH=VALUE, such as target.device_id=1")
            continue
        value = parse_yaml(value_text, position.document, findings)
        problem = _set(root, keys, value, position)
        if problem:
            findings.add(position, problem)
        expand_short_forms(root, project_folder)


def _set(root: Mapping, keys: list[str], value: Node, position: Position) -> str | None:
    """Put the value where the keys lead; return what is wrong, if anything."""
    node: Node = root
    for depth, key in enumerate(keys[:-1]):
        match node:
            case Mapping() if key in node.entries:
                node = node.entries[key]
            case Mapping():
                if problem := _foreign_step(node, keys[:depth], key):
                    return problem
                inner = Mapping({}, {}, position)
                node.put(key, inner, position)
                node = inner
            case Sequence():
                index = _index(key, node)
                if index is None:
                    return _no_such_item(keys[:depth], node)
                node = node.items[index]
            case Scalar():
                return _no_map(keys[:depth], node)
    return _put(root, node, keys, value, position)


def _put(root: Mapping, node: Node, keys: list[str], value: Node, position: Position) -> str | None:
    last = keys[-1]
    match node:
        case Mapping():
            if problem := _foreign_step(node, keys[:-1], last):
                return problem
            if isinstance(value, Scalar) and value.value is None and len(keys) <= 2 and last in node.entries:
                del node.entries[last]
                return None
            if node is root:
                choose_output(root, {last: value})
            if len(keys) == 2 and keys[0] in PIPELINE_KEYS and last in ("hub", "path"):
                node.entries.clear()
            node.put(last, value, position)
        case Sequence():
            index = _index(last, node)
            if index is None:
                return _no_such_item(keys[:-1], node)
            node.items[index] = value
        case Scalar():
            return _no_map(keys[:-1], node)
    return None


def _foreign_step(node: Mapping, path: list[str], key: str) -> str | None:
    """Say that a step is another pass than the path names, for a step can't be two passes."""
    if path[:1] == ["components"] and len(path) == 3 and node.entries and key not in node.entries:
        present = next(iter(node.entries))
        return f"step `{'.'.join(path)}` is {present!r}, not {key!r}; correct the number or the name"
    return None


def _index(key: str, node: Sequence) -> int | None:
    index = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else -1
    return index if 0 <= index < len(node.items) else None


def _no_map(path: list[str], node: Node) -> str:
    return f"`{'.'.join(path)}` is {kind_of(node)}, not a map; set it whole"


def _no_such_item(path: list[str], node: Sequence) -> str:
    count = len(node.items)
    if not count:
        return f"`{'.'.join(path)}` is an empty list; set it whole"
    return f"`{'.'.join(path)}` is a list of {count}; use a number from 0 to {count - 1}"

"""`extends` and `--set`: reads a workflow file and those that it is based on, merges them, and changes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from olivelike.errors import WorkflowError
from olivelike.model.guides import GUIDES, IMAGE_ENCODER
from olivelike.workflow.findings import Document, Findings, Position, file_label
from olivelike.workflow.long_form import expand_short_forms
from olivelike.workflow.places import SUFFIXES, Place, find_workflow
from olivelike.workflow.workflow_file import WorkflowFile
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, Sequence, kind_of, parse_yaml, read_document

_LONGEST_CHAIN = 20

PIPELINE_KEYS = ("source", "vae", "preview")
"""Keys whose map has either `hub` or `path`."""


_MADE = "the workflow that was made for this command"
"""Name in messages of a text that lies in no file."""


def read_with_bases(place: Place, findings: Findings) -> Mapping:
    """Read a workflow file, put its bases under it, and return the merged tree in long form.

    Relative sources and outputs of a base start at the project of the file that is run. Raises `WorkflowError` if a
    file can't be read or is no map, a base does not exist, or bases form a circle.
    """
    return _read(place.path, place.project_folder, findings, (), place.text)


def _read(
    path: Path, project_folder: Path, findings: Findings, chain: tuple[Path, ...], text: str | None = None
) -> Mapping:
    document = Document(_MADE, tuple((text or "").splitlines()), path)
    if text is None:
        text, document = read_document(path)
    root = parse_yaml(text, document, findings)
    if not isinstance(root, Mapping):
        raise root.position.error(f"a workflow file is a map with keys such as `source:`, found {kind_of(root)}")
    return _with_base(root, path, project_folder, findings, chain)


def _with_base(root: Mapping, path: Path, project_folder: Path, findings: Findings, chain: tuple[Path, ...]) -> Mapping:
    expand_short_forms(root, project_folder)
    reference = root.entries.get("extends")
    if not isinstance(reference, Scalar) or not isinstance(reference.value, str):
        return root  # A reference of a wrong type is a finding of the schema.
    try:
        base_path = find_workflow(reference.value, path.parent).path
    except WorkflowError as error:
        raise reference.position.error(str(error)) from None
    chain = (*chain, path)
    if base_path.resolve() in [known.resolve() for known in chain]:
        circle = " → ".join(file_label(known) for known in (*chain, base_path))
        raise reference.position.error(f"`extends` goes in a circle: {circle}; remove one of the links")
    if len(chain) > _LONGEST_CHAIN:
        raise reference.position.error(
            f"`extends` leads through more than {_LONGEST_CHAIN} files; name the last of them"
        )
    base = _with_base(_base(base_path, reference, findings), base_path, project_folder, findings, chain)
    # A name belongs to one file.
    base.entries.pop("name", None)
    return merge(base, root)


def _base(path: Path, reference: Scalar, findings: Findings) -> Mapping:
    """Read a base; messages quote workflow files alone, for a stranger's `extends` may name any file."""
    text, document = read_document(path)
    found = Findings()
    root: Node | None = None
    try:
        root = parse_yaml(text, document, found)
    except WorkflowError:
        if path.suffix in SUFFIXES:
            raise
    if not isinstance(root, Mapping) or not root.entries.keys() & WorkflowFile.model_fields.keys():
        raise reference.position.error(f"{file_label(path)} is no workflow file; correct `extends`")
    findings.take(found)
    return root


def merge(base: Mapping, over: Mapping) -> Mapping:
    """Return `base` with `over` laid on it: maps merge by key, all else replaces, `~` (nothing) removes."""
    for name in (*PIPELINE_KEYS, *(kind.key for kind in GUIDES.values() if not kind.is_list)):
        chosen = over.entries.get(name)
        if isinstance(chosen, Mapping):
            choose_source(base, name, chosen.entries)
            before, encoder = base.entries.get(name), chosen.entries.get(IMAGE_ENCODER)
            if isinstance(before, Mapping) and isinstance(encoder, Mapping):
                choose_source(before, IMAGE_ENCODER, encoder.entries)
    choose_output(base, over.entries)
    return _merged(base, over)


def choose_source(base: Mapping, name: str, keys: object) -> None:
    """Drop what `base` has, such as its VAE, if `keys` name another one: a revision belongs to one repository."""
    if isinstance(keys, dict) and keys.keys() & {"hub", "path", "file"}:
        base.entries.pop(name, None)


def choose_output(base: Mapping, keys: object) -> None:
    """Drop `output` and `outputs` of `base` if `keys` have one of them, for only one may stand."""
    if isinstance(keys, dict) and keys.keys() & {"output", "outputs"}:
        base.entries.pop("output", None)
        base.entries.pop("outputs", None)


def _merged(base: Mapping, over: Mapping) -> Mapping:
    # The file that is run comes first for its position: a missing key is missing there.
    result = Mapping(dict(base.entries), {**base.keys, **over.keys}, over.position)
    for key, node in over.entries.items():
        result.entries[key] = _laid_over(base.entries.get(key), node)
        if key in base.entries and isinstance(node, Scalar) and node.value is None:
            del result.entries[key]
    return result


def _laid_over(base: Node | None, over: Node) -> Node:
    return _merged(base, over) if isinstance(base, Mapping) and isinstance(over, Mapping) else over


_LONGEST_LABEL = 200
_MOST_KEYS = 20


def apply_overrides(root: Mapping, texts: Iterable[str], project_folder: Path, findings: Findings) -> None:
    """Apply each `key.path=value` to the tree in place; numbers in the path index lists, from 0.

    The value is YAML: a scalar, or a list or map in flow style. Nothing (`key=` or `key=null`) removes the
    key, but for options of a pass, where it is a value. Raises `WorkflowError` if a value is not YAML; other mistakes
    go to `findings`.
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
        problem = set_value(root, keys, value, position)
        if problem:
            findings.add(position, problem)
        expand_short_forms(root, project_folder)


def set_value(root: Mapping, keys: list[str], value: Node, position: Position) -> str | None:
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

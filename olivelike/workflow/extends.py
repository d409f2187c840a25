"""`extends`: reads a workflow file and those that it is based on, and merges them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import WorkflowError
from olivelike.workflow.findings import Document, Findings, file_label
from olivelike.workflow.long_form import expand_short_forms
from olivelike.workflow.places import SUFFIXES, find_workflow
from olivelike.workflow.schema import WorkflowFile
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, kind_of, parse_yaml, read_document

if TYPE_CHECKING:
    from olivelike.workflow.places import Place


_LONGEST_CHAIN = 20

PIPELINE_KEYS = ("source", "vae")
"""Keys whose map has either `hub` or `path`."""


def read_with_bases(place: Place, findings: Findings) -> Mapping:
    """Read a workflow file, put its bases under it, and return the merged tree in long form.

    Relative sources and outputs of a base start at the project of the file that is run.

    Raises:
        WorkflowError: if a file can't be read or is no map, a base does not exist, or bases form a circle.
    """
    return _read(place.path, place.project_folder, findings, (), place.text)


def _read(
    path: Path, project_folder: Path, findings: Findings, chain: tuple[Path, ...], text: str | None = None
) -> Mapping:
    document = Document(file_label(path), tuple((text or "").splitlines()), path)
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
    for name in PIPELINE_KEYS:
        chosen = over.entries.get(name)
        if isinstance(chosen, Mapping):
            choose_source(base, name, chosen.entries)
    choose_output(base, over.entries)
    return _merged(base, over)


def choose_source(base: Mapping, name: str, keys: object) -> None:
    """Drop the source or VAE of `base` if `keys` name another one: a revision belongs to one repository."""
    if isinstance(keys, dict) and keys.keys() & {"hub", "path"}:
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

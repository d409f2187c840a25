"""Rewrites the short spellings of a workflow file into the long ones, so that later code sees one form.

A source or target given as text becomes a map; a step given as a bare name becomes a map with no options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping as MappingOf, Sequence as SequenceOf
from pathlib import Path

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.model.guides import GUIDES, IMAGE_ENCODER, GuideKind
from olivelike.workflow.findings import Position
from olivelike.workflow.places import absolute, file_ref, is_path, source_path, split_weight, weighted_file
from olivelike.workflow.workflow_file import PARTS, Guide, GuideFile, Lora, Source
from olivelike.workflow.yaml_tree import Mapping, Node, Scalar, Sequence

_DENOISER = "transformer"
_ENCODER_OPTION = f"--{IMAGE_ENCODER.replace('_', '-')}"


def expand_short_forms(root: Node, project_folder: Path) -> None:
    """Rewrite the tree in place; doing it twice changes nothing."""
    if not isinstance(root, Mapping):
        return
    entries = root.entries
    match entries.get("source"):
        case Mapping(entries=parts) as source if _DENOISER in parts and not {"path", "hub"} & parts.keys():
            source.put("path", parts.pop(_DENOISER), source.keys.pop(_DENOISER))
    for name in ("source", "vae", "preview"):
        if name in entries:
            entries[name] = _source(entries[name], project_folder)
    for kind in GUIDES.values():
        match entries.get(kind.key):
            case Sequence() as listed:
                listed.items = [_guide(item, kind, project_folder) for item in listed.items]
            case Scalar() | Mapping() as named if not kind.is_list:
                entries[kind.key] = _guide(named, kind, project_folder)
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


def _source(node: Node, project_folder: Path) -> Node:
    match node:
        case Scalar(value=str(text)) as scalar:
            return _one_key("path" if is_path(text, project_folder) else "hub", scalar, scalar.position)
    return node


def _guide(node: Node, kind: GuideKind, project_folder: Path) -> Node:
    if not kind.is_file:
        return _source(node, project_folder)
    node = _named(node, "file")
    if isinstance(node, Mapping) and IMAGE_ENCODER in node.entries:
        node.entries[IMAGE_ENCODER] = _source(node.entries[IMAGE_ENCODER], project_folder)
    return node


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


def require_names(given: dict[str, Iterable[str | None]]) -> None:
    """Refuse an option, of those given with what each names, that names nothing: an empty path is the current folder.

    Raises `UsageError` for the first such.
    """
    for option, texts in given.items():
        for text in texts:
            if text is not None and not text.strip():
                raise UsageError(f"{option} {text!r}: nothing is named; give a file, a folder or a hub id")


def text_source(text: str, folder: Path) -> Source:
    """Return the source or VAE that a text names: a hub id, or a path that starts at `folder`.

    A source of several files is `transformer=FILE,text_encoder=FILE,vae=FILE`, in any order.
    """
    pieces = [piece.partition("=")[::2] for piece in text.split(",")]
    named = dict(pieces)
    if _DENOISER in named and named.keys() <= {_DENOISER, *PARTS} and all(named.values()):
        if len(named) < len(pieces):
            raise UsageError(f"{text}: a network is named twice; keep one of them")
        paths = {name: absolute(path, folder) for name, path in named.items()}
        return Source(path=paths.pop(_DENOISER)).model_copy(update=paths)
    return Source(path=source_path(text, folder)) if is_path(text, folder) else Source(hub=text)


def parse_parts(texts: SequenceOf[str], folder: Path) -> dict[str, Path]:
    """Return what `NAME=PATH` on a command line names beside a denoiser's file, by folder of the pipeline.

    Raises `UsageError` if a name is none, or named twice, or there is no path.
    """
    found: dict[str, Path] = {}
    for text in texts:
        name, _, path = text.partition("=")
        if name not in PARTS:
            raise UsageError(f"--part {text!r}: NAME=PATH names one of {', '.join(PARTS)}")
        if not path.strip():
            raise UsageError(f"--part {text!r}: no path is named; write {name}=FILE")
        if name in found:
            raise UsageError(f"--part {text!r}: {name} is named twice; keep one of them")
        found[name] = absolute(path, folder)
    return found


def parse_lora(text: str, folder: Path) -> Lora:
    """Return the LoRA that `FILE` or `FILE:WEIGHT` on a command line names.

    Raises `UsageError` if it names no file, or its weight is infinite.
    """
    file, weight = weighted_file(text, folder)
    return Lora(file=file, weight=weight)


def text_guides(
    given: MappingOf[str, SequenceOf[str]], image_encoder: str | None, folder: Path
) -> dict[str, tuple[Guide, ...]]:
    """Return the guides that texts on a command line name, both by key; paths start at `folder`.

    Raises `UsageError` for a key that no kind has, a text that names nothing, or an encoder without its guide.
    """
    kinds = {kind.key: kind for kind in GUIDES.values()}
    if unknown := [key for key in given if key not in kinds]:
        raise UsageError(f"no guides are called {unknown[0]!r}; {did_you_mean(unknown[0], list(kinds), 'kinds')}")
    require_names({kinds[key].option: texts for key, texts in given.items()} | {_ENCODER_OPTION: [image_encoder]})
    encoder = None if image_encoder is None else text_source(image_encoder, folder)
    if encoder is not None and not any(given.get(key) for key, kind in kinds.items() if kind.is_file):
        takers = " or ".join(kind.one for kind in kinds.values() if kind.is_file)
        options = " or ".join(kind.option for kind in kinds.values() if kind.is_file)
        raise UsageError(f"{_ENCODER_OPTION} is that of {takers}; name one with {options}")
    return {
        key: tuple(
            GuideFile(file=file_ref(text, folder), image_encoder=encoder)
            if kinds[key].is_file
            else text_source(text, folder)
            for text in texts
        )
        for key, texts in given.items()
    }

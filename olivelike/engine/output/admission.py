"""Demands on output folders before a run: to be ours, to hold this pipeline, and to lie apart from its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from olivelike.engine.output.output_files import explained, is_right, resolved
from olivelike.engine.output.packages import package_of
from olivelike.engine.output.publication import Existing, check_is_ours, check_places
from olivelike.errors import SourceError, UsageError
from olivelike.families import TOKENIZERS
from olivelike.model.client_layouts import LAYOUTS, PACKAGE, PAGE
from olivelike.model.components import INDEX_FILE, MODEL_FILE, PIPELINE
from olivelike.model.guides import GUIDES
from olivelike.model.records.output import FileFacts, OutputRecord, is_plain
from olivelike.workflow.places import exists

if TYPE_CHECKING:
    from olivelike.engine.plan.adapters import Adapters
    from olivelike.engine.plan.node import Node
    from olivelike.engine.prepared import Prepared
    from olivelike.sources import PipelineSource, SourceSpec
    from olivelike.store import Store
    from olivelike.workflow import LoadedWorkflow, Output, Vae

_HINTS = "pipeline"
_MODEL_FILES = {"model_file": MODEL_FILE, "data_file": "weights.pb"}


def check_apart(
    outputs: Iterable[Output], loaded: LoadedWorkflow, source: PipelineSource, adapters: Adapters, store: Store
) -> None:
    """Refuse outputs that meet what a run reads, or each other, through whatever links and spellings.

    Raises `UsageError` naming both, and `SourceError` if a file of the source has a name that leads elsewhere.
    """
    for name in source.extras:
        if not is_plain(name):
            raise SourceError(
                f"the source has a file {ascii(name)[1:-1]}, as its {INDEX_FILE} says, whose name can't be one in "
                "an output folder; rename it, or drop it from there"
            )
    inputs = list(_inputs(loaded, source, adapters))
    seen: list[Output] = []
    for output in outputs:
        for what, path in inputs:
            if _meet(path, output.path):
                raise UsageError(
                    f"output {output.path} overlaps the {what} {path}: a run would replace what it reads; choose "
                    "another folder with --output"
                )
        if _is_inside(resolved(output.path), resolved(store.root)):
            raise UsageError(
                f"output {output.path} lies in the store {store.root}, which removes what it does not need; choose "
                "another folder with --output"
            )
        for other in seen:
            if _meet(other.path, output.path):
                raise UsageError(f"the outputs {other.path} and {output.path} overlap; give each a folder of its own")
        seen.append(output)


def _inputs(loaded: LoadedWorkflow, source: PipelineSource, adapters: Adapters) -> Iterator[tuple[str, Path]]:
    """Yield what a run reads, each with a word for it."""
    workflow = loaded.workflow
    named: list[tuple[str, Vae | SourceSpec | None]] = [
        ("source", workflow.source), ("VAE", workflow.vae), ("tiny VAE", workflow.preview),
    ]  # fmt: skip
    for kind in GUIDES.values():
        specs = [one.spec() for one in workflow.guides.get(kind.key, ())]
        named += [(kind.network_title, spec.network if kind.is_file else spec) for spec in specs]
    for what, given in named:
        if given is not None and given.path is not None:
            yield what, given.path
    files = {path for checkpoint in source.checkpoints.values() for path in checkpoint.files}
    graphs = {checkpoint.graph for checkpoint in source.checkpoints.values() if checkpoint.graph is not None}
    titles = {kind.key: kind.title for kind in GUIDES.values()}
    yield from ((titles[key], file.path) for key, file in source.guide_files.items())
    # Each by itself, since any may be a link.
    yield from (("source's file", path) for path in sorted({*files, *graphs, *source.extras.values()}))
    yield from (("LoRA", opened.file.path) for opened in adapters.loras)
    yield from (("embedding", opened.path) for opened in adapters.embeddings)


def _meet(one: Path, other: Path) -> bool:
    one, other = resolved(one), resolved(other)
    return _is_inside(one, other) or _is_inside(other, one)


def _is_inside(inner: Path, outer: Path) -> bool:
    """Tell whether a path is another or lies below it, however file systems spell them."""
    if inner.is_relative_to(outer):
        return True
    if not exists(outer):
        return False
    return any(exists(path) and path.samefile(outer) for path in (inner, *inner.parents))


def check_output(prepared: Prepared, output: Output) -> None:
    """Refuse a folder that is not ours, holds another pipeline, or one for another client of which a part is made.

    Raises `UsageError` with what is in it, and the remedy.
    """
    check_is_ours(output.path)
    before = OutputRecord.read(output.path)
    if before is None:
        return
    if prepared.options.only and before.layout != output.layout:
        raise UsageError(
            f"output {output.path} is laid out for {before.layout}, not for {output.layout}; run without --only"
        )
    others = {PAGE: "a page that `export-web` wrote", PACKAGE: "a package that `package` put together"}
    if before.layout in others and not prepared.options.overwrite:
        raise UsageError(
            f"output {output.path} is {others[before.layout]}; choose another folder with --output, or "
            "replace it with --overwrite"
        )
    sources = None if prepared.options.overwrite else other_sources(prepared, output, before)
    if sources is not None:
        raise UsageError(
            f"output {output.path} holds another pipeline, made from {sources[0]} for {before.target.name} by the "
            f"workflow {before.workflow} ({', '.join(before.components) or 'no components'}); this run would replace "
            f"it with one from {sources[1]}: choose another folder with --output, or replace it with --overwrite"
        )


def other_sources(prepared: Prepared, output: Output, before: OutputRecord) -> tuple[str, str] | None:
    """Return the source that an output was made from and this run's, `None` if they are one.

    They are told apart by what they are called, and, where this store made the output, by where they are.
    """
    origin = prepared.source.origin
    known = prepared.store.recall_json(_HINTS, str(resolved(output.path)))
    if origin.path is not None and isinstance(known, str) and known != origin.path and exists(Path(known)):
        return known, origin.path
    was, now = before.source.name, origin.name
    return None if was == now else (was, now)


def remember_pipeline(prepared: Prepared, output: Output) -> None:
    """Note which source an output was just made from."""
    prepared.store.remember_json(_HINTS, str(resolved(output.path)), prepared.source.origin.path)


def existing_files(prepared: Prepared, output: Output, before: OutputRecord | None) -> Existing:
    """Return what lies in an output; files that the store has seen unchanged are not read again."""

    def is_current(relative: str, facts: FileFacts) -> bool:
        return is_right(output.path / relative, facts, prepared.store)

    return Existing(resolved(output.path), before.files if before is not None else {}, is_current)


def check_room(prepared: Prepared, output: Output) -> None:
    """Refuse, before anything is made, to put files where somebody else's lie. Raises `UsageError` naming the files."""
    if not output.path.is_dir():
        return
    with explained(output.path):
        existing = existing_files(prepared, output, OutputRecord.read(output.path))
        check_places(existing, _expected(prepared, output), {}, overwrite=prepared.options.overwrite)


def _expected(prepared: Prepared, output: Output) -> Iterator[str]:
    """Yield the files that a run is going to write, as far as they are known before it."""
    target = prepared.workflow.workflow.target.name
    for node in prepared.nodes:
        if node.output == output:
            folder = PurePosixPath(node.folder(target))
            yield from ((folder / name).as_posix() for name in _file_names(node))
    if LAYOUTS[output.layout].tokenizer_files:
        yield from (path for path in prepared.source.extras if path.partition("/")[0] in TOKENIZERS)
    if LAYOUTS[output.layout].is_pipeline and any(node.component == PIPELINE for node in prepared.nodes):
        yield from prepared.source.extras
        yield INDEX_FILE
        if (package := package_of(output.layout)) is not None:
            yield from package.names


def _file_names(node: Node) -> Iterator[str]:
    yield from (_MODEL_FILES | node.file_names).values()
    if node.component not in (*TOKENIZERS, PIPELINE):
        yield "config.json"

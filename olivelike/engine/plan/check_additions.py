"""Opening what comes on top of a source, and checking from headers alone that it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import did_you_mean_path
from olivelike.engine.plan import Additions, OpenedEmbedding, OpenedLora
from olivelike.engine.plan.additions import token_table_shape
from olivelike.errors import SourceError
from olivelike.model.records.origin import Origin

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.sources import PipelineSource
    from olivelike.sources.files.weight_table import ReadPickle
    from olivelike.workflow import Embedding, FileRef, LoadedWorkflow, Lora


def open_additions(loaded: LoadedWorkflow, read_pickle: ReadPickle | None) -> Additions:
    """Open the LoRAs and textual inversions of a workflow as far as their headers; fetch those on a hub.

    Args:
        loaded: The workflow.
        read_pickle: Reads the table of a pickled file; `None` refuses such files.

    Raises:
        SourceError: if one is missing, damaged, or something else than it is taken for; or two add one token.
    """
    loras = tuple(_open_lora(lora, read_pickle) for lora in loaded.workflow.loras)
    embeddings = tuple(_open_embedding(e, read_pickle) for e in loaded.workflow.embeddings)
    by_token: dict[str, OpenedEmbedding] = {}
    for opened in embeddings:
        first = by_token.setdefault(opened.token, opened)
        if first is not opened:
            raise SourceError(
                f"{first.path} and {opened.path} both add the token {opened.token!r}; give one of them another `token:`"
            )
    return Additions(loras, embeddings)


def check_additions(additions: Additions, loaded: LoadedWorkflow, source: PipelineSource) -> None:
    """Check that LoRAs and textual inversions are made for the family of the source, and all of each is used.

    Raises:
        SourceError: if one is not, or has keys for a component that the workflow leaves out.
    """
    components = set.intersection(*(set(variant.steps) for variant in loaded.variants.values()))
    for opened in additions.loras:
        weighty = {name for name in opened.file.components if opened.lora.weight_of(name)}
        if left_out := sorted(weighty - components):
            raise SourceError(
                f"{opened.file.path}: it also changes {left_out[0]}, which the workflow does not have; add it under "
                f"`components:`, or give the LoRA `weights: {{{left_out[0]}: 0}}`"
            )
        if "unet" in source.checkpoints:
            _check_family(opened, source)
    for embedding in additions.embeddings:
        if left_out := sorted(embedding.shapes.keys() - components):
            raise SourceError(
                f"{embedding.path}: it has vectors for {left_out[0]}, which the workflow does not have; add it under "
                "`components:`, or use an embedding that was made for this family"
            )
        _check_embedding(embedding, source)


def fetch(ref: FileRef) -> tuple[Path, Origin]:
    """Return the local path of a file, and its origin.

    Raises:
        SourceError: if it is not there.
    """
    if ref.hub is not None:
        from olivelike.sources.hub import fetch_hub_file

        return fetch_hub_file(ref.hub, ref.name, ref.revision)
    assert ref.path is not None
    if not ref.path.exists():
        remedy = did_you_mean_path(ref.path, "check the path, or name a hub id as `OWNER/NAME/FILE`")
        raise SourceError(f"{ref.path}: no such file; {remedy}")
    return ref.path, Origin("file", ref.path.name, str(ref.path))


def _open_lora(lora: Lora, read_pickle: ReadPickle | None) -> OpenedLora:
    from olivelike.sources.adapters.open_lora import open_lora

    path, origin = fetch(lora.file)
    return OpenedLora(lora, open_lora(path, adapter=lora.adapter, read_pickle=read_pickle), origin)


def _open_embedding(embedding: Embedding, read_pickle: ReadPickle | None) -> OpenedEmbedding:
    from olivelike.sources.adapters.embeddings import read_embedding_table

    path, origin = fetch(embedding.file)
    table = read_embedding_table(path, read_pickle)
    return OpenedEmbedding(path, embedding.token or table.token or path.stem, table.shapes, origin)


def _check_family(opened: OpenedLora, source: PipelineSource) -> None:
    from olivelike.sources.adapters.lora_file import check_family

    width = source.checkpoint("unet").config.get("cross_attention_dim")
    widths = set(width) if isinstance(width, list | tuple) else {width}
    if len(widths) == 1 and isinstance(number := widths.pop(), int):
        check_family(opened.file, number, source.origin.place)


def _check_embedding(opened: OpenedEmbedding, source: PipelineSource) -> None:
    for component, (_, width) in opened.shapes.items():
        if component not in source.checkpoints:
            continue
        table = token_table_shape(source.checkpoint(component))
        if table is not None and width != table[1]:
            raise SourceError(
                f"{opened.path}: its vectors for {component} have {width} numbers, and this pipeline's have "
                f"{table[1]}; it was made for another family of checkpoints"
            )

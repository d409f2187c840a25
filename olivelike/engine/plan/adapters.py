"""Additions to a source: LoRAs and textual inversions, opened and checked as far as their headers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from olivelike._text import did_you_mean_path
from olivelike.errors import SourceError
from olivelike.families import TOKENIZER_OF, denoiser_among, family_of_folder
from olivelike.model.few_steps import ENOUGH, FewSteps
from olivelike.model.records.origin import EmbeddingRecord, LoraRecord, Origin

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike._untrusted import Json
    from olivelike.sources import Checkpoint, PipelineSource
    from olivelike.sources.adapters.lora_file import LoraFile
    from olivelike.sources.files.weight_table import ReadPickle
    from olivelike.workflow import Embedding, FileRef, LoadedWorkflow, Lora


@dataclass(frozen=True)
class OpenedLora:
    """A LoRA of the workflow, and its file."""

    lora: Lora
    file: LoraFile
    origin: Origin

    @property
    def files(self) -> tuple[Path, ...]:
        """Return every file that decides what the LoRA does."""
        return tuple(path for path in (self.file.path, self.file.config_path) if path is not None)

    def record(self, origin: Origin, sha256: str | None = None) -> LoraRecord:
        """Return what records say of it."""
        lora = self.lora
        weights: dict[str, float] = dict(lora.weights.items())
        return LoraRecord(origin, lora.weight, weights, lora.adapter, sha256)


@dataclass(frozen=True)
class OpenedEmbedding:
    """A textual inversion of the workflow, and its file."""

    path: Path
    token: str
    shapes: Mapping[str, tuple[int, int]]
    """Number and width of its vectors for each text encoder."""
    origin: Origin

    def record(self, origin: Origin, sha256: str | None = None) -> EmbeddingRecord:
        """Return what records say of it."""
        vectors = {component: rows for component, (rows, _) in self.shapes.items()}
        return EmbeddingRecord(origin, self.token, vectors, sha256)


@dataclass(frozen=True)
class Adapters:
    """The LoRAs and textual inversions of one workflow."""

    loras: tuple[OpenedLora, ...] = ()
    embeddings: tuple[OpenedEmbedding, ...] = ()

    def loras_of(self, component: str) -> tuple[OpenedLora, ...]:
        """Return the LoRAs that change a component: they have keys for it, and a weight other than 0."""
        return tuple(
            opened for opened in self.loras if component in opened.file.components and opened.lora.weight_of(component)
        )

    @property
    def few_steps(self) -> FewSteps | None:
        """Kind of few-step model by the last LoRA that distils the UNet at half its weight or more."""
        loras = (opened for opened in reversed(self.loras) if _weight_of_denoiser(opened) >= ENOUGH)
        return next((opened.origin.few_steps for opened in loras if opened.origin.few_steps is not None), None)

    def embeddings_of(self, component: str) -> tuple[OpenedEmbedding, ...]:
        """Return the textual inversions that have vectors for a component."""
        return tuple(opened for opened in self.embeddings if component in opened.shapes)

    def files(self, component: str, reads: tuple[str, ...]) -> tuple[Path, ...]:
        """Return the files behind what a pass with these `reads` sees of a component."""
        found: list[Path] = []
        if "loras" in reads:
            found += [path for opened in self.loras_of(component) for path in opened.files]
        if "embeddings" in reads:
            found += [opened.path for opened in self.embeddings_of(component)]
        return tuple(found)

    def tokens(self, source: PipelineSource) -> dict[str, Json]:
        """Return what tokenizers get, by their folder: the `tokens`, and the number that the `first` of them has.

        Further vectors of a token are `TOKEN_1`, `TOKEN_2`, …, as diffusers names them.
        """
        found: dict[str, Json] = {}
        for opened in self.embeddings:
            for component, (rows, _) in opened.shapes.items():
                if component not in source.checkpoints:
                    continue
                shape = token_table_shape(source.checkpoint(component))
                entry = found.setdefault(TOKENIZER_OF[component], {"first": shape and shape[0], "tokens": []})
                entry["tokens"] += [opened.token, *(f"{opened.token}_{i}" for i in range(1, rows))]
        return found


def open_adapters(loaded: LoadedWorkflow, read_pickle: ReadPickle | None) -> Adapters:
    """Open the LoRAs and textual inversions of a workflow as far as their headers; fetch those on a hub.

    Raises `SourceError` if one is missing, damaged, or something else than it is taken for; or two add one token.

    Args:
        loaded: The workflow.
        read_pickle: Reads the table of a pickled file; `None` refuses such files.
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
    return Adapters(loras, embeddings)


def check_adapters(adapters: Adapters, loaded: LoadedWorkflow, source: PipelineSource) -> None:
    """Check that LoRAs and textual inversions are made for the family of the source, and all of each is used.

    Raises `SourceError` if one is not, or has keys for a component that the workflow leaves out.
    """
    components = set.intersection(*(set(variant.steps) for variant in loaded.variants.values()))
    for opened in adapters.loras:
        _check_family(opened, source)
        weighty = {name for name in opened.file.components if opened.lora.weight_of(name)}
        if left_out := sorted(weighty - components):
            raise SourceError(
                f"{opened.file.path}: it also changes {left_out[0]}, which the workflow does not have; add it under "
                f"`components:`, or give the LoRA `weights: {{{left_out[0]}: 0}}`"
            )
        opened.file.check_scales(weighty)
    for embedding in adapters.embeddings:
        if left_out := sorted(embedding.shapes.keys() - components):
            raise SourceError(
                f"{embedding.path}: it has vectors for {left_out[0]}, which the workflow does not have; add it under "
                "`components:`, or use an embedding that was made for this family"
            )
        _check_embedding(embedding, source)


def fetch(ref: FileRef, revision: str | None = None) -> tuple[Path, Origin]:
    """Return the local path of a file, on the hub at a revision, and its origin.

    Raises `SourceError` if it is not there.
    """
    if ref.hub is not None:
        from olivelike.sources.hub import fetch_hub_file

        return fetch_hub_file(ref.hub, ref.name, revision)
    assert ref.path is not None
    if not ref.path.exists():
        remedy = did_you_mean_path(ref.path, "check the path, or name a hub id as `OWNER/NAME/FILE`")
        raise SourceError(f"{ref.path}: no such file; {remedy}")
    if ref.path.is_dir():
        from olivelike.sources.checkpoint import FolderFiles
        from olivelike.sources.source_licenses import origin_of

        return ref.path, replace(origin_of(FolderFiles.local(ref.path)), kind="file", path=str(ref.path))
    return ref.path, Origin("file", ref.path.name, str(ref.path))


def _open_lora(lora: Lora, read_pickle: ReadPickle | None) -> OpenedLora:
    from olivelike.sources.adapters.open_lora import open_lora
    from olivelike.sources.source_licenses import licensed

    path, origin = fetch(lora.file, lora.revision)
    file = open_lora(path, adapter=lora.adapter, read_pickle=read_pickle)
    origin = licensed(origin, lora.license, file.metadata)
    return OpenedLora(lora, file, replace(origin, few_steps=file.few_steps))


def _open_embedding(embedding: Embedding, read_pickle: ReadPickle | None) -> OpenedEmbedding:
    from olivelike.sources.adapters.embeddings import read_embedding_table
    from olivelike.sources.source_licenses import licensed

    path, origin = fetch(embedding.file, embedding.revision)
    table = read_embedding_table(path, read_pickle)
    origin = licensed(origin, embedding.license, table.metadata)
    return OpenedEmbedding(path, embedding.token or table.token or path.stem, table.shapes, origin)


def _weight_of_denoiser(opened: OpenedLora) -> float:
    denoiser = denoiser_among(opened.file.components)
    return opened.lora.weight_of(denoiser) if denoiser else 0.0


def _check_family(opened: OpenedLora, source: PipelineSource) -> None:
    from olivelike.sources.adapters.lora_file import check_denoiser, check_family

    if (denoiser := denoiser_among(source.checkpoints)) is None:
        return
    config = source.checkpoint(denoiser).config
    check_denoiser(opened.file, family_of_folder(source.index, source.checkpoints, config), source.origin.place)
    width = config.get("cross_attention_dim")
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


def token_table_shape(checkpoint: Checkpoint) -> tuple[int, ...] | None:
    """Return number and width of a text encoder's token vectors; `None` if it has no such table."""
    shapes = (shape for name, shape in checkpoint.shapes.items() if name.endswith("token_embedding.weight"))
    return next((shape for shape in shapes if len(shape) == 2), None)

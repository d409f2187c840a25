"""What comes on top of a source: LoRAs and textual inversions, opened as far as their headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.digest import digest_json
from olivelike.model.components import TOKENIZER_OF
from olivelike.model.records.origin import EmbeddingRecord, LoraRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.model.records.origin import Origin
    from olivelike.sources import Checkpoint, PipelineSource
    from olivelike.sources.adapters.lora_file import LoraFile
    from olivelike.workflow import Lora


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
class Additions:
    """The LoRAs and textual inversions of one workflow."""

    loras: tuple[OpenedLora, ...] = ()
    embeddings: tuple[OpenedEmbedding, ...] = ()

    def loras_of(self, component: str) -> tuple[OpenedLora, ...]:
        """Return the LoRAs that change a component: they have keys for it, and a weight other than 0."""
        return tuple(
            opened
            for opened in self.loras
            if component in opened.file.components and opened.lora.weight_of(component)
        )

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

    def loras_digest(self, component: str, digests: Mapping[Path, str]) -> str:
        """Return the digest of all that decides a merge: contents and weights, in whatever order they are listed."""
        rows: list[list[Any]] = [
            [*(digests[path] for path in opened.files), opened.lora.weight_of(component), opened.lora.adapter]
            for opened in self.loras_of(component)
        ]
        rows.sort(key=str)
        return digest_json(["loras/1", rows])

    def embeddings_digest(self, component: str, digests: Mapping[Path, str]) -> str:
        """Return the digest of tokens and vectors; their order decides the numbers of the tokens."""
        rows = [[opened.token, digests[opened.path]] for opened in self.embeddings_of(component)]
        return digest_json(["embeddings/1", rows])

    def tokens(self, source: PipelineSource) -> dict[str, dict[str, Any]]:
        """Return what tokenizers get, by their folder: the `tokens`, and the number that the `first` of them has.

        Further vectors of a token are `TOKEN_1`, `TOKEN_2`, …, as diffusers names them.
        """
        found: dict[str, dict[str, Any]] = {}
        for opened in self.embeddings:
            for component, (rows, _) in opened.shapes.items():
                if component not in source.checkpoints:
                    continue
                shape = token_table_shape(source.checkpoint(component))
                entry = found.setdefault(TOKENIZER_OF[component], {"first": shape and shape[0], "tokens": []})
                entry["tokens"] += [opened.token, *(f"{opened.token}_{i}" for i in range(1, rows))]
        return found


def token_table_shape(checkpoint: Checkpoint) -> tuple[int, ...] | None:
    """Return number and width of a text encoder's token vectors; `None` if it has no such table."""
    shapes = (shape for name, shape in checkpoint.shapes.items() if name.endswith("token_embedding.weight"))
    return next((shape for shape in shapes if len(shape) == 2), None)

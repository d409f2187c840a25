"""What a weight file is, for people: kind, family, precision, what a LoRA changes, and its hashes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.sources.adapters import open_lora, training_notes
from olivelike.sources.adapters.embeddings import read_embedding_table
from olivelike.sources.files.weight_table import read_weight_table
from olivelike.sources.identify.identify import identify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from olivelike.sources import Header, RawTensor
    from olivelike.sources.adapters import LoraFile, TrainingNotes
    from olivelike.sources.identify.identity import Identity


@dataclass(frozen=True)
class LoraInfo:
    """What a LoRA changes."""

    format: str
    kinds: tuple[str, ...]
    family: str | None
    modules: Mapping[str, int]
    """Number of changed layers by component."""
    ranks: tuple[int, ...]
    alphas: tuple[float, ...]
    """Empty where the file states none: the scale is 1 then."""
    notes: TrainingNotes

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "format": self.format,
            "kinds": list(self.kinds),
            "family": self.family,
            "modules": dict(self.modules),
            "ranks": list(self.ranks),
            "alphas": list(self.alphas),
            "name": self.notes.name,
            "network": self.notes.network,
            "base_model": self.notes.base_model,
            "trigger_words": list(self.notes.trigger_words),
        }


@dataclass(frozen=True)
class EmbeddingInfo:
    """What a textual inversion adds."""

    token: str | None
    """As stored; `None` where the file's name stands for it."""
    shapes: Mapping[str, tuple[int, int]]
    """Number and width of the vectors by text encoder."""


@dataclass(frozen=True)
class WeightFileInfo:
    """What was found in a weight file, from its header alone."""

    path: Path
    size: int
    header: Header
    identity: Identity
    lora: LoraInfo | None
    embedding: EmbeddingInfo | None
    problem: str | None
    """Why a LoRA or embedding could not be used."""

    @property
    def data_start(self) -> int | None:
        """Where a safetensors file's tensors begin, in bytes; `None` for pickled files."""
        if self.path.suffix != ".safetensors":
            return None
        return min((tensor.offset for tensor in self.header.tensors.values()), default=self.size)

    def to_json(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
        embedding = None
        if self.embedding is not None:
            shapes = {name: list(shape) for name, shape in self.embedding.shapes.items()}
            embedding = {"token": self.embedding.token, "shapes": shapes}
        return {
            "path": str(self.path),
            "size": self.size,
            "tensors": len(self.header.tensors),
            **self.identity.to_json(),
            "keys": _key_groups(self.header),
            "lora": self.lora.to_json() if self.lora is not None else None,
            "embedding": embedding,
            "problem": self.problem,
            "metadata": dict(self.header.metadata),
        }

    def summary_lines(self) -> Iterator[str]:
        """Yield the findings as lines of text."""
        for title, value in self._rows():
            yield f"{title:<14}{' '.join(value.splitlines())}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        identity = self.identity
        yield "file", f"{self.path}, {self.size:,} bytes"
        yield "kind", identity.description
        if not identity.supported:
            yield "", "not supported"
        if identity.prediction is not None or identity.expected_prediction is not None:
            stated = "as the file says" if identity.prediction else "as is usual for its family"
            yield "prediction", f"{identity.prediction or identity.expected_prediction}, {stated}"
        yield "precision", _precision(identity)
        yield "tensors", str(len(self.header.tensors))
        for prefix, count in _key_groups(self.header).items():
            yield "", f"{prefix} ({count})"
        if self.lora is not None:
            yield from _lora_rows(self.lora)
        if self.embedding is not None:
            yield "token", self.embedding.token or f"{self.path.stem} (the file's name)"
            for component, (count, width) in self.embedding.shapes.items():
                yield "vectors", f"{count} of width {width} for {component}"
        if self.problem is not None:
            yield "problem", self.problem
        for reason in identity.reasons:
            yield "because", reason


def describe_weight_file(
    path: Path, read_pickle: Callable[[Path], Mapping[str, RawTensor]] | None = None
) -> WeightFileInfo:
    """Read a weight file's header and say what it is; no tensor is read.

    Args:
        path: A `.safetensors` file, or a pickled one.
        read_pickle: Reads the table of a pickled file; `None` refuses such files.

    Raises:
        SourceError: if the file is missing or damaged, or pickled and may not be read.
    """
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    lora = embedding = problem = None
    try:
        if identity.kind == "lora":
            lora = _lora_info(open_lora(path, read_pickle=read_pickle))
        elif identity.kind == "embedding":
            table = read_embedding_table(path, read_pickle)
            embedding = EmbeddingInfo(table.token, table.shapes)
    except SourceError as error:
        problem = str(error).removeprefix(f"{path}: ")
    return WeightFileInfo(path, path.stat().st_size, header, identity, lora, embedding, problem)


def _lora_info(lora: LoraFile) -> LoraInfo:
    modules = lora.modules.values()
    return LoraInfo(
        lora.format,
        tuple(sorted(lora.kinds)),
        lora.family,
        dict(sorted(Counter(module.component for module in modules).items())),
        tuple(sorted(lora.ranks)),
        tuple(sorted({module.alpha for module in modules if module.alpha is not None})),
        training_notes(lora.metadata),
    )


def _lora_rows(lora: LoraInfo) -> Iterator[tuple[str, str]]:
    yield "format", f"{lora.format} ({', '.join(lora.kinds)})"
    changes = ", ".join(f"{count} layers of {component}" for component, count in lora.modules.items())
    yield "changes", changes
    yield "rank", ", ".join(map(str, lora.ranks)) or "none: whole factors"
    yield "alpha", ", ".join(f"{alpha:g}" for alpha in lora.alphas) or "not stated: the same as the rank"
    for title, value in (
        ("name", lora.notes.name),
        ("network", lora.notes.network),
        ("trained on", lora.notes.base_model),
        ("trigger words", ", ".join(lora.notes.trigger_words)),
    ):
        if value:
            yield title, value


def _precision(identity: Identity) -> str:
    total = sum(identity.precision.elements.values()) or 1
    shares = sorted(identity.precision.elements.items(), key=lambda item: -item[1])
    return ", ".join(f"{dtype} {100 * count / total:.3g} %" for dtype, count in shares)


def _key_groups(header: Header) -> dict[str, int]:
    """Return how many tensors share the first part of their names, the largest group first."""
    groups = Counter(_prefix(name) for name in header.tensors)
    return dict(groups.most_common(12))


def _prefix(name: str) -> str:
    parts = name.split(".")
    if name.startswith("lora_"):
        return "_".join(name.split("_")[:2])
    return ".".join(parts[:2]) if len(parts) > 2 else parts[0]

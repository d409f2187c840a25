"""What a workflow says of weights that come on top of its source: another VAE, LoRAs, textual inversions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from olivelike.errors import UsageError
from olivelike.sources.files.weight_table import WEIGHT_FILE_SUFFIXES
from olivelike.workflow.long_form import is_hub_id, is_path, split_weight
from olivelike.workflow.passes.text_paths import absolute, exists
from olivelike.workflow.schema import (
    Embedding,
    EmbeddingSection,
    FileRef,
    Lora,
    LoraSection,
    Source,
    SourceSection,
    VaeSection,
)

DEMO = "demo"
_DEMO_FOLDER = Path(__file__).parents[1] / "data" / "demo"


def resolve_source(section: SourceSection | VaeSection, folder: Path) -> Source:
    """Return a source or VAE with its path made absolute."""
    path = _source_path(section.path, folder) if section.path else None
    prediction = getattr(section, "prediction", None)
    return Source(section.hub, path, section.revision, section.variant, prediction)


def text_source(text: str, folder: Path) -> Source:
    """Return the source or VAE that a text names: a hub id, or a path that starts at `folder`."""
    return Source(path=_source_path(text, folder)) if is_path(text, folder) else Source(hub=text)


def _source_path(text: str, folder: Path) -> Path:
    """Return the path that a source names; `demo` is the shipped pipeline where nothing here has that name."""
    path = absolute(text, folder)
    return _DEMO_FOLDER if text == DEMO and not exists(path) else path


def resolve_loras(sections: Iterable[LoraSection], folder: Path) -> tuple[Lora, ...]:
    """Return the LoRAs of a workflow; relative files start at `folder`."""
    return tuple(Lora(file_ref(s.file, folder, s.revision), s.weight, s.weights, s.adapter) for s in sections)


def parse_lora(text: str, folder: Path) -> Lora:
    """Return the LoRA that `FILE` or `FILE:WEIGHT` on a command line names.

    Raises:
        UsageError: if it names no file.
    """
    file, weight = (text, None) if exists(absolute(text, folder)) else split_weight(text)
    if not file.strip():
        raise UsageError(f"--lora {text!r}: no file is named; use FILE or FILE:WEIGHT")
    return Lora(file_ref(file, folder), 1.0 if weight is None else weight)


def resolve_embeddings(sections: Iterable[EmbeddingSection], folder: Path) -> tuple[Embedding, ...]:
    """Return the textual inversions of a workflow; relative files start at `folder`."""
    return tuple(Embedding(file_ref(s.file, folder, s.revision), s.token) for s in sections)


def file_ref(text: str, folder: Path, revision: str | None = None) -> FileRef:
    """Tell a path from a hub id: `OWNER/NAME`, or `OWNER/NAME/FILE` where no such folder is here."""
    owner, _, rest = text.partition("/")
    name, _, file = rest.partition("/")
    if is_hub_id(f"{owner}/{name}") and not exists(folder / owner):
        if not file and not is_path(text, folder):
            return FileRef(hub=text, revision=revision)
        if file.lower().endswith(WEIGHT_FILE_SUFFIXES):
            return FileRef(hub=f"{owner}/{name}", name=file, revision=revision)
    return FileRef(path=absolute(text, folder))

"""Facts about a weight file, for people: kind, family, precision, what a LoRA changes, and its hashes.

Also what trainers leave in a LoRA's header: trigger words, names, the base that it was trained on.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from olivelike._text import quoted
from olivelike._untrusted import Json, open_file, parse_json
from olivelike.errors import SourceError
from olivelike.families import DENOISERS, FAMILIES
from olivelike.families.networks.unet import COMPONENT
from olivelike.model.few_steps import FewSteps, few_steps_of_path
from olivelike.sources.adapters.embeddings import EmbeddingTable, read_embedding_table
from olivelike.sources.adapters.lora_file import LoraFile
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.files.weight_header import Header
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.identify.identify import identify
from olivelike.sources.identify.identity import PLACES, Identity

_CHUNK = 1 << 20
_AUTO_V1 = (0x100000, 0x10000)  # offset and length in bytes
_MOST = 20


@dataclass(frozen=True)
class WeightFileInfo:
    """Findings in a weight file, from its header alone."""

    path: Path
    size: int
    header: Header
    identity: Identity
    lora: LoraFile | None
    embedding: EmbeddingTable | None
    problem: str | None
    """Why a LoRA or embedding, or a part of it, can't be used."""

    @property
    def few_steps(self) -> FewSteps | None:
        """Kind of few-step model of a checkpoint or LoRA; as a last hint its name says so."""
        if self.identity.kind == "lora":
            return None if self.lora is None else self.lora.few_steps
        named = few_steps_of_path(self.path) if self.identity.kind in ("checkpoint", *DENOISERS) else None
        return self.identity.few_steps or named

    @property
    def data_start(self) -> int | None:
        """Offset of a safetensors file's tensors, in bytes; `None` for pickled files."""
        if self.path.suffix != ".safetensors":
            return None
        return min((tensor.offset for tensor in self.header.tensors.values()), default=self.size)

    @property
    def then(self) -> str | None:
        """What can be done with it next: a command, or its place in a workflow."""
        kind, family = self.identity.kind, FAMILIES.get(self.identity.family or "")
        if not self.identity.supported or self.problem is not None:
            return None
        if family is None or kind not in ("checkpoint", family.denoiser) or (kind == COMPONENT):
            return PLACES.get(kind)
        parts = () if family.published.flow is None else family.parts
        absent = (f"--part {name}=FILE " for name in parts if self.identity.part(name) is None)
        made = quoted(f"models/{self.path.stem}")
        return f"olivelike convert {quoted(self.path)} {''.join(absent)}-t TARGET -o {made}"

    def to_json(self) -> Json:
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
            "few_steps": None if self.few_steps is None else asdict(self.few_steps),
            "keys": _key_groups(self.header),
            "lora": _lora_json(self.lora) if self.lora is not None else None,
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
        if self.few_steps is not None:
            yield "few steps", str(self.few_steps)
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


def describe_weight_file(path: str | Path, read_pickle: ReadPickle | None = None) -> WeightFileInfo:
    """Read a weight file's header and say what it is; no tensor is read.

    Args:
        path: A `.safetensors` file, or a pickled one.
        read_pickle: Reads the table of a pickled file; `None` refuses such files.

    Raises:
        SourceError: if the file is missing or damaged, or pickled and may not be read.
    """
    path = Path(path)
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    lora = embedding = problem = None
    try:
        if identity.kind == "lora":
            lora = open_lora(path, read_pickle=read_pickle)
            lora.check_scales(lora.components)
        elif identity.kind == "embedding":
            embedding = read_embedding_table(path, read_pickle)
    except SourceError as error:
        problem = str(error).removeprefix(f"{path}: ")
    return WeightFileInfo(path, path.stat().st_size, header, identity, lora, embedding, problem)


@dataclass(frozen=True)
class FileHashes:
    """Hashes in lower-case hexadecimal.

    Names are those of Civitai's API (https://github.com/civitai/civitai/wiki/REST-API-Reference); A1111 computes the
    same: `AutoV2` is its model hash, `AutoV3` what it prints behind `Lora hashes:`.
    """

    sha256: str
    """Digest of the whole file."""
    auto_v1: str
    """First 8 digits of the SHA-256 of 64 KiB at 1 MiB: the oldest model hash."""
    auto_v2: str
    """First 10 digits of the SHA-256."""
    auto_v3: str | None
    """First 12 digits of the SHA-256 of what follows the header; `None` for other than safetensors files."""

    def to_json(self) -> dict[str, str | None]:
        """Return the hashes as JSON values."""
        return asdict(self)


def hash_file(path: Path, data_start: int | None) -> FileHashes:
    """Read a file once and return its hashes. Raises `SourceError` if it can't be read.

    `data_start` is where a safetensors file's tensors begin, in bytes; `None` for other files.
    """
    whole, data = hashlib.sha256(), hashlib.sha256()
    position = 0
    try:
        with open_file(path) as file:
            offset, length = _AUTO_V1
            file.seek(offset)
            oldest = hashlib.sha256(file.read(length)).hexdigest()
            file.seek(0)
            while piece := file.read(_CHUNK):
                whole.update(piece)
                if data_start is not None and position + len(piece) > data_start:
                    data.update(memoryview(piece)[max(0, data_start - position) :])
                position += len(piece)
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; check the file") from error
    sha256 = whole.hexdigest()
    auto_v3 = data.hexdigest()[:12] if data_start is not None else None
    return FileHashes(sha256, oldest[:8], sha256[:10], auto_v3)


def _lora_json(lora: LoraFile) -> Json:
    notes = training_notes(lora.metadata)
    return {
        "format": lora.format,
        "kinds": sorted(lora.kinds),
        "family": lora.family,
        "modules": _layers(lora),
        "ranks": sorted(lora.ranks),
        "alphas": _alphas(lora),
        "name": notes.name,
        "network": notes.network,
        "base_model": notes.base_model,
        "trigger_words": list(notes.trigger_words),
    }


def _lora_rows(lora: LoraFile) -> Iterator[tuple[str, str]]:
    notes = training_notes(lora.metadata)
    yield "format", f"{lora.format} ({', '.join(sorted(lora.kinds))})"
    yield "changes", ", ".join(f"{count} layers of {component}" for component, count in _layers(lora).items())
    yield "rank", ", ".join(map(str, sorted(lora.ranks))) or "none: whole factors"
    yield "alpha", ", ".join(f"{alpha:g}" for alpha in _alphas(lora)) or "not stated: the same as the rank"
    for title, value in (
        ("name", notes.name),
        ("network", notes.network),
        ("trained on", notes.base_model),
        ("trigger words", ", ".join(notes.trigger_words)),
    ):
        if value:
            yield title, value


def _layers(lora: LoraFile) -> dict[str, int]:
    """Return the number of changed layers by component."""
    return dict(sorted(Counter(module.component for module in lora.modules.values()).items()))


def _alphas(lora: LoraFile) -> list[float]:
    """Return the alphas that scale something; those that are no number are a problem of the file."""
    used = {module.alpha for module in lora.modules.values() if module.rank is not None and module.alpha is not None}
    return sorted(filter(math.isfinite, used))


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


@dataclass(frozen=True)
class TrainingNotes:
    """Notes for people; nothing in the merge depends on them."""

    name: str | None
    """Title or output name."""
    network: str | None
    """The trainer's module, with the algorithm if it names one, such as `lycoris.kohya (loha)`."""
    base_model: str | None
    """The checkpoint that it was trained on."""
    trigger_words: tuple[str, ...]
    """Stated trigger phrases first, then the most frequent tags of the training pictures."""


def training_notes(metadata: Mapping[str, str]) -> TrainingNotes:
    """Return what a header's metadata says, by kohya's `ss_*` keys and Stability's `modelspec.*`.

    Sources: https://github.com/kohya-ss/sd-scripts (`train_network.py`) and
    https://github.com/Stability-AI/ModelSpec. Keys that are damaged are left out.
    """
    network = metadata.get("ss_network_module")
    arguments = _object(metadata.get("ss_network_args"))
    if network and isinstance(arguments.get("algo"), str):
        network = f"{network} ({arguments['algo']})"
    phrases = (metadata.get("modelspec.trigger_phrase"), metadata.get("ss_trigger_words"))
    stated = [word.strip() for phrase in phrases if phrase for word in phrase.split(",")]
    words = dict.fromkeys([*filter(None, stated), *_frequent_tags(metadata.get("ss_tag_frequency"))])
    return TrainingNotes(
        _first(metadata, "modelspec.title", "ss_output_name"),
        network,
        _first(metadata, "ss_sd_model_name", "ss_base_model_version", "modelspec.architecture"),
        tuple(words),
    )


def _first(metadata: Mapping[str, str], *keys: str) -> str | None:
    return next((metadata[key] for key in keys if metadata.get(key, "None") not in ("", "None")), None)


def _frequent_tags(text: str | None) -> list[str]:
    """Return the most frequent tags over all folders of training pictures, the most frequent first."""
    counts: Counter[str] = Counter()
    for folder in _object(text).values():
        if isinstance(folder, dict):
            counts.update({tag.strip(): n for tag, n in folder.items() if isinstance(n, int)})
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [tag for tag, _ in ranked if tag][:_MOST]


def _object(text: str | None) -> Json:
    try:
        value = parse_json(text) if text else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

"""The files of a component's folder: those with its weights, or what a part without weights can't do without."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_DIFFUSERS_STEM = "diffusion_pytorch_model"
WEIGHT_SUFFIXES = (
    ".safetensors",
    ".bin",
    ".ckpt",
    ".pt",
    ".pth",
    ".msgpack",
    ".h5",
    ".onnx",
    ".gguf",
    ".xml",
)

_TOKENIZER = re.compile(r"Tokenizer(Fast)?$")
_MAIN_FILES = {
    re.compile(r"Scheduler$"): "scheduler_config.json",
    re.compile(r"(FeatureExtractor|ImageProcessor)(Fast)?$"): "preprocessor_config.json",
}


@dataclass(frozen=True)
class WeightFile:
    """One file that leads to all weights of a component."""

    name: str
    sharded: bool
    """`name` is an index that tells each tensor's file."""
    pickled: bool


def find_weight_file(names: frozenset[str], library: str, variant: str | None) -> WeightFile | None:
    """Return what the library would load from a folder with the files `names`; safetensors come first.

    diffusers looks for shards before a single file, transformers the other way round.
    """
    return next((file for file in _candidates(library, variant) if file.name in names), None)


def weight_files_among(names: frozenset[str]) -> list[str]:
    """Return the names that look like weights, sorted, for messages."""
    return sorted(
        name for name in names if name.endswith((*WEIGHT_SUFFIXES, ".json")) and name != "config.json"
    )


def missing_main_file(class_name: str, names: Collection[str]) -> str | None:
    """Return the main file that a tokenizer, scheduler or image processor lacks; `None` if it lacks none.

    Args:
        class_name: as the index has it; a network's has no main file here.
        names: the files in its folder; empty if there is no folder.
    """
    if _TOKENIZER.search(class_name):
        return _missing_vocabulary(names)
    for pattern, main_file in _MAIN_FILES.items():
        if pattern.search(class_name) and main_file not in names:
            return main_file
    return None


def _missing_vocabulary(names: Collection[str]) -> str | None:
    # A `.model` file is the vocabulary of a SentencePiece tokenizer, such as T5's.
    if "tokenizer.json" in names or any(name.endswith(".model") for name in names):
        return None
    if "vocab.json" not in names:
        return "vocab.json (or tokenizer.json)"
    return "merges.txt" if "merges.txt" not in names else None


def _candidates(library: str, variant: str | None) -> Iterator[WeightFile]:
    # A class of a pipeline's own package, such as the safety checker, may belong to either library.
    stems = {"diffusers": [_DIFFUSERS_STEM], "transformers": ["model"]}.get(
        library, ["model", _DIFFUSERS_STEM]
    )
    for pickled in (False, True):
        for stem in stems:
            own_stem = "pytorch_model" if pickled and stem == "model" else stem
            files = list(_spellings(own_stem, variant, pickled=pickled))
            yield from files if stem == _DIFFUSERS_STEM else sorted(files, key=lambda file: file.sharded)


def _spellings(stem: str, variant: str | None, *, pickled: bool) -> Iterator[WeightFile]:
    suffix = "bin" if pickled else "safetensors"
    if variant is None:
        yield WeightFile(f"{stem}.{suffix}.index.json", sharded=True, pickled=pickled)
        yield WeightFile(f"{stem}.{suffix}", sharded=False, pickled=pickled)
        return
    yield WeightFile(f"{stem}.{suffix}.index.{variant}.json", sharded=True, pickled=pickled)
    yield WeightFile(
        f"{stem}.{suffix}.{variant}.index.json", sharded=True, pickled=pickled
    )  # older diffusers
    yield WeightFile(f"{stem}.{variant}.{suffix}", sharded=False, pickled=pickled)

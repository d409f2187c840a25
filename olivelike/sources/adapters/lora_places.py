"""Which file of a path is the LoRA: the path itself, or one of the names that diffusers and PEFT give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike._text import did_you_mean_path
from olivelike.errors import SourceError
from olivelike.sources.adapters.lora_settings import CONFIG_NAME

if TYPE_CHECKING:
    from pathlib import Path

_DIFFUSERS = "pytorch_lora_weights"
_PEFT = "adapter_model"
SUFFIXES = (".safetensors", ".bin", ".pt", ".ckpt")


@dataclass(frozen=True)
class Place:
    """The files of one LoRA."""

    weights: Path
    config: Path | None
    """PEFT's config beside the weights."""
    adapter: str | None
    """The adapter to take from the file; `None` once a folder has chosen it."""


def find_files(path: Path, adapter: str | None) -> Place:
    """Return the files of a LoRA.

    Raises:
        SourceError: if there is none, or several and none is chosen.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise SourceError(f"{path}: a LoRA file ends in {', '.join(SUFFIXES)}; check the path")
        return Place(path, _config_beside(path), adapter)
    if not path.is_dir():
        remedy = did_you_mean_path(path, "check the path of the LoRA")
        raise SourceError(f"{path}: no such file or folder; {remedy}")
    weights = _weights_in(path)
    if weights is not None:
        return Place(weights, _config_beside(weights), adapter)
    # PEFT saves each adapter but the default one in a folder of its name.
    adapters = {entry.name: entry for entry in sorted(path.iterdir()) if (entry / CONFIG_NAME).is_file()}
    if adapter in adapters or (adapter is None and len(adapters) == 1):
        name = adapter if adapter is not None else next(iter(adapters))
        weights = _weights_in(adapters[name])
        if weights is not None:
            return Place(weights, _config_beside(weights), None)
        raise SourceError(f"{adapters[name]}: it has {CONFIG_NAME} and no weights; get the folder again")
    if not adapters:
        raise SourceError(
            f"{path}: this folder has no LoRA: no {_DIFFUSERS}.safetensors, no {_PEFT}.safetensors, and no other "
            ".safetensors file; name the file itself",
        )
    wanted = "it holds several adapters" if adapter is None else f"there is no adapter {adapter!r}"
    raise SourceError(f"{path}: {wanted}; choose one of {', '.join(adapters)} with `adapter:`")


def _weights_in(folder: Path) -> Path | None:
    for suffix in (".safetensors", ".bin"):
        named = [folder / f"{stem}{suffix}" for stem in (_DIFFUSERS, _PEFT)]
        found = next((path for path in named if path.is_file()), None)
        if found is not None:
            return found
    others = sorted(entry for entry in folder.iterdir() if entry.suffix == ".safetensors" and entry.is_file())
    if len(others) > 1:
        names = ", ".join(entry.name for entry in others)
        raise SourceError(f"{folder}: it has several .safetensors files ({names}); name one of them")
    return others[0] if others else None


def _config_beside(weights: Path) -> Path | None:
    config = weights.with_name(CONFIG_NAME)
    return config if config.is_file() else None

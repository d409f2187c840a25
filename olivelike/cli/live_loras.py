"""`--lora` for a folder that is optimised already: its initializers change in memory, and no file does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from olivelike.runtime.pictures import UsedFile


@dataclass(frozen=True, eq=False)
class LiveLoras:
    """LoRAs on top of what a folder holds."""

    files: tuple[UsedFile, ...]
    """Their names, hashes as A1111 prints them, and weights."""
    initializers: Mapping[str, Mapping[str, np.ndarray[Any, Any]]]
    """Per component, what sessions take in place of the file's."""


def read_live_loras(texts: Sequence[str], folder: Path, allow_pickle: bool) -> LiveLoras:
    """Merge LoRAs into what a folder holds.

    Args:
        texts: `FILE` or `FILE:WEIGHT`; a file may be a hub id.
        folder: as `olivelike run` wrote it.
        allow_pickle: read pickled files too.

    Raises:
        UsageError: if a text names no file.
        SourceError: if a file is no LoRA, or does not fit.
    """
    if not texts:
        return LiveLoras((), {})
    from pathlib import Path

    from olivelike.engine.additions import fetch
    from olivelike.lora import WeightedLora, open_lora
    from olivelike.output.swap import swap_loras
    from olivelike.runtime.pictures import UsedFile
    from olivelike.sources.file_hashes import hash_file
    from olivelike.sources.pickled import read_pickle_table
    from olivelike.workflow.weight_inputs import parse_lora

    opened, used = [], []
    for text in texts:
        lora = parse_lora(text, Path.cwd())
        path, _ = fetch(lora.file)
        file = open_lora(path, read_pickle=read_pickle_table if allow_pickle else None)
        opened.append(WeightedLora(file, lora.weight))
        hashes = hash_file(file.path, _data_start(file.path))
        used.append(UsedFile(file.path.stem, (hashes.auto_v3 or hashes.sha256)[:12], lora.weight))
    return LiveLoras(tuple(used), swap_loras(folder, opened))


def _data_start(path: Path) -> int | None:
    """Return where the tensors of a safetensors file begin; its header's length comes first, in 8 bytes."""
    if path.suffix != ".safetensors":
        return None
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")

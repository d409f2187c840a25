"""Whether LoRAs fit an output."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._untrusted import object_or_empty
from olivelike.errors import SourceError
from olivelike.families import DENOISERS, denoiser_among, family_of_folder
from olivelike.model.records.output import OutputRecord

if TYPE_CHECKING:
    from olivelike.sources.adapters.lora_file import LoraFile, WeightedLora


def check_loras(
    folder: Path, record: OutputRecord, loras: Sequence[WeightedLora], only: Collection[str] = ()
) -> set[str]:
    """Return the components that LoRAs change, of some or all. Raises `SourceError` if one does not fit the folder."""
    wanted = {name for weighted in loras if weighted.weight for name in weighted.file.components}
    wanted &= set(only) or wanted
    for weighted in loras:
        check_lora(weighted.file, wanted, folder, record)
    return wanted


def check_lora(lora: LoraFile, wanted: set[str], folder: Path, record: OutputRecord) -> None:
    """Check one LoRA's wanted components. Raises `SourceError` if a folder lacks one, or is of another family."""
    from olivelike.sources.adapters.lora_file import check_denoiser, check_family

    # An output without a denoiser tells nothing of the family.
    if config := object_or_empty(folder / (denoiser_among(record.components) or DENOISERS[0]) / "config.json"):
        index = object_or_empty(folder / "model_index.json")
        check_denoiser(lora, family_of_folder(index, record.components, config), str(folder))
    if missing := sorted((lora.components & wanted) - record.components.keys()):
        raise SourceError(f"{lora.path}: changes {missing[0]}, which {folder} does not have")
    if isinstance(width := config.get("cross_attention_dim"), int):
        check_family(lora, width, str(folder))

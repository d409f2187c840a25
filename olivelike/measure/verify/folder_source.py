"""What an output folder was made from, as `verify_folder` is told or finds out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.digest import digest_file
from olivelike.engine.plan.adapters import fetch
from olivelike.engine.preparation import source_spec
from olivelike.errors import UsageError
from olivelike.measure.bench.engines import EngineAbsent
from olivelike.measure.bench.source_checkpoint import recorded_checkpoint
from olivelike.sources import SourceSpec
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.files.pickled import read_pickle_table
from olivelike.workflow.weight_inputs import parse_lora, text_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.model.records.output import OutputRecord


def spec_of(folder: Path, record: OutputRecord, against: str | None, vae: str | None) -> SourceSpec:
    """Return the source to compare with: the one that is named, or that the folder names if it is found.

    Raises:
        UsageError: if it is not found, or the folder has another VAE that is not named.
    """
    said = record.source
    other = text_source(vae, Path.cwd()) if vae is not None else None
    if other is None and said.vae is not None:
        raise UsageError(f"{folder} has another VAE, {said.vae.name}; name it with --vae")
    if against is not None:
        return source_spec(text_source(against, Path.cwd()), other)
    if said.kind == "hub" and said.file is None:
        spec = SourceSpec(hub=said.name, revision=said.commit)
        return spec if other is None else replace(spec, vae=source_spec(other, None))
    try:
        found = recorded_checkpoint(folder)
    except EngineAbsent:
        raise UsageError(
            f"{folder} was made from {said.name}, whose place it does not know; name it with --against"
        ) from None
    return source_spec(text_source(found.place, Path.cwd()), other)


def merged_loras(record: OutputRecord, texts: Sequence[str], allow_pickle: bool) -> list[WeightedLora]:
    """Return the LoRAs that were merged into the folder.

    Raises:
        UsageError: if they are not those that the record lists, or tokens were added, which can't be done again here.
    """
    if record.embeddings:
        tokens = ", ".join(entry.token for entry in record.embeddings)
        raise UsageError(
            f"the folder has textual inversions ({tokens}) in its text encoder, which the checkpoint lacks; put the "
            "step `verify` into the chains of its workflow"
        )
    opened, digests = [], []
    for text in texts:
        lora = parse_lora(text, Path.cwd())
        path, _ = fetch(lora.file)
        file = open_lora(path, adapter=lora.adapter, read_pickle=read_pickle_table if allow_pickle else None)
        opened.append(WeightedLora(file, lora.weight))
        digests.append([digest_file(file.path), lora.weight])
    merged = [[entry.sha256, entry.weight] for entry in record.loras]
    if any(entry.weights for entry in record.loras):
        raise UsageError(
            "the folder's LoRAs have weights of their own for single components; put the step `verify` into the "
            "chains of its workflow"
        )
    if sorted(map(str, digests)) != sorted(map(str, merged)):
        wanted = " ".join(f"--lora {entry.origin.place}:{entry.weight:g}" for entry in record.loras)
        raise UsageError(
            f"the folder has other LoRAs merged than the command says; give exactly {wanted or 'none'}"
        )
    return opened

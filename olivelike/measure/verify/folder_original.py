"""The original of an output folder: the checkpoint that it was made of, its LoRAs merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._text import quoted
from olivelike.digest import digest_file
from olivelike.engine.plan.adapters import fetch
from olivelike.engine.preparation import source_spec
from olivelike.errors import PassError, UsageError
from olivelike.families import denoiser_among
from olivelike.families.networks.unet import with_image_prompt
from olivelike.measure.original_checkpoint import OriginalAbsent, recorded_checkpoint
from olivelike.model import Tensor
from olivelike.model.tensor_file import read_tensor
from olivelike.sources import PipelineSource, SourceSpec, open_source
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.merge import changes
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.files.pickled import read_pickle_table
from olivelike.sources.names.adapt import read_network
from olivelike.workflow.long_form import parse_lora, text_source
from olivelike.workflow.workflow_file import Source

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model import Architecture
    from olivelike.model.records.output import OutputRecord

    Array = np.ndarray[Any, Any]
    Read = Callable[[str], Array]


class Originals:
    """The networks of a checkpoint, each as an architecture and a way to read its parameters."""

    def __init__(
        self,
        spec: SourceSpec,
        components: Iterable[str],
        loras: Sequence[WeightedLora] = (),
        *,
        allow_pickle: bool = False,
    ) -> None:
        """Open a checkpoint; weights stay where they are.

        Raises `SourceError` if the source or one of its files is missing or damaged.
        """
        self.source: PipelineSource = open_source(spec, components, allow_pickle=allow_pickle)
        self._loras = loras
        self.network = cache(self._network)

    def _network(self, component: str) -> tuple[Architecture, Read]:
        """Return a network's class and config, and how to read a parameter, LoRAs merged.

        Raises `PassError` when the source has the network as an ONNX graph, and `SourceError` when a LoRA does not fit
        it.
        """
        checkpoint = self.source.checkpoint(component)
        if checkpoint.graph is not None:
            raise PassError(
                f"{component}: this source has it as an ONNX graph, so there is no torch network to compare with; "
                "name the checkpoint that it was exported from with --against"
            )
        # Nothing is stored under these digests, so that the files need not be hashed.
        names = {path: str(path) for path in checkpoint.files}
        paths = {name: path for path, name in names.items()}
        architecture, weights = read_network(checkpoint, names)

        def stored(name: str) -> Array:
            if name not in weights:
                raise PassError(f"{component}: the checkpoint has no parameter {name!r}, which the network needs")
            return read_tensor(weights[name], paths)

        mine = [lora for lora in self._loras if component in lora.file.components]
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        merging = changes(component, shapes, mine) if mine else {}
        return architecture, lambda name: merging[name].apply(stored(name)) if name in merging else stored(name)

    def image_prompt(self) -> tuple[Architecture, Read]:
        """Return the UNet's class and config with the source's IP-Adapter, and how to read a parameter.

        Raises what `network` does, and `SourceError` if the IP-Adapter does not fit.
        """
        denoiser = denoiser_among(self.source.checkpoints) or ""
        architecture, read = self.network(denoiser)
        (adapter,) = self.source.guide_files.values()
        from olivelike.graphs.export.torch_network import build_network
        from olivelike.graphs.image_attention import cross_attentions, image_parameter

        names = self.source.checkpoint(denoiser).tensors
        blocks = cross_attentions(name for name, _ in build_network(architecture).named_parameters())
        placed = {
            image_parameter(block, kind): Tensor(raw.dtype, raw.shape, "", raw.offset)
            for block, layer in zip(blocks, adapter.layers_for(names), strict=True)
            for kind, raw in layer.items()
        }

        def both(name: str) -> Array:
            return read_tensor(placed[name], {"": adapter.path}) if name in placed else read(name)

        return with_image_prompt(architecture), both


def spec_of(folder: Path, record: OutputRecord, against: str | None, vae: str | None) -> SourceSpec:
    """Return the source to compare with: the one that is named, or that the folder names if it is found.

    Raises `UsageError` if it is not found, or the folder has another VAE that is not named.
    """
    said = record.source
    other = text_source(vae, Path.cwd()) if vae is not None else None
    if other is None and said.vae is not None and (near := said.vae.found_from(folder)):
        other = Source(path=near)
    if other is None and said.vae is not None:
        raise UsageError(f"{folder} has another VAE, {said.vae.name}; name it with --vae")
    if against is not None:
        return source_spec(text_source(against, Path.cwd()), other)
    if said.kind == "hub" and said.file is None:
        spec = SourceSpec(hub=said.name, revision=said.commit)
        return spec if other is None else replace(spec, vae=source_spec(other, None))
    parts = {name: origin.found_from(folder) for name, origin in (said.parts or {}).items()}
    try:
        if lost := next((one.name for name, one in (said.parts or {}).items() if parts[name] is None), None):
            raise OriginalAbsent(f"its {lost} is not near it")
        found = recorded_checkpoint(folder)
    except OriginalAbsent:
        form = ",".join(f"{name}=FILE" for name in ("transformer", *said.parts)) if said.parts else ""
        raise UsageError(
            f"{folder} was made from {said.name}, whose place it does not know; name it with --against {form}".rstrip()
        ) from None
    there = {name: path for name, path in parts.items() if path is not None}
    return replace(source_spec(text_source(found.place, Path.cwd()), other), parts=there)


def merged_loras(record: OutputRecord, texts: Sequence[str], allow_pickle: bool) -> list[WeightedLora]:
    """Return the LoRAs that were merged into the folder.

    Raises `UsageError` if they are not those that the record lists, or tokens were added, which can't be done again
    here.
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
        wanted = " ".join(f"--lora {quoted(f'{entry.origin.place}:{entry.weight:g}')}" for entry in record.loras)
        raise UsageError(f"the folder has other LoRAs merged than the command says; give exactly {wanted or 'none'}")
    return opened

"""The original of an output folder: its checkpoint, with the LoRAs that were merged into it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from olivelike.errors import PassError
from olivelike.model.tensor_file import read_tensor
from olivelike.sources import open_source
from olivelike.sources.adapters.merge import merge
from olivelike.sources.names.adapt import read_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from olivelike.model import Architecture
    from olivelike.sources import PipelineSource, SourceSpec
    from olivelike.sources.adapters.lora_file import WeightedLora

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

        Args:
            spec: Where it is.
            components: Networks to open.
            loras: What is merged into them.
            allow_pickle: Also read pickled weights.

        Raises:
            SourceError: if the source or one of its files is missing or damaged.
        """
        self.source: PipelineSource = open_source(spec, components, allow_pickle=allow_pickle)
        self._loras = loras
        self.network = cache(self._network)

    def _network(self, component: str) -> tuple[Architecture, Read]:
        """Return a network's class and config, and how to read a parameter, LoRAs merged.

        Raises:
            PassError: when the source has the network as an ONNX graph.
            SourceError: when a LoRA does not fit it.
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
                raise PassError(
                    f"{component}: the checkpoint has no parameter {name!r}, which the network needs"
                )
            return read_tensor(weights[name], paths[weights[name].file])

        mine = [lora for lora in self._loras if component in lora.file.components]
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        changed: Mapping[str, Array] = (
            dict(merge(component, architecture.config, shapes, mine, stored)) if mine else {}
        )
        return architecture, lambda name: changed[name] if name in changed else stored(name)

"""LoRAs for the graphs of folders that take them as inputs; what was read and computed stays for the next picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from olivelike._files import identity_at
from olivelike.engine.output.low_rank_factors import Factors, LoraGraphs, NoFactorsError
from olivelike.model.low_rank_inputs import strength_input
from olivelike.model.records.output import RECORD_FILE

if TYPE_CHECKING:
    from olivelike.engine.output.initializers import Array
    from olivelike.sources.adapters.lora_file import WeightedLora

_KEPT_BYTES: Final = 512 << 20
"""Bytes of factors that are kept beside those in use."""


class LiveFactors:
    """Factors by folder, component and LoRA."""

    def __init__(self) -> None:
        self._graphs: dict[Path, tuple[tuple[int, ...] | None, LoraGraphs]] = {}
        self._kept: dict[tuple[object, ...], Factors] = {}
        """The one that was used last at the end."""

    def graphs(self, folder: Path) -> LoraGraphs:
        """Return a folder's graphs, read anew if it was made anew. Raises `SourceError` if it has no record."""
        stamp, known = identity_at(folder / RECORD_FILE), self._graphs.get(folder)
        if known is None or known[0] != stamp:
            self._kept.clear()
            known = self._graphs[folder] = stamp, LoraGraphs(folder)
        return known[1]

    def feeds(self, folder: Path, component: str, loras: Sequence[tuple[WeightedLora, str]]) -> Mapping[str, Array]:
        """Return values of a graph's inputs, by name; of LoRAs that are more than its places the last share one.

        Raises `NoFactorsError` if the LoRAs can't be factors, and `SourceError` if one does not fit the network.

        Args:
            folder: Has a graph for the component.
            component: Its name.
            loras: Each with a digest of what decides its factors; those that do not change the component are left out.
        """
        slots = self.graphs(folder)[component].slots
        mine = [(one, digest) for one, digest in loras if one.weight and component in one.file.components]
        alone = len(mine) if len(mine) <= slots else slots - 1
        fed: dict[str, Array] = {}
        for slot, (one, digest) in enumerate(mine[:alone]):
            factors = self._factors(folder, component, [(replace(one, weight=1.0), digest)])
            if abs(one.weight) > factors.most_strength:
                raise NoFactorsError(f"{one.file.path.name} at {one.weight:g} is too large for its factors", "")
            fed |= {**factors.for_slot(slot), strength_input(slot): np.array(one.weight, np.float32)}
        if together := mine[alone:]:
            fed |= self._factors(folder, component, together).for_slot(alone)
        return fed

    def _factors(self, folder: Path, component: str, loras: Sequence[tuple[WeightedLora, str]]) -> Factors:
        key = (folder, component, *((digest, one.weight) for one, digest in loras))
        factors = self._kept.pop(key, None)
        if factors is None:
            factors = self.graphs(folder).of(component, [one for one, _ in loras])
        self._kept[key] = factors
        while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > _KEPT_BYTES:
            del self._kept[next(iter(self._kept))]
        return factors

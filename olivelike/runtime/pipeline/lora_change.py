"""What LoRAs change a network by, in whichever way it takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Initializers = Mapping[str, Mapping[str, Array] | "LoraChange"]
    """By component: arrays in place of initializers, or what LoRAs change it by."""


@dataclass(frozen=True, eq=False)
class LoraChange:
    """LoRAs for a component whose folder has `lora_inputs.onnx`: as factors for that, or merged for `model.onnx`."""

    feeds: Mapping[str, Array] | None
    """Values of that graph's inputs by name; `None` if the LoRAs can't be factors."""
    merge: Callable[[], Mapping[str, Array]]
    """Returns what initializers become."""
    reason: str = ""
    """What keeps the LoRAs from being factors."""

    @cached_property
    def merged(self) -> Mapping[str, Array]:
        """Arrays in place of initializers, merged when they are first asked for."""
        return self.merge()

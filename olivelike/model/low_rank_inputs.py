"""Names of a network's graph whose layers take the factors of LoRAs, and of its inputs; a client needs no more."""

from __future__ import annotations

from typing import Final

LORA_INPUTS_FILE: Final = "lora_inputs.onnx"
"""The graph, beside `model.onnx` and over its weights."""
LORA_INPUTS: Final = "lora_inputs"
"""The pass that makes it."""
ADAPTER_SUFFIX: Final = ".onnx_adapter"
"""ONNX Runtime's format of factors by the names of inputs."""
DOWN: Final = "down"
UP: Final = "up"
_STRENGTH: Final = "strength"


def factor_input(slot: int, initializer: str, factor: str) -> str:
    """Return the input of a layer's `DOWN` or `UP`, for one of the LoRAs at once, by the name of its weight."""
    return f"lora_{slot}.{initializer}.{factor}"


def strength_input(slot: int) -> str:
    """Return the input of a LoRA's strength, a scalar in float32 that is 1 where it is not fed."""
    return f"lora_{slot}.{_STRENGTH}"

"""The components of a pipeline: names, order, the part that each plays, and the files of a pipeline's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INDEX_FILE: Final = "model_index.json"
"""What diffusers calls a pipeline's index."""
MODEL_FILE: Final = "model.onnx"
"""A component's graph, in its folder."""

TEXT_ENCODERS: Final[tuple[str, ...]] = ("text_encoder", "text_encoder_2")
VAES: Final[tuple[str, ...]] = ("vae_encoder", "vae_decoder")
"""The halves of one network, which torch pipelines keep in one folder."""
SAFETY_CHECKER: Final = "safety_checker"
COMPONENTS: Final[tuple[str, ...]] = (*TEXT_ENCODERS, "unet", *VAES, SAFETY_CHECKER)
"""All networks, by the names of their folders, in the order of workflows."""

TEXT_TO_PICTURE: Final[tuple[str, ...]] = (*TEXT_ENCODERS, "unet", "vae_decoder")
"""Networks that a picture takes, if there is no other picture to begin with."""
SD_NETWORKS: Final[tuple[str, ...]] = ("text_encoder", "unet", "vae_decoder", "vae_encoder")
"""Networks of each pipeline of SD 1.x and 2.x."""
LORA_COMPONENTS: Final[tuple[str, ...]] = (*TEXT_ENCODERS, "unet")
"""Networks that LoRAs change."""

TOKENIZER_OF: Final[Mapping[str, str]] = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}
"""Text encoder → its tokenizer."""
TOKENIZERS: Final = tuple(TOKENIZER_OF.values())
"""Components that are no networks: their vocabulary can be an ONNX model, too."""


def torch_folder(component: str) -> str:
    """Return the folder that holds a component's weights in a pipeline of torch."""
    return "vae" if component in VAES else component

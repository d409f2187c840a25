"""Small networks of the real classes, and LoRA files for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest

from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.merge import changes
from olivelike.testing.checkpoint_configs import component_configs
from olivelike.testing.checkpoints import random_parameter
from tests.fixtures.little_transformers import LITTLE, denoiser_class


@dataclass(frozen=True)
class Network:
    """One network: its class, config and random weights."""

    component: str
    network_class: Any
    config: dict[str, Any]
    """As merging gets it."""
    constructor: Any

    @cached_property
    def state(self) -> dict[str, np.ndarray]:
        import torch

        with torch.device("meta"):
            network = self.constructor()
        return {
            name: random_parameter(name, tuple(tensor.shape), 0, self.component)
            for name, tensor in network.state_dict().items()
        }

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: values.shape for name, values in self.state.items()}

    def build(self):
        """Return a fresh torch network with the weights."""
        import torch

        with torch.device("meta"):
            network = self.constructor()
        values = {name: torch.from_numpy(array.copy()) for name, array in self.state.items()}
        network.to_empty(device="cpu")
        network.load_state_dict(values)
        for name, buffer in network.named_buffers():
            if name.endswith("position_ids"):
                buffer.copy_(torch.arange(buffer.shape[-1])[None])
        return network.eval()

    def merge(self, *loras, state=None) -> dict[str, np.ndarray]:
        """Return what merging makes of the weights, or of others; each LoRA is a file, or a file with its weight."""
        weighted = [WeightedLora(*lora) if isinstance(lora, tuple) else WeightedLora(lora, 1.0) for lora in loras]
        found = changes(self.component, self.shapes, weighted)
        return {name: change.apply((state or self.state)[name]) for name, change in found.items()}


class Networks(dict):
    """The networks of a pipeline, by component."""

    @property
    def shapes(self):
        return {component: network.shapes for component, network in self.items()}


def unet(config):
    import diffusers

    return Network(
        "unet", diffusers.UNet2DConditionModel, config, lambda: diffusers.UNet2DConditionModel.from_config(config)
    )


def text_encoder(component, network_class, width, layers=2):
    import transformers

    config = transformers.CLIPTextConfig(
        hidden_size=width, intermediate_size=2 * width, num_attention_heads=4, num_hidden_layers=layers,
        vocab_size=1000, projection_dim=width, bos_token_id=998, eos_token_id=999,
    )  # fmt: skip
    return Network(component, network_class, config.to_dict(), lambda: network_class(config))


XL = {
    "block_out_channels": [16, 32, 64],
    "layers_per_block": 2,
    "norm_num_groups": 8,
    "cross_attention_dim": 64,
    "sample_size": 8,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 1, 2],
    "attention_head_dim": [2, 4, 8],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 80,
}


@pytest.fixture(scope="session")
def sd1(one_torch_thread):
    """The networks of a small SD 1.x, by component."""
    import transformers

    config = component_configs("tiny")["unet"]
    config = {key: value for key, value in config.items() if not key.startswith("_")} | {"layers_per_block": 1}
    encoder = text_encoder("text_encoder", transformers.CLIPTextModel, 32)
    return Networks(unet=unet(config), text_encoder=encoder)


@pytest.fixture(scope="session")
def sdxl(one_torch_thread):
    """The networks of a small SDXL, by component."""
    import transformers

    return Networks(
        unet=unet(XL),
        text_encoder=text_encoder("text_encoder", transformers.CLIPTextModel, 24),
        text_encoder_2=text_encoder("text_encoder_2", transformers.CLIPTextModelWithProjection, 40),
    )


@pytest.fixture(scope="session")
def transformers(one_torch_thread):
    """Return what gives the small denoiser of a family."""

    @cache
    def made(family):
        network_class, config = denoiser_class(family), dict(LITTLE[family].denoiser)
        return Network("transformer", network_class, config, lambda: network_class(**config))

    return made

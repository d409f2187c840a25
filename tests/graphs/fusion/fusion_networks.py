"""Small networks of the real classes, exported once on a machine, and what torch makes of their inputs."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from olivelike.graphs.interface.component_interface import interface_of
from olivelike.measure.network_sizes import Case, random_inputs
from olivelike.model import Architecture, Graph
from olivelike.model.graph import parameter_inputs
from olivelike.testing.models import traced_graph

UNET = {
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [16],
    "down_block_types": ["CrossAttnDownBlock2D"],
    "up_block_types": ["UpBlock2D"],
    "layers_per_block": 1,
    "attention_head_dim": 2,
    "cross_attention_dim": 24,
    "norm_num_groups": 8,
    "sample_size": 8,
}
SDXL_UNET = UNET | {
    "block_out_channels": [16, 32],
    "down_block_types": ["DownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "attention_head_dim": [2, 4],
    "transformer_layers_per_block": [1, 2],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
}
VAE = {
    "block_out_channels": [8, 16],
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 4,
    "sample_size": 16,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 200,
    "projection_dim": 32,
}
SAFETY = {
    "projection_dim": 24,
    "text_config": TEXT,
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "image_size": 16,
        "patch_size": 8,
        "projection_dim": 24,
    },
}

ARCHITECTURES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "unet": ("unet", "diffusers", "UNet2DConditionModel", UNET),
    "sdxl_unet": ("unet", "diffusers", "UNet2DConditionModel", SDXL_UNET),
    "vae_encoder": ("vae_encoder", "diffusers", "AutoencoderKL", VAE),
    "vae_decoder": ("vae_decoder", "diffusers", "AutoencoderKL", VAE),
    "text_encoder": ("text_encoder", "transformers", "CLIPTextModel", TEXT),
    "text_encoder_2": ("text_encoder_2", "transformers", "CLIPTextModelWithProjection", TEXT | {"hidden_act": "gelu"}),
    "safety_checker": ("safety_checker", "transformers", "StableDiffusionSafetyChecker", SAFETY),
}

CASES = (Case(1, 16, 24, 77), Case(3, 24, 8, 9))

EMBEDDING = "image_embeds"
"""The safety checker's answer is a boolean; its tests look at the embedding in front of it."""


@dataclass(frozen=True)
class Network:
    """A network with random weights: its graph, and torch's outputs for the cases."""

    name: str

    @cached_property
    def architecture(self) -> Architecture:
        return full_architecture(*ARCHITECTURES[self.name])

    @cached_property
    def graph(self) -> Graph:
        graph = traced_graph(self.architecture)
        return _with_embedding(graph) if self.name == "safety_checker" else graph

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """Random values of the size that a trained network's have, by name."""
        values = {}
        for name, value in parameter_inputs(self.graph.to_ir().graph).items():
            shape = tuple(value.shape.numpy())
            random = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
            if len(shape) > 1:
                values[name] = random / np.float32(np.sqrt(np.prod(shape[1:])))
            else:
                scale = "norm" in name and name.endswith("weight")
                values[name] = np.float32(scale) + random * np.float32(0.2)
        return values

    @cached_property
    def feeds(self) -> list[dict[str, np.ndarray]]:
        """Random inputs for each case."""
        config = self.architecture.config
        inputs = interface_of(self.architecture.component, config).inputs
        return [random_inputs(inputs, case, config, seed) for seed, case in enumerate(CASES)]

    @cached_property
    def expected(self) -> list[list[np.ndarray]]:
        """What torch computes for each case, in float32."""
        import torch

        from olivelike.graphs.export.torch_network import build_network, wrap

        network = build_network(self.architecture)
        state = {name: torch.from_numpy(value) for name, value in self.weights.items()}
        network.load_state_dict(state, strict=False, assign=True)
        module = wrap(self.architecture.component, network)
        embedding: list[torch.Tensor] = []
        if self.name == "safety_checker":
            network.visual_projection.register_forward_hook(lambda *call: embedding.append(call[2]))
        results = []
        for feeds in self.feeds:
            embedding.clear()
            with torch.no_grad():
                outputs = module(*[torch.from_numpy(value).clone() for value in feeds.values()])
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            results.append([output.numpy() for output in (*outputs, *embedding)])
        return results


def full_architecture(component: str, library: str, class_name: str, config: dict[str, Any]) -> Architecture:
    """Return the architecture whose config is what the library's own class makes of `config`."""
    import diffusers
    import torch
    import transformers
    from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

    if library == "diffusers":
        with torch.device("meta"):
            made = getattr(diffusers, class_name).from_config(config).config
        full = {key: value for key, value in made.items() if not key.startswith("_")}
    else:
        home = StableDiffusionSafetyChecker if component == "safety_checker" else getattr(transformers, class_name)
        full = home.config_class(**config).to_dict()
    return Architecture(component, library, class_name, full)


def _with_embedding(graph: Graph) -> Graph:
    model = graph.to_ir()
    (gemm,) = (node for node in model.graph if node.op_type == "Gemm")
    gemm.outputs[0].name = EMBEDDING
    model.graph.outputs.append(gemm.outputs[0])
    return Graph.from_ir(model)

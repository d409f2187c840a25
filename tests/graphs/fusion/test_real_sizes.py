"""Operator counts of the networks at their published sizes, on CUDA in half precision. Slow: they are exported."""

from __future__ import annotations

import logging

import pytest

from olivelike.graphs.export import export_component
from olivelike.graphs.fusion import fuse
from olivelike.model.targets import find_target
from olivelike.testing.checkpoint_configs import component_configs
from tests.fixtures.fusion_networks import full_architecture

pytestmark = pytest.mark.slow

FULL = component_configs("full")
TEXT = {
    key: FULL["text_encoder"][key]
    for key in (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
        "hidden_act",
    )
}
SD21 = {"attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024, "use_linear_projection": True}
SDXL = {
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
OPENCLIP_H = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 23}
OPENCLIP_BIGG = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_attention_heads": 20,
    "num_hidden_layers": 32,
    "projection_dim": 1280,
}
SAFETY = {key: FULL["safety_checker"][key] for key in ("projection_dim", "text_config", "vision_config")}

UNET, KL, CHECKER = "UNet2DConditionModel", "AutoencoderKL", "StableDiffusionSafetyChecker"
NETWORKS = {
    "SD 1.5 UNet": ("unet", "diffusers", UNET, FULL["unet"]),
    "SD 2.1 UNet": ("unet", "diffusers", UNET, FULL["unet"] | SD21),
    "SDXL UNet": ("unet", "diffusers", UNET, FULL["unet"] | SDXL),
    "VAE encoder": ("vae_encoder", "diffusers", KL, FULL["vae"]),
    "VAE decoder": ("vae_decoder", "diffusers", KL, FULL["vae"]),
    "CLIP-L": ("text_encoder", "transformers", "CLIPTextModel", TEXT),
    "OpenCLIP H": ("text_encoder", "transformers", "CLIPTextModel", TEXT | OPENCLIP_H | {"hidden_act": "gelu"}),
    "OpenCLIP bigG": (
        "text_encoder_2",
        "transformers",
        "CLIPTextModelWithProjection",
        TEXT | OPENCLIP_BIGG | {"hidden_act": "gelu"},
    ),
    "safety checker": ("safety_checker", "transformers", CHECKER, SAFETY),
}

COUNTS = {
    "SD 1.5 UNet": {
        "BiasAdd": 16,
        "BiasSplitGelu": 16,
        "GroupNorm": 16,
        "LayerNormalization": 16,
        "MultiHeadAttention": 32,
        "NhwcConv": 98,
        "SkipGroupNorm": 45,
        "SkipLayerNormalization": 32,
        "Transpose": 2,
    },
    "SD 2.1 UNet": {
        "BiasAdd": 16,
        "BiasSplitGelu": 16,
        "GroupNorm": 16,
        "LayerNormalization": 16,
        "MultiHeadAttention": 32,
        "NhwcConv": 66,
        "SkipGroupNorm": 45,
        "SkipLayerNormalization": 32,
        "Transpose": 2,
    },
    "SDXL UNet": {
        "BiasAdd": 11,
        "BiasSplitGelu": 70,
        "GroupNorm": 12,
        "LayerNormalization": 11,
        "MultiHeadAttention": 140,
        "NhwcConv": 51,
        "SkipGroupNorm": 34,
        "SkipLayerNormalization": 199,
        "Transpose": 2,
    },
    "VAE encoder": {"Attention": 1, "GroupNorm": 14, "NhwcConv": 28, "SkipGroupNorm": 8, "Transpose": 2},
    "VAE decoder": {"Attention": 1, "GroupNorm": 18, "NhwcConv": 36, "SkipGroupNorm": 12, "Transpose": 2},
    "CLIP-L": {"Attention": 12, "LayerNormalization": 1, "QuickGelu": 12, "SkipLayerNormalization": 24},
    "OpenCLIP H": {"Attention": 23, "BiasGelu": 23, "LayerNormalization": 1, "SkipLayerNormalization": 46},
    "OpenCLIP bigG": {"Attention": 32, "BiasGelu": 32, "LayerNormalization": 1, "SkipLayerNormalization": 64},
    "safety checker": {
        "Attention": 24,
        "LayerNormalization": 3,
        "NhwcConv": 1,
        "QuickGelu": 24,
        "SkipLayerNormalization": 47,
        "Transpose": 1,
    },
}
SILU = {"SD 1.5 UNet": 45, "SD 2.1 UNet": 45, "SDXL UNet": 35, "VAE encoder": 21, "VAE decoder": 29}
PACKED = {"SD 1.5 UNet": 16, "SD 2.1 UNet": 16, "SDXL UNet": 70}


@pytest.mark.parametrize("name", NETWORKS)
def test_operator_counts_at_published_sizes_are_exact(name):
    graph = export_component(full_architecture(*NETWORKS[name]), logging.getLogger("test"))
    model = graph.to_ir()
    facts = fuse(model, find_target("cuda"))
    after = {operator.rsplit(".", 1)[-1]: count for operator, count in facts["operators_after"].items()}
    fused = COUNTS[name].keys() | {"Conv", "GroupNormalization", "Gelu", "Softmax"}
    assert {operator: after[operator] for operator in fused if operator in after} == COUNTS[name]
    assert "Attention" not in facts["operators_after"]
    assert facts["fused"].get("group_norm_silu", {}).get("GroupNorm, SiLU", 0) == SILU.get(name, 0)
    assert facts["fused"].get("packed_qkv", {}).get("MultiHeadAttention, packed QKV", 0) == PACKED.get(name, 0)
    assert facts["fused"].get("packed_kv", {}).get("MultiHeadAttention, packed KV", 0) == PACKED.get(name, 0)

"""Configs of the checkpoints of every family that `make_checkpoint` writes: as published, and at small widths.

The `full` values are those of the repositories named beside them. The `small` ones obey each family's rules (widths
in multiples of 32 in the UNet and the VAE, of 64 where heads have 64 channels; CLIP's whole vocabulary), so that the
same weights in one file are told to be the very same networks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from olivelike.testing.checkpoint_configs import INDEX, SCHEDULER, Size, component_configs

_UNET2 = ["diffusers", "UNet2DConditionModel"]
_SD1 = component_configs("full")

_TEXT_H = {
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 23,
    "projection_dim": 512,
}
_TEXT_BIG_G = {
    "architectures": ["CLIPTextModelWithProjection"],
    "hidden_act": "gelu",
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_attention_heads": 20,
    "num_hidden_layers": 32,
    "projection_dim": 1280,
}
_UNET_SD2 = {
    "attention_head_dim": [5, 10, 20, 20],
    "cross_attention_dim": 1024,
    "dual_cross_attention": False,
    "num_class_embeds": None,
    "only_cross_attention": False,
    "use_linear_projection": True,
}
_UNET_SDXL = {
    "addition_embed_type": "text_time",
    "addition_embed_type_num_heads": 64,
    "addition_time_embed_dim": 256,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "class_embed_type": None,
    "cross_attention_dim": 2048,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "projection_class_embeddings_input_dim": 2816,
    "sample_size": 128,
    "transformer_layers_per_block": [1, 2, 10],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "upcast_attention": None,
    "use_linear_projection": True,
}
_UNET_REFINER = {
    **_UNET_SDXL,
    "attention_head_dim": [6, 12, 24, 24],
    "block_out_channels": [384, 768, 1536, 1536],
    "cross_attention_dim": 1280,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "projection_class_embeddings_input_dim": 2560,
    "transformer_layers_per_block": 4,
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
}
_VAE_SDXL = {"force_upcast": True, "sample_size": 1024, "scaling_factor": 0.13025}

_EULER = {
    **SCHEDULER,
    "_class_name": "EulerDiscreteScheduler",
    "interpolation_type": "linear",
    "prediction_type": "epsilon",
    "sample_max_value": 1.0,
    "timestep_spacing": "leading",
    "use_karras_sigmas": False,
}

# What is small in every family: one layer per level, two layers of text.
_SMALL_CLIP: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_attention_heads": 1,
    "num_hidden_layers": 2,
}
_SMALL_VAE: dict[str, Any] = {"block_out_channels": [32, 64, 64, 64], "layers_per_block": 1}
_SMALL_SD1: dict[str, Any] = {
    "block_out_channels": [32, 64, 64, 64],
    "cross_attention_dim": 64,
    "layers_per_block": 1,
}
_SMALL_SD2: dict[str, Any] = {
    **_SMALL_SD1,
    "attention_head_dim": [1, 1, 2, 1],
    "block_out_channels": [64, 64, 128, 64],
}
_SMALL_SDXL = {
    "attention_head_dim": [1, 1, 1],
    "block_out_channels": [32, 64, 64],
    "cross_attention_dim": 128,
    "layers_per_block": 1,
    "projection_class_embeddings_input_dim": 64 + 6 * 256,
    "transformer_layers_per_block": [1, 1, 2],
}
_SMALL_REFINER = {
    **_SMALL_SD2,
    "block_out_channels": [32, 64, 128, 64],
    "projection_class_embeddings_input_dim": 64 + 5 * 256,
    "transformer_layers_per_block": 2,
}


@dataclass(frozen=True)
class FamilyConfigs:
    """All that a family's folder says beside its weights."""

    index: dict[str, Any]
    full: dict[str, dict[str, Any]]
    """Folder → published `config.json`."""
    small: dict[str, dict[str, Any]]
    """Folder → what differs at small size."""
    scheduler: dict[str, Any]
    tokenizers: dict[str, str] = field(default_factory=lambda: {"tokenizer": "<|endoftext|>"})
    """Folder → padding token."""

    def configs(self, size: Size) -> dict[str, dict[str, Any]]:
        """Return the `config.json` of each network folder."""
        configs = copy.deepcopy(self.full)
        if size == "small":
            for folder, changes in self.small.items():
                configs[folder] |= changes
        return configs


def _unet(**changes: Any) -> dict[str, Any]:
    return {**_SD1["unet"], **changes}


_SD15_INDEX = {**INDEX, "feature_extractor": [None, None], "safety_checker": [None, None]}
_SMALL_FOUR_LEVELS = {"unet": _SMALL_SD1, "vae": _SMALL_VAE, "text_encoder": _SMALL_CLIP}
_SMALL_FOUR_LEVELS_2 = {**_SMALL_FOUR_LEVELS, "unet": _SMALL_SD2}
_V_SCHEDULER = {**SCHEDULER, "_class_name": "DDIMScheduler", "prediction_type": "v_prediction"}
_PROJECTED = "CLIPTextModelWithProjection"


def _sd15(index: dict[str, Any], **unet: Any) -> FamilyConfigs:
    full = {"unet": _unet(**unet), "vae": _SD1["vae"], "text_encoder": _SD1["text_encoder"]}
    return FamilyConfigs(index, full, _SMALL_FOUR_LEVELS, SCHEDULER)


def _sd2(index: dict[str, Any], scheduler: dict[str, Any], **unet: Any) -> FamilyConfigs:
    full = {
        "unet": _unet(**_UNET_SD2, **unet),
        "vae": {**_SD1["vae"], "sample_size": 768},
        "text_encoder": {**_SD1["text_encoder"], **_TEXT_H},
    }
    return FamilyConfigs(index, full, _SMALL_FOUR_LEVELS_2, scheduler, {"tokenizer": "!"})


FAMILY_CONFIGS: dict[str, FamilyConfigs] = {
    # stable-diffusion-v1-5/stable-diffusion-v1-5, without its safety checker
    "sd15": _sd15(_SD15_INDEX),
    # stable-diffusion-v1-5/stable-diffusion-inpainting
    "sd15_inpainting": _sd15({**_SD15_INDEX, "_class_name": "StableDiffusionInpaintPipeline"}, in_channels=9),
    # stabilityai/stable-diffusion-2-1
    "sd21": _sd2(
        {**_SD15_INDEX, "scheduler": ["diffusers", "DDIMScheduler"]},
        _V_SCHEDULER,
        sample_size=96,
        upcast_attention=True,
    ),
    # stabilityai/stable-diffusion-2-1-base
    "sd21_base": _sd2(_SD15_INDEX, {**SCHEDULER, "prediction_type": "epsilon"}, upcast_attention=False),
    # stabilityai/stable-diffusion-xl-base-1.0
    "sdxl": FamilyConfigs(
        {
            "_class_name": "StableDiffusionXLPipeline",
            "_diffusers_version": "0.19.0.dev0",
            "force_zeros_for_empty_prompt": True,
            "scheduler": ["diffusers", "EulerDiscreteScheduler"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "text_encoder_2": ["transformers", _PROJECTED],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "tokenizer_2": ["transformers", "CLIPTokenizer"],
            "unet": _UNET2,
            "vae": ["diffusers", "AutoencoderKL"],
        },
        {
            "unet": _unet(**_UNET_SDXL),
            "vae": {**_SD1["vae"], **_VAE_SDXL},
            "text_encoder": _SD1["text_encoder"],
            "text_encoder_2": {**_SD1["text_encoder"], **_TEXT_BIG_G},
        },
        {
            "unet": _SMALL_SDXL,
            "vae": _SMALL_VAE,
            "text_encoder": _SMALL_CLIP,
            "text_encoder_2": {**_SMALL_CLIP, "projection_dim": 64},
        },
        _EULER,
        {"tokenizer": "<|endoftext|>", "tokenizer_2": "!"},
    ),
    # stabilityai/stable-diffusion-xl-refiner-1.0
    "sdxl_refiner": FamilyConfigs(
        {
            "_class_name": "StableDiffusionXLImg2ImgPipeline",
            "_diffusers_version": "0.19.0.dev0",
            "force_zeros_for_empty_prompt": False,
            "requires_aesthetics_score": True,
            "scheduler": ["diffusers", "EulerDiscreteScheduler"],
            "text_encoder": [None, None],
            "text_encoder_2": ["transformers", _PROJECTED],
            "tokenizer": [None, None],
            "tokenizer_2": ["transformers", "CLIPTokenizer"],
            "unet": _UNET2,
            "vae": ["diffusers", "AutoencoderKL"],
        },
        {
            "unet": _unet(**_UNET_REFINER),
            "vae": {**_SD1["vae"], **_VAE_SDXL},
            "text_encoder_2": {**_SD1["text_encoder"], **_TEXT_BIG_G},
        },
        {
            "unet": _SMALL_REFINER,
            "vae": _SMALL_VAE,
            "text_encoder_2": {**_SMALL_CLIP, "projection_dim": 64},
        },
        _EULER,
        {"tokenizer_2": "!"},
    ),
}
"""Family → its configs; `sd15` in the sizes `tiny` and `full` has a safety checker, and is not from here."""

"""Configs of the checkpoints that `make_checkpoint` writes: SD 1.5 as published, and a small copy of it.

The `full` values are those of `stable-diffusion-v1-5/stable-diffusion-v1-5`, stray keys included; the `tiny`
ones keep every structural choice (block types, layers per level, heads, factor 8 of the VAE) at small widths.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

Size = Literal["tiny", "small", "full"]

INDEX: dict[str, Any] = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.6.0",
    "feature_extractor": ["transformers", "CLIPImageProcessor"],
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}

_UNET: dict[str, Any] = {
    "_class_name": "UNet2DConditionModel",
    "_diffusers_version": "0.6.0",
    "act_fn": "silu",
    "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280],
    "center_input_sample": False,
    "cross_attention_dim": 768,
    "down_block_types": [
        "CrossAttnDownBlock2D",
        "CrossAttnDownBlock2D",
        "CrossAttnDownBlock2D",
        "DownBlock2D",
    ],
    "downsample_padding": 1,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "in_channels": 4,
    "layers_per_block": 2,
    "mid_block_scale_factor": 1,
    "norm_eps": 1e-05,
    "norm_num_groups": 32,
    "out_channels": 4,
    "sample_size": 64,
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
}

_VAE: dict[str, Any] = {
    "_class_name": "AutoencoderKL",
    "_diffusers_version": "0.6.0",
    "act_fn": "silu",
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "in_channels": 3,
    "latent_channels": 4,
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "out_channels": 3,
    "sample_size": 512,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}

_TEXT: dict[str, Any] = {
    "_name_or_path": "openai/clip-vit-large-patch14",
    "architectures": ["CLIPTextModel"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dropout": 0.0,
    "eos_token_id": 2,
    "hidden_act": "quick_gelu",
    "hidden_size": 768,
    "initializer_factor": 1.0,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 77,
    "model_type": "clip_text_model",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "projection_dim": 768,
    "torch_dtype": "float32",
    "transformers_version": "4.22.0.dev0",
    "vocab_size": 49408,
}

_SAFETY: dict[str, Any] = {
    "_commit_hash": "4bb648a606ef040e7685bde262611766a5fdd67b",
    "_name_or_path": "CompVis/stable-diffusion-safety-checker",
    "architectures": ["StableDiffusionSafetyChecker"],
    "initializer_factor": 1.0,
    "logit_scale_init_value": 2.6592,
    "model_type": "clip",
    "projection_dim": 768,
    "text_config": {
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dropout": 0.0,
        "eos_token_id": 2,
        "hidden_act": "quick_gelu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 77,
        "model_type": "clip_text_model",
        "num_attention_heads": 12,
        "num_beams": 1,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "torchscript": False,
        "transformers_version": "4.21.0.dev0",
        "use_bfloat16": False,
        "vocab_size": 49408,
    },
    "text_config_dict": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
    },
    "torch_dtype": "float32",
    "transformers_version": None,
    "vision_config": {
        "attention_dropout": 0.0,
        "dropout": 0.0,
        "hidden_act": "quick_gelu",
        "hidden_size": 1024,
        "image_size": 224,
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-05,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_channels": 3,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "torchscript": False,
        "transformers_version": "4.21.0.dev0",
        "use_bfloat16": False,
    },
    "vision_config_dict": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
}

SCHEDULER: dict[str, Any] = {
    "_class_name": "PNDMScheduler",
    "_diffusers_version": "0.6.0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}

_FEATURE_EXTRACTOR: dict[str, Any] = {
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 224},
}

# Heads stay at 8 in the UNet; group counts shrink with the widths so that each group keeps several channels.
_TINY_UNET = {
    "block_out_channels": [16, 32, 64, 64],
    "cross_attention_dim": 32,
    "norm_num_groups": 8,
    "sample_size": 8,
}
_TINY_VAE = {"block_out_channels": [8, 16, 32, 32], "norm_num_groups": 4, "sample_size": 64}
_TINY_CLIP = {"hidden_size": 32, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3}
_TINY_VOCABULARY = 1000
_TINY_IMAGE = 56


def component_configs(size: Size) -> dict[str, dict[str, Any]]:
    """Return the published `config.json` of each network folder, by folder name."""
    configs = {"text_encoder": _TEXT, "unet": _UNET, "vae": _VAE, "safety_checker": _SAFETY}
    configs = copy.deepcopy(configs)
    if size == "tiny":
        configs["unet"] |= _TINY_UNET
        configs["vae"] |= _TINY_VAE
        configs["text_encoder"] |= {**_TINY_CLIP, "projection_dim": 32, "vocab_size": _TINY_VOCABULARY}
        safety = configs["safety_checker"]
        safety["projection_dim"] = 64
        for tower in ("text_config", "text_config_dict", "vision_config", "vision_config_dict"):
            safety[tower] |= _TINY_CLIP
        for tower in ("vision_config", "vision_config_dict"):
            safety[tower] |= {"image_size": _TINY_IMAGE}
    return configs


def feature_extractor_config(size: Size) -> dict[str, Any]:
    """Return the published `preprocessor_config.json`, scaled to what the safety checker takes."""
    config = copy.deepcopy(_FEATURE_EXTRACTOR)
    if size == "tiny":
        config["crop_size"] = {"height": _TINY_IMAGE, "width": _TINY_IMAGE}
        config["size"] = {"shortest_edge": _TINY_IMAGE}
    return config

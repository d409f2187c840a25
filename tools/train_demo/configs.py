"""Configs of the demo pipeline: those of SD 1.5 as published, at small widths."""

from __future__ import annotations

from typing import Any

from olivelike.testing.checkpoint_configs import INDEX, SCHEDULER, component_configs, feature_extractor_config

# Groups keep an even number of channels wherever they normalise: fused group norms take no other.
_UNET = {
    "attention_head_dim": 4,
    "block_out_channels": [32, 48, 64, 64],
    "cross_attention_dim": 64,
    "norm_num_groups": 8,
    "sample_size": 8,
}
_VAE = {"block_out_channels": [8, 16, 32, 32], "norm_num_groups": 4, "sample_size": 64}
_CLIP = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3}
_VISION = {**_CLIP, "image_size": 64, "patch_size": 8}
_PROJECTION = 32

# SD 1.5's noise schedule, but not its scheduler: PNDM needs 50 steps of these networks, DDIM 20.
DEMO_SCHEDULER: dict[str, Any] = {
    "_class_name": "DDIMScheduler",
    **{key: value for key, value in SCHEDULER.items() if key not in {"_class_name", "skip_prk_steps"}},
}
DEMO_INDEX: dict[str, Any] = {**INDEX, "scheduler": ["diffusers", "DDIMScheduler"]}

# Configs of versions below 0.9 are taken for old ones that forgot their sample size.
_DIFFUSERS = "0.36.0"


def demo_configs(vocab_size: int) -> dict[str, dict[str, Any]]:
    """Return the `config.json` of each network of the demo, by folder name."""
    configs = component_configs("full")
    configs["unet"] |= _UNET
    configs["vae"] |= _VAE
    configs["text_encoder"] |= {**_CLIP, "projection_dim": 64, "vocab_size": vocab_size}
    safety = configs["safety_checker"]
    safety["projection_dim"] = _PROJECTION
    for tower in ("text_config", "text_config_dict"):
        safety[tower] |= _CLIP
    for tower in ("vision_config", "vision_config_dict"):
        safety[tower] |= _VISION
    for config in configs.values():
        config.pop("_name_or_path", None)
        config.pop("_commit_hash", None)
        if "_diffusers_version" in config:
            config["_diffusers_version"] = _DIFFUSERS
    return configs


def demo_feature_extractor() -> dict[str, Any]:
    """Return the `preprocessor_config.json` for what the demo's safety checker takes."""
    config = feature_extractor_config("full")
    size = _VISION["image_size"]
    return config | {"crop_size": {"height": size, "width": size}, "size": {"shortest_edge": size}}

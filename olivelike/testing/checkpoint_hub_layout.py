"""How hubs hold what today's libraries save otherwise: older names, extra tensors, extra config keys."""

from __future__ import annotations

import re
from typing import Any

_OLD_VAE_ATTENTION = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
_EMA_LEFTOVERS = {"decay": 0.9999, "inv_gamma": 1.0, "optimization_step": 875000, "use_ema_warmup": False}


def hub_name(component: str, name: str) -> str:
    """Return the name under which the published checkpoint stores a parameter."""
    match component:
        case "text_encoder":
            return f"text_model.{name}"
        case "safety_checker":
            return re.sub(r"^vision_model\.", "vision_model.vision_model.", name)
        case "vae" if ".attentions." in name:
            for new, old in _OLD_VAE_ATTENTION.items():
                name = name.replace(f".{new}.", f".{old}.")
    return name


def extra_tensors(component: str, config: dict[str, Any]) -> dict[str, int]:
    """Return names and lengths of stored `position_ids`, which are no parameters."""
    match component:
        case "text_encoder":
            return {"text_model.embeddings.position_ids": config["max_position_embeddings"]}
        case "safety_checker":
            vision = config["vision_config"]
            length = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
            return {"vision_model.vision_model.embeddings.position_ids": length}
    return {}


def stray_keys(component: str) -> dict[str, Any]:
    """Return config keys that training code and other library versions left behind."""
    match component:
        case "unet":
            return {
                "_name_or_path": "runwayml/stable-diffusion-v1-5",
                "_diffusers_version": "0.18.2",
                **_EMA_LEFTOVERS,
            }
        case "vae":
            return {"_name_or_path": "./vae-ft-mse", "_diffusers_version": "0.9.0.dev0"}
    return {}

"""How trainers spell the layers of a network in LoRA files."""

from __future__ import annotations

import re

from olivelike.testing.original_spelling import original_unet

_TEXT_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}


def diffusers_old_name(component: str, layer: str) -> str | None:
    """Return the name before `_lora.down.weight`; `None` for what is no attention projection."""
    owner, _, leaf = layer.rpartition(".")
    if component == "unet":
        found = re.fullmatch(r"(.+\.attn[12])\.(to_q|to_k|to_v|to_out)(?:\.0)?", layer)
        return f"unet.{found[1]}.processor.{found[2]}" if found else None
    if owner.endswith("self_attn"):
        return f"{component}.text_model.{owner}.{_TEXT_ATTENTION[leaf]}"
    return None


def dotted_name(component: str, layer: str) -> str:
    """Return the name that diffusers gives a layer: component and path."""
    return f"{component}.{path_in(component, layer)}"


def path_in(component: str, layer: str) -> str:
    """Return a layer's path, with the level that text encoders had when most files were written."""
    return layer if component == "unet" or layer == "text_projection" else f"text_model.{layer}"


def kohya_name(component: str, layer: str, components: frozenset[str]) -> str:
    """Return kohya's name of a layer; two text encoders are numbered, one is not."""
    prefix = {"unet": "unet", "text_encoder": "te", "text_encoder_2": "te2"}[component]
    if prefix == "te" and "text_encoder_2" in components:
        prefix = "te1"
    return f"lora_{prefix}_{path_in(component, layer).replace('.', '_')}"


def ldm_name(layer: str, layers: frozenset[str]) -> str:
    """Return the LDM name of a UNet's layer, which kohya uses for XL.

    Args:
        layer: path in diffusers.
        layers: all layers of the UNet: they say how many of them a block has.
    """
    levels = {int(match[1]) for name in layers if (match := re.match(r"up_blocks\.(\d+)\.", name))}
    resnets = {
        int(match[1]) for name in layers if (match := re.match(r"down_blocks\.0\.resnets\.(\d+)\.", name))
    }
    attends = {
        level for level in levels if any(name.startswith(f"up_blocks.{level}.attentions.") for name in layers)
    }
    config = {
        "layers_per_block": len(resnets),
        "up_block_types": [
            "CrossAttnUpBlock2D" if level in attends else "UpBlock2D" for level in sorted(levels)
        ],
    }
    return original_unet(f"{layer}.weight", config).removesuffix(".weight")

"""How trainers, the original (LDM) code and open_clip spell what diffusers and transformers name their own way.

Written from the networks' definitions: https://github.com/CompVis/stable-diffusion (`openaimodel.py`, `model.py`) and
https://github.com/mlfoundations/open_clip (`transformer.py`)."""

from __future__ import annotations

import re
from typing import Any

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET_OUTER = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
_OPEN_CLIP_OUTER = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}
_OPEN_CLIP_LAYER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_BLOCK = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)")
_TEXT_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}


def original_unet(name: str, config: dict[str, Any]) -> str:
    """Return a UNet parameter's name in the LDM code."""
    for own, original in _UNET_OUTER.items():
        if name.startswith(f"{own}."):
            return original + name[len(own) :]
    if name.startswith("mid_block."):
        _, kind, position, rest = name.split(".", 3)
        if kind == "attentions":
            return f"middle_block.1.{rest}"
        return f"middle_block.{2 * int(position)}.{_renamed(rest, _RESNET)}"
    way, block, kind, index, rest = _split_block(name)
    layers = config["layers_per_block"]
    if way == "down":
        first = block * (layers + 1) + 1
        if kind == "downsamplers":
            return f"input_blocks.{first + layers}.0.op.{rest}"
        home = f"input_blocks.{first + index}"
    else:
        first = block * (layers + 1)
        if kind == "upsamplers":
            slot = 2 if config["up_block_types"][block].startswith("CrossAttn") else 1
            return f"output_blocks.{first + layers}.{slot}.conv.{rest}"
        home = f"output_blocks.{first + index}"
    return f"{home}.0.{_renamed(rest, _RESNET)}" if kind == "resnets" else f"{home}.1.{rest}"


def original_vae(name: str, config: dict[str, Any]) -> str:
    """Return a VAE parameter's name in the LDM code."""
    side, _, inner = name.partition(".")
    if side not in ("encoder", "decoder"):
        return name
    inner = inner.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
    if inner.startswith("mid_block.resnets."):
        _, _, position, rest = inner.split(".", 3)
        return f"{side}.mid.block_{int(position) + 1}.{rest}"
    if inner.startswith("mid_block.attentions.0."):
        return f"{side}.mid.attn_1.{_renamed(inner.split('.', 3)[3], _VAE_ATTENTION)}"
    if not inner.startswith(("down_blocks.", "up_blocks.")):
        return f"{side}.{inner}"
    way, block, kind, index, rest = _split_block(inner)
    level = block if way == "down" else len(config["up_block_types"]) - 1 - block
    if kind == "resnets":
        return f"{side}.{way}.{level}.block.{index}.{rest}"
    return f"{side}.{way}.{level}.{way}sample.conv.{rest}"


def is_vae_attention_matrix(name: str) -> bool:
    """Tell whether the LDM code has a convolution of one pixel where diffusers has a matrix."""
    return ".mid.attn_1." in name and name.endswith(".weight") and ".norm." not in name


def original_open_clip(name: str) -> str | None:
    """Return a text encoder parameter's name in open_clip; `None` for q, k and v, which it stores as one."""
    if name in _OPEN_CLIP_OUTER:
        return _OPEN_CLIP_OUTER[name]
    _, _, index, rest = name.split(".", 3)
    if re.match(r"self_attn\.[qkv]_proj\.", rest):
        return None
    return f"transformer.resblocks.{index}.{_renamed(rest, _OPEN_CLIP_LAYER)}"


def _split_block(name: str) -> tuple[str, int, str, int, str]:
    match = _BLOCK.match(name)
    assert match is not None, f"{name} is of no known block"
    way, block, kind, index, rest = match.groups()
    if kind.endswith("samplers"):
        rest = rest.removeprefix("conv.")
    return way, int(block), kind, int(index), rest


def _renamed(rest: str, names: dict[str, str]) -> str:
    for own, original in names.items():
        if rest.startswith(f"{own}."):
            return original + rest[len(own) :]
    return rest


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
        layers: all layers of the UNet: they say how many of them a block has."""
    levels = {int(match[1]) for name in layers if (match := re.match(r"up_blocks\.(\d+)\.", name))}
    resnets = {int(match[1]) for name in layers if (match := re.match(r"down_blocks\.0\.resnets\.(\d+)\.", name))}
    attends = {level for level in levels if any(name.startswith(f"up_blocks.{level}.attentions.") for name in layers)}
    config = {
        "layers_per_block": len(resnets),
        "up_block_types": ["CrossAttnUpBlock2D" if level in attends else "UpBlock2D" for level in sorted(levels)],
    }
    return original_unet(f"{layer}.weight", config).removesuffix(".weight")

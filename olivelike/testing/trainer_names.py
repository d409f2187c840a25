"""How trainers spell the layers of a network in LoRA files."""

from __future__ import annotations

import re

_TEXT_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}
_LDM_LAYERS = {
    "conv_in": "input_blocks.0.0",
    "conv_out": "out.2",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
}
_LDM_RESNET = {
    "conv1": "in_layers.2",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
_LDM_MIDDLE = {("resnets", "0"): 0, ("attentions", "0"): 1, ("resnets", "1"): 2}


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
    if layer in _LDM_LAYERS:
        return _LDM_LAYERS[layer]
    per_block = 1 + max(
        int(m[1]) for name in layers if (m := re.match(r"down_blocks\.0\.resnets\.(\d+)\.", name))
    )
    block, *rest = layer.split(".")
    if block == "mid_block":
        kind, position, *inner = rest
        place = f"middle_block.{_LDM_MIDDLE[kind, position]}"
        return ".".join([place, *_inner(kind, inner)])
    number, kind, position, *inner = rest
    if kind == "downsamplers":
        return f"input_blocks.{(int(number) + 1) * (per_block + 1)}.0.op"
    if kind == "upsamplers":
        has_attention = any(name.startswith(f"up_blocks.{number}.attentions.") for name in layers)
        row = int(number) * (per_block + 1) + per_block
        return f"output_blocks.{row}.{2 if has_attention else 1}.conv"
    side = int(kind == "attentions")
    row = int(number) * (per_block + 1) + int(position)
    place = f"input_blocks.{row + 1}.{side}" if block == "down_blocks" else f"output_blocks.{row}.{side}"
    return ".".join([place, *_inner(kind, inner)])


def _inner(kind: str, inner: list[str]) -> list[str]:
    return [_LDM_RESNET[inner[0]]] if kind == "resnets" else inner

"""Telling networks that lead a UNet by a picture, ControlNets and T2I-Adapters, and others of such names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from olivelike.families import FAMILIES, family_of_text_width
from olivelike.sources.identify.identity import Identity, Kind

Shapes = Mapping[str, tuple[int, ...]]

_CONTROLNET_MARKS = ("control_model.", "controlnet_cond_embedding.", "input_hint_block.", "lllite_")
_OTHER_CONTROLNETS = {
    "ControlNet-LLLite": ("lllite_",),
    "Control-LoRA": ("lora_controlnet",),
    "ControlNet Union": ("task_embedding", "control_add_embedding.", "transformer_layes."),
}
"""Networks of that name which are none → what their tensors' names begin with."""
_T2I_MARKS = ("adapter.body.0.", "body.0.block1.weight", "body.0.in_conv.weight")
_OTHER_T2I_ADAPTERS = {
    "T2I-Adapter for styles": ("style_embedding",),
    "T2I-Adapter of an early form, which halves by convolutions": ("body.2.down_opt.op.", "body.0.skep."),
}
_T2I_FAMILIES: Final[Mapping[int, str]] = {64: "sd1", 192: "sd1", 256: "sdxl", 768: "sdxl"}
"""Values in the squares of pixels that a T2I-Adapter begins with, grey and RGB: SD 1.x has 8 pixels a side, SDXL 16."""


def leading_kind(shapes: Shapes) -> Kind | None:
    """Return what a file holds, if it is of such a kind."""
    if any(name.startswith(_CONTROLNET_MARKS) for name in shapes):
        return "controlnet"
    if any(name.startswith(("style_embedding", *_T2I_MARKS)) for name in shapes):
        return "t2i_adapter"
    return None


def identify_leading(kind: Kind, shapes: Shapes) -> Identity:
    """Tell what a file of such a kind is."""
    return _controlnet(shapes) if kind == "controlnet" else _t2i_adapter(shapes)


def _controlnet(shapes: Shapes) -> Identity:
    if other := _other("controlnet", shapes, _OTHER_CONTROLNETS):
        return other
    width = next((s[-1] for name, s in shapes.items() if name.endswith(".attn2.to_k.weight") and len(s) == 2), 0)
    family = family_of_text_width(width)
    diffusers = any(name.startswith("controlnet_cond_embedding.") for name in shapes)
    return Identity(
        "controlnet",
        family=family,
        network=FAMILIES[family].title if family else "",
        naming="diffusers" if diffusers else "original",
        reasons=(
            "controlnet: names of its hints' layers",
            *([f"family: it takes text of width {width}"] if width else []),
        ),
    )


def _t2i_adapter(shapes: Shapes) -> Identity:
    if other := _other("t2i_adapter", shapes, _OTHER_T2I_ADAPTERS):
        return other
    diffusers = any(name.startswith("adapter.") for name in shapes)
    first = next((shape for name, shape in shapes.items() if name.endswith("conv_in.weight") and len(shape) == 4), ())
    family = _T2I_FAMILIES.get(first[1]) if first else None
    return Identity(
        "t2i_adapter",
        family=family,
        network=FAMILIES[family].title if family else "",
        naming="diffusers" if diffusers else "original",
        reasons=(
            "t2i_adapter: names of its first layers",
            *([f"family: its first convolution is {list(first)}"] if family else []),
        ),
    )


def _other(kind: Kind, shapes: Shapes, networks: Mapping[str, tuple[str, ...]]) -> Identity | None:
    """Return which network of these, which are not supported, a file holds; `None` if it is none of them."""
    for network, marks in networks.items():
        if found := next((name for name in shapes if name.startswith(marks)), None):
            return Identity(kind, network=network, supported=False, reasons=(f"{found} occurs in {network} only",))
    return None

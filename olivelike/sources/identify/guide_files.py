"""Guides told from other files, and the forms of each kind from each other, by names and shapes of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from olivelike.families import FAMILIES, family_of_text_width
from olivelike.model.guides import GuideName
from olivelike.sources.identify.identity import Identity, Kind, Naming

Shapes = Mapping[str, tuple[int, ...]]

_OTHER_CONTROLNETS = {
    "ControlNet-LLLite": ("lllite_",),
    "Control-LoRA": ("lora_controlnet",),
    "ControlNet Union": ("task_embedding", "control_add_embedding.", "transformer_layes."),
}
"""Networks of that name which are none → what their tensors' names begin with."""
_OTHER_T2I_ADAPTERS = {
    "T2I-Adapter for styles": ("style_embedding",),
    "T2I-Adapter of an early form, which halves by convolutions": ("body.2.down_opt.op.", "body.0.skep."),
}
_T2I_FAMILIES: Final[Mapping[int, str]] = {64: "sd1", 192: "sd1", 256: "sdxl", 768: "sdxl"}
"""Values in the squares of pixels that a T2I-Adapter begins with, grey and RGB: SD 1.x has 8 pixels a side, SDXL 16."""
_OTHER_IP_ADAPTERS = {
    "IP-Adapter FaceID Plus, which takes what insightface makes of a face": ("image_proj.perceiver_resampler.",),
    "IP-Adapter FaceID, which takes what insightface makes of a face": ("image_proj.norm.weight",),
}
"""Those of no form below; a classic one has a norm too."""
_FORMS: Final = {"image_proj.proj.weight": "", "image_proj.latents": " Plus", "image_proj.proj.3.weight": " Full Face"}


MARKS: Final[Mapping[GuideName, tuple[str, ...]]] = {
    "ip_adapter": ("ip_adapter.", "image_proj."),
    "controlnet": ("control_model.", "controlnet_cond_embedding.", "input_hint_block.", "lllite_"),
    "t2i_adapter": ("style_embedding", "adapter.body.0.", "body.0.block1.weight", "body.0.in_conv.weight"),
}
"""Kinds whose files are known, others being folders alone → what names begin with in these files only."""


def marked_guide(shapes: Shapes) -> GuideName | None:
    """Return the kind of guides that a file's names are marked as."""
    return next((kind for kind, marks in MARKS.items() if any(name.startswith(marks) for name in shapes)), None)


def identify_guide(kind: Kind, shapes: Shapes) -> Identity:
    """Tell what a file that is marked as a kind of guides is."""
    return _TELL[kind](shapes)


def _controlnet(shapes: Shapes) -> Identity:
    if other := _other("controlnet", shapes, _OTHER_CONTROLNETS):
        return other
    width = _width(shapes, ".attn2.to_k.weight")
    evidence = f"it takes text of width {width}" if width else ""
    reasons = "names of its hints' layers", evidence
    return _guide("controlnet", family_of_text_width(width), shapes, reasons, "controlnet_cond_embedding.")


def _t2i_adapter(shapes: Shapes) -> Identity:
    if other := _other("t2i_adapter", shapes, _OTHER_T2I_ADAPTERS):
        return other
    first = next((shape for name, shape in shapes.items() if name.endswith("conv_in.weight") and len(shape) == 4), ())
    family = _T2I_FAMILIES.get(first[1]) if first else None
    evidence = f"its first convolution is {list(first)}" if family else ""
    return _guide("t2i_adapter", family, shapes, ("names of its first layers", evidence), "adapter.")


def _ip_adapter(shapes: Shapes) -> Identity:
    form = next((words for name, words in _FORMS.items() if name in shapes), None)
    if form is None and (other := _other("ip_adapter", shapes, _OTHER_IP_ADAPTERS)):
        return other
    width = _width(shapes, ".to_k_ip.weight")
    if form is None or not width:
        lacking = "a projection (image_proj.*)" if width else "keys for the UNet (ip_adapter.N.to_k_ip.weight)"
        return Identity("ip_adapter", supported=False, reasons=(f"it lacks {lacking} of a form that is known",))
    first = next(name for name in shapes if name.startswith(MARKS["ip_adapter"]))
    reasons = f"{first} and its like", f"its tokens have width {width}, as text has"
    return _guide("ip_adapter", family_of_text_width(width), shapes, reasons, form=form)


_TELL: Final[Mapping[Kind, Callable[[Shapes], Identity]]] = {
    "controlnet": _controlnet, "t2i_adapter": _t2i_adapter, "ip_adapter": _ip_adapter,
}  # fmt: skip


def _guide(
    kind: GuideName, family: str | None, shapes: Shapes, reasons: tuple[str, str], diffusers: str = "",
    form: str | None = None,
) -> Identity:  # fmt: skip
    """Return an identity by the evidence of kind and family; `diffusers` is a mark of one of two spellings."""
    (of_kind, of_family), title = reasons, FAMILIES[family].title if family else ""
    spelt: Naming = "diffusers" if diffusers and any(name.startswith(diffusers) for name in shapes) else "original"
    return Identity(
        kind,
        family=family,
        network=title if form is None else f"{title or 'another network'}{form and ','}{form}",
        naming=spelt if diffusers else None,
        reasons=(f"{kind}: {of_kind}", *([f"family: {of_family}"] if of_family else [])),
    )


def _width(shapes: Shapes, keys: str) -> int:
    """Return the width of what a cross-attention's keys take; 0 without any."""
    return max((shape[-1] for name, shape in shapes.items() if name.endswith(keys) and len(shape) == 2), default=0)


def _other(kind: GuideName, shapes: Shapes, networks: Mapping[str, tuple[str, ...]]) -> Identity | None:
    """Return which network of these, which are not supported, a file holds; `None` if it is none of them."""
    for network, marks in networks.items():
        if found := next((name for name in shapes if name.startswith(marks)), None):
            reason = f"{found} occurs in {network.partition(',')[0]} only"
            return Identity(kind, network=network, supported=False, reasons=(reason,))
    return None

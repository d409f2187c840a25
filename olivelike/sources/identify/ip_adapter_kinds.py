"""IP-Adapters told from other files, and their kinds from each other, by names and shapes of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from olivelike.families import FAMILIES, family_of_text_width
from olivelike.sources.identify.identity import Identity

_MARKS: Final = ("image_proj.", "ip_adapter.")
_OTHERS: Final[Mapping[str, str]] = {
    "image_proj.perceiver_resampler.": "IP-Adapter FaceID Plus, which takes what insightface makes of a face",
    "image_proj.norm.weight": "IP-Adapter FaceID, which takes what insightface makes of a face",
}
"""Name that occurs in one kind only → that kind; a classic adapter has a norm too, beside `image_proj.proj.weight`."""
_FORMS: Final = {"image_proj.proj.weight": "", "image_proj.latents": " Plus", "image_proj.proj.3.weight": " Full Face"}


def ip_adapter_identity(shapes: Mapping[str, tuple[int, ...]]) -> Identity | None:
    """Return what an IP-Adapter is; `None` for what is none."""
    first = next((name for name in shapes if name.startswith(_MARKS)), None)
    if first is None:
        return None
    form = next((words for name, words in _FORMS.items() if name in shapes), None)
    for mark, network in _OTHERS.items():
        telling = next((name for name in shapes if name.startswith(mark)), None)
        if telling is not None and form is None:
            return Identity("ip_adapter", network=network, supported=False, reasons=(f"{telling} occurs in it only",))
    widths = {shape[-1] for name, shape in shapes.items() if name.endswith(".to_k_ip.weight") and len(shape) == 2}
    if form is None or not widths:
        lacking = "keys for the UNet (ip_adapter.N.to_k_ip.weight)" if not widths else "a projection (image_proj.*)"
        return Identity("ip_adapter", supported=False, reasons=(f"it lacks {lacking} of a form that is known",))
    family = family_of_text_width(max(widths))
    return Identity(
        "ip_adapter",
        family=family,
        network=f"{FAMILIES[family].title if family else 'another network'}{form and ','}{form}",
        reasons=(f"ip_adapter: {first} and its like", f"family: its tokens have width {max(widths)}, as text has"),
    )

"""The part of an IP-Adapter that makes tokens of what an image encoder gives: its network, and what files call it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.model.guides import IMAGE_PROJECTION
from olivelike.sources.names.adaptation import StoredView

if TYPE_CHECKING:
    from olivelike.model.architecture import Config
    from olivelike.sources.names.loading_result import Shape

_OWN: Final = "image_projection."
_NAMES: Final = {
    "ImageProjection": ((r"proj\.", "image_embeds."),),
    "IPAdapterFullImageProjection": (
        (r"proj\.0\.", "ff.net.0.proj."),
        (r"proj\.2\.", "ff.net.2."),
        (r"proj\.3\.", "norm."),
    ),
    "IPAdapterPlusImageProjection": (
        (r"layers\.(\d+)\.0\.norm1\.", r"layers.\1.ln0."),
        (r"layers\.(\d+)\.0\.norm2\.", r"layers.\1.ln1."),
        (r"layers\.(\d+)\.(?:0|attn)\.to_out\.(?!0)", r"layers.\1.attn.to_out.0."),
        (r"layers\.(\d+)\.0\.to_", r"layers.\1.attn.to_"),
        (r"layers\.(\d+)\.1\.0\.", r"layers.\1.ff.0."),
        (r"layers\.(\d+)\.1\.1\.", r"layers.\1.ff.1.net.0.proj."),
        (r"layers\.(\d+)\.1\.3\.", r"layers.\1.ff.1.net.2."),
    ),
}
"""Class of diffusers → beginnings of names in files, and of its own."""


def build_projection(projection: Config) -> Any:
    """Return diffusers' network for class and arguments, with parameters where the caller has them made."""
    from diffusers.models import embeddings

    return getattr(embeddings, projection["class_name"])(**projection["arguments"])


def find_projection(projection: Config, shapes: Mapping[str, Shape]) -> dict[str, StoredView]:
    """Return where each parameter of a projection lies in the stored tensors.

    Raises `SourceError` if one is not there, or shapes differ.

    Args:
        projection: class and arguments.
        shapes: stored name → shape, those of the image encoder among them.
    """
    import torch

    views: dict[str, StoredView] = {}
    for stored, shape in shapes.items():
        if not stored.startswith(IMAGE_PROJECTION):
            continue
        name = stored.removeprefix(IMAGE_PROJECTION)
        for pattern, own in _NAMES[projection["class_name"]]:
            renamed, count = re.subn(rf"^{pattern}", own, name)
            if count:
                name = renamed
                break
        if ".to_kv." in name and len(shape) == 2 and shape[0] % 2 == 0:  # Keys, then values.
            half = (shape[0] // 2, shape[1])
            views[name.replace(".to_kv.", ".to_k.")] = StoredView(stored, half)
            views[name.replace(".to_kv.", ".to_v.")] = StoredView(stored, half, half[0] * half[1])
        else:
            views[name] = StoredView(stored, shape)
    with torch.device("meta"):
        network = build_projection(projection)
    found: dict[str, StoredView] = {}
    for name, parameter in network.state_dict().items():
        view = views.get(name)
        if view is None or view.shape != tuple(parameter.shape):
            there = "is not there" if view is None else f"has the shape {list(view.shape)}"
            raise SourceError(
                f"image_encoder: the IP-Adapter's projection does not fit {projection['class_name']}: {name} {there}, "
                f"where {list(parameter.shape)} is due; the file is damaged or incomplete, get it again"
            )
        found[_OWN + name] = view
    return found

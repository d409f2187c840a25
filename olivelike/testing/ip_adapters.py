"""IP-Adapters with seeded random weights and their image encoders, as h94/IP-Adapter on the hub has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from olivelike.families.networks.unet import COMPONENT
from olivelike.testing.checkpoints import random_parameter, write_safetensors

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.testing.checkpoints import Dtype

Form = Literal["classic", "plus", "full"]
Shapes = dict[str, tuple[int, ...]]

_VISION: Final[dict[str, Json]] = {
    "small": {
        "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3,
        "projection_dim": 16, "image_size": 28, "patch_size": 14,
    },
    "full": {
        "hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 16, "num_hidden_layers": 32,
        "projection_dim": 1024, "image_size": 224, "patch_size": 14,
    },
}  # fmt: skip
"""CLIP's vision towers: a little one, and ViT-H."""
_TOKENS: Final = 4
_HEAD: Final = 64
_RESAMPLER: Final = {"small": (64, 4), "full": (768, 4)}
"""Width and number of layers of a resampler."""
_QUERIES: Final = 16


def make_ip_adapter(
    folder: str | Path,
    pipeline: str | Path,
    *,
    form: Form = "classic",
    size: Literal["small", "full"] = "small",
    seed: int = 0,
    dtype: Dtype = "F32",
) -> Path:
    """Write `ip-adapter.safetensors` and `image_encoder/` for the UNet of a pipeline; tensors go one at a time.

    Args:
        folder: where to write; made if absent.
        pipeline: a diffusers folder, of which the UNet's config is read.
        form: `classic` has 4 tokens of one embedding, `plus` 16 by a resampler, `full` one for each patch.
        size: of the image encoder: a little one, or ViT-H.
        seed: of the weights.
        dtype: of the weights.

    Returns:
        The adapter's file.
    """
    import torch
    from diffusers import UNet2DConditionModel
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    from olivelike.graphs.image_attention import cross_attentions

    unet = json.loads((Path(pipeline) / COMPONENT / "config.json").read_bytes())
    vision = CLIPVisionConfig(**_VISION[size], hidden_act="gelu")
    with torch.device("meta"):
        network: Any = UNet2DConditionModel.from_config(unet)
        encoder: Any = CLIPVisionModelWithProjection(vision)
    keys = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    width = int(unet["cross_attention_dim"])
    shapes = {f"image_proj.{name}": shape for name, shape in _projection(form, size, width).items()}
    for number, block in enumerate(cross_attentions(keys)):
        for kind in ("k", "v"):
            shapes[f"ip_adapter.{2 * number + 1}.to_{kind}_ip.weight"] = keys[f"{block}.to_{kind}.weight"]
    path = Path(folder) / "ip-adapter.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, shapes, seed, dtype)
    place = path.parent / "image_encoder"
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps({**vision.to_diff_dict(), "architectures": [type(encoder).__name__]}))
    own = {name: tuple(tensor.shape) for name, tensor in encoder.named_parameters()}
    _write(place / "model.safetensors", own, seed, dtype)
    return path


def _write(path: Path, shapes: Shapes, seed: int, dtype: Dtype) -> None:
    tensors: dict[str, tuple[Dtype, tuple[int, ...]]] = {name: (dtype, shape) for name, shape in sorted(shapes.items())}
    write_safetensors(path, tensors, lambda name: random_parameter(name, shapes[name], seed, path.name))


def _projection(form: Form, size: str, width: int) -> Shapes:
    """Return a projection's tensors, by what tencent-ailab's code calls them."""
    vision = _VISION[size]
    hidden, embedding = vision["hidden_size"], vision["projection_dim"]
    if form == "classic":
        return {"proj.weight": (_TOKENS * width, embedding), "proj.bias": (_TOKENS * width,), **_norm("norm", width)}
    if form == "full":
        return {
            "proj.0.weight": (hidden, hidden), "proj.0.bias": (hidden,),
            "proj.2.weight": (width, hidden), "proj.2.bias": (width,), **_norm("proj.3", width),
        }  # fmt: skip
    inner, layers = _RESAMPLER[size]
    found: Shapes = {
        "latents": (1, _QUERIES, inner),
        "proj_in.weight": (inner, hidden), "proj_in.bias": (inner,),
        "proj_out.weight": (width, inner), "proj_out.bias": (width,), **_norm("norm_out", width),
    }  # fmt: skip
    heads = inner // _HEAD * _HEAD
    for number in range(layers):
        attention, forward = f"layers.{number}.0", f"layers.{number}.1"
        found |= {
            **_norm(f"{attention}.norm1", inner), **_norm(f"{attention}.norm2", inner),
            f"{attention}.to_q.weight": (heads, inner), f"{attention}.to_kv.weight": (2 * heads, inner),
            f"{attention}.to_out.weight": (inner, heads), **_norm(f"{forward}.0", inner),
            f"{forward}.1.weight": (4 * inner, inner), f"{forward}.3.weight": (inner, 4 * inner),
        }  # fmt: skip
    return found


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

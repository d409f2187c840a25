"""Guides with seeded random weights: as diffusers' folders, in one file of original names, or as h94/IP-Adapter."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from olivelike._untrusted import Json, JsonView
from olivelike.families.networks.unet import COMPONENT, LdmNames
from olivelike.model.adapter_features import taken_features
from olivelike.model.architecture import Config
from olivelike.testing.checkpoints import Dtype, random_parameter, write_safetensors

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
_STEM = "diffusion_pytorch_model.safetensors"
_OWN = {
    "controlnet_down_blocks.": "zero_convs.{}.0.",
    "controlnet_mid_block.": "middle_block_out.0.",
    "controlnet_cond_embedding.conv_in.": "input_hint_block.0.",
    "controlnet_cond_embedding.conv_out.": "input_hint_block.14.",
}
"""Beginnings of diffusers' names → those of the original code, with the number of what is numbered alike."""


def make_controlnet(
    folder: str | Path,
    pipeline: str | Path,
    *,
    seed: int = 0,
    dtype: Dtype = "F32",
    original: Literal["no", "plain", "prefixed"] = "no",
    changes: JsonView | None = None,
) -> Path:
    """Write a ControlNet for the UNet of a pipeline; tensors are written one at a time.

    Args:
        folder: where to write; made if absent. For original names: the file.
        pipeline: a diffusers folder, of which the UNet's config is read.
        seed: of the weights, those that training begins with as zeros among them.
        dtype: of the weights.
        original: one file in the names of the original code, in place of a folder: as they are, or behind
            `control_model.`, as in checkpoints that hold a UNet too.
        changes: of the config that follows from the UNet's.

    Returns:
        The folder or file.
    """
    import torch
    from diffusers import ControlNetModel

    unet = json.loads((Path(pipeline) / COMPONENT / "config.json").read_bytes())
    taken = inspect.signature(ControlNetModel.__init__).parameters
    config = {name: value for name, value in unet.items() if name in taken} | {"in_channels": 4} | dict(changes or {})
    with torch.device("meta"):
        network: Any = ControlNetModel(**config)
    names = None
    if original != "no":
        prefix, ldm_name = "control_model." if original == "prefixed" else "", LdmNames(network.state_dict())
        names = {prefix + (_added(name) or ldm_name(name) or name): name for name in network.state_dict()}
    return _write_network(Path(folder), network, names, seed, dtype, "controlnet")


def make_t2i_adapter(
    folder: str | Path,
    pipeline: str | Path,
    *,
    seed: int = 0,
    dtype: Dtype = "F32",
    original: bool = False,
    light: bool = False,
    changes: JsonView | None = None,
) -> Path:
    """Write a T2I-Adapter for the UNet of a pipeline; tensors are written one at a time.

    Args:
        folder: where to write; made if absent. For original names: the file.
        pipeline: a diffusers folder, of which configs of UNet and VAE are read.
        seed: of the weights.
        dtype: of the weights.
        original: one file in the names of the original code, in place of a folder.
        light: a `light_adapter`, in place of the full one that the pipeline's family has.
        changes: of the config that follows from the UNet's.

    Returns:
        The folder or file.
    """
    import torch
    from diffusers import T2IAdapter

    unet, vae = (json.loads((Path(pipeline) / name / "config.json").read_bytes()) for name in (COMPONENT, "vae"))
    config = {**adapter_config(unet, vae, light=light), **(changes or {})}
    with torch.device("meta"):
        network: Any = T2IAdapter(**config)
    names = {_tencent_name(name, light): name for name in network.state_dict()} if original else None
    return _write_network(Path(folder), network, names, seed, dtype, "t2i_adapter")


def adapter_config(unet: Config, vae: Config, *, light: bool = False) -> Json:
    """Return the config of a T2I-Adapter whose features go into a UNet, as published ones have it."""
    features = taken_features(unet)
    pixels = 2 ** (len(vae["block_out_channels"]) - 1)
    channels = [feature.channels for feature in features]
    kind = "full_adapter_xl" if features[0].scale > 1 else "light_adapter" if light else "full_adapter"
    return {
        "in_channels": 3, "channels": channels[:-1] if light else channels, "num_res_blocks": 4 if light else 2,
        "downscale_factor": pixels * features[0].scale, "adapter_type": kind,
    }  # fmt: skip


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


def _write_network(
    path: Path, network: Any, names: Mapping[str, str] | None, seed: int, dtype: Dtype, salt: str
) -> Path:
    """Write a network's folder, or with original names for its own ones a file; tensors are written one at a time."""
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    own = {name: name for name in shapes} if names is None else names
    if names is None:
        path.mkdir(parents=True, exist_ok=True)
        network.save_config(path)
    tensors: dict[str, tuple[Dtype, tuple[int, ...]]] = {
        name: (dtype, shapes[own[name]]) for name in sorted(own, key=own.__getitem__)
    }
    write_safetensors(
        path / _STEM if names is None else path,
        tensors,
        lambda name: random_parameter(own[name], shapes[own[name]], seed, salt),
    )
    return path


def _added(name: str) -> str | None:
    """Return the original name of what a UNet does not have."""
    for own, theirs in _OWN.items():
        if name.startswith(own):
            rest = name.removeprefix(own)
            number, _, kind = rest.partition(".") if "{}" in theirs else ("", "", rest)
            return theirs.format(number) + kind
    if name.startswith("controlnet_cond_embedding.blocks."):
        number, _, kind = name.removeprefix("controlnet_cond_embedding.blocks.").partition(".")
        return f"input_hint_block.{2 * (int(number) + 1)}.{kind}"
    return None


def _tencent_name(name: str, light: bool) -> str:
    own = name.removeprefix("adapter.")
    if light:
        return own.replace(".resnets.", ".body.")
    if found := re.fullmatch(r"body\.(\d+)\.resnets\.(\d+)\.(.*)", own):
        return f"body.{2 * int(found[1]) + int(found[2])}.{found[3]}"
    return re.sub(r"^body\.(\d+)\.in_conv", lambda match: f"body.{2 * int(match[1])}.in_conv", own)


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


MAKERS: Final[Mapping[str, tuple[Any, JsonView]]] = {
    "controlnet": (make_controlnet, {"--original": {"choices": ["no", "plain", "prefixed"], "default": "no"}}),
    "t2i_adapter": (
        make_t2i_adapter,
        {
            "--original": {"action": "store_true"},
            "--light": {"action": "store_true", "help": "a light_adapter, as those for colours are"},
        },
    ),
    "ip_adapter": (
        make_ip_adapter,
        {
            "--form": {"choices": ["classic", "plus", "full"], "default": "classic"},
            "--size": {"choices": ["small", "full"], "default": "small", "help": "of the image encoder"},
        },
    ),
}
"""Writer of each kind of guides, with the options that a command line has for it."""

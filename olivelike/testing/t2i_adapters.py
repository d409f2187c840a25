"""T2I-Adapters with seeded random weights, as diffusers' folders and in one file of TencentARC's original names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.families.networks.unet import COMPONENT
from olivelike.model.adapter_features import taken_features
from olivelike.testing.checkpoints import random_parameter, write_safetensors

if TYPE_CHECKING:
    from olivelike._untrusted import Json, JsonView
    from olivelike.model.architecture import Config
    from olivelike.testing.checkpoints import Dtype

_STEM = "diffusion_pytorch_model.safetensors"


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
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    path = Path(folder)
    names = {_original(name, light) if original else name: name for name in sorted(shapes)}
    if not original:
        path.mkdir(parents=True, exist_ok=True)
        network.save_config(path)
    tensors: dict[str, tuple[Dtype, tuple[int, ...]]] = {name: (dtype, shapes[own]) for name, own in names.items()}
    write_safetensors(
        path if original else path / _STEM,
        tensors,
        lambda name: random_parameter(names[name], shapes[names[name]], seed, "t2i_adapter"),
    )
    return path


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


def _original(name: str, light: bool) -> str:
    own = name.removeprefix("adapter.")
    if light:
        return own.replace(".resnets.", ".body.")
    if found := re.fullmatch(r"body\.(\d+)\.resnets\.(\d+)\.(.*)", own):
        return f"body.{2 * int(found[1]) + int(found[2])}.{found[3]}"
    return re.sub(r"^body\.(\d+)\.in_conv", lambda match: f"body.{2 * int(match[1])}.in_conv", own)

"""ControlNets with seeded random weights, as diffusers' folders and in one file of the original (LDM) names."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from olivelike.families.networks.unet import COMPONENT, LdmNames
from olivelike.testing.checkpoints import random_parameter, write_safetensors

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.testing.checkpoints import Dtype

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
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    names = {name: name for name in sorted(shapes)}
    path = Path(folder)
    if original == "no":
        path.mkdir(parents=True, exist_ok=True)
        network.save_config(path)
    else:
        prefix = "control_model." if original == "prefixed" else ""
        ldm_name = LdmNames(names)
        names = {prefix + (_own(name) or ldm_name(name) or name): name for name in names}
    tensors: dict[str, tuple[Dtype, tuple[int, ...]]] = {name: (dtype, shapes[own]) for name, own in names.items()}
    write_safetensors(
        path / _STEM if original == "no" else path,
        tensors,
        lambda name: random_parameter(names[name], shapes[names[name]], seed, "controlnet"),
    )
    return path


def _own(name: str) -> str | None:
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

"""Writes the trained networks as a diffusers folder in float16."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tools.train_demo.configs import DEMO_INDEX, DEMO_SCHEDULER, demo_feature_extractor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write_network(folder: Path, config: dict[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """Write one network's `config.json` and its weights, halved.

    Args:
        folder: the network's own folder, such as `unet` in the pipeline; made if absent.
        config: the published spelling of its config.
        weights: float32 tensors by name; integer buffers are left out.

    Raises:
        ValueError: if a weight is beyond float16.
    """
    write_json(folder / "config.json", config)
    halved = {
        name: tensor.to(torch.float16).contiguous() for name, tensor in weights.items() if tensor.is_floating_point()
    }
    for name, tensor in halved.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{folder.name}: {name} does not fit into float16")
    name = "model" if folder.name in {"text_encoder", "safety_checker"} else "diffusion_pytorch_model"
    save_file(halved, folder / f"{name}.safetensors", metadata={"format": "pt"})


def write_settings(folder: Path) -> None:
    """Write `model_index.json`, the scheduler's config and the feature extractor's."""
    write_json(folder / "model_index.json", DEMO_INDEX)
    for name, values in (
        ("scheduler/scheduler_config.json", DEMO_SCHEDULER),
        ("feature_extractor/preprocessor_config.json", demo_feature_extractor()),
    ):
        write_json(folder / name, values)


def write_json(path: Path, value: Any) -> None:
    """Write a value in the form of the folder's other files; its folder is made if absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")

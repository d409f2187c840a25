"""diffusers' torch pipeline of a checkpoint, put together of the library's own classes."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from olivelike.errors import SourceError
from olivelike.graphs.export.torch_network import build_network
from olivelike.measure.verify.reference import fill

if TYPE_CHECKING:
    from olivelike.measure.verify.originals import Originals

    Array = np.ndarray[Any, Any]


def torch_pipeline(originals: Originals) -> Any:
    """Return the text-to-image pipeline in float32 on the CPU, without a safety checker.

    Tokenizers and scheduler are the source's own, as its index names them.

    Raises:
        SourceError: if the source has no tokenizer or scheduler.
    """
    import diffusers

    is_xl = "text_encoder_2" in originals.source.checkpoints
    parts: dict[str, Any] = {
        "vae": _network(originals, "vae_decoder"),
        "unet": _network(originals, "unet"),
        "scheduler": _scheduler(originals),
    }
    for suffix in ("", "_2"):
        if f"text_encoder{suffix}" in originals.source.checkpoints:
            parts[f"text_encoder{suffix}"] = _network(originals, f"text_encoder{suffix}")
            parts[f"tokenizer{suffix}"] = _tokenizer(originals, f"tokenizer{suffix}")
    if is_xl:
        zeros = bool(originals.source.index.get("force_zeros_for_empty_prompt", True))
        pipeline = diffusers.StableDiffusionXLPipeline(
            **parts, force_zeros_for_empty_prompt=zeros, add_watermarker=False
        )
    else:
        pipeline = diffusers.StableDiffusionPipeline(
            **parts, safety_checker=None, feature_extractor=None, requires_safety_checker=False
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _network(originals: Originals, component: str) -> Any:
    """Return a network with its weights; what text to image has no use for, such as the VAE's encoder, is zero."""
    architecture, read = originals.network(component)
    network = build_network(architecture)
    parameters = dict(network.named_parameters(remove_duplicate=False))
    unused = ("encoder.", "quant_conv.") if component == "vae_decoder" else ()

    def values(name: str) -> Array:
        return np.zeros(parameters[name].shape, np.float32) if name.startswith(unused) else read(name)

    fill(network, parameters, values, torch.float32)
    return network


def _scheduler(originals: Originals) -> Any:
    import diffusers

    path, entry = (
        originals.source.extras.get("scheduler/scheduler_config.json"),
        originals.source.index.get("scheduler"),
    )
    cls = getattr(diffusers, entry[1], None) if isinstance(entry, list) else None
    if path is None or cls is None:
        raise SourceError("the source names no scheduler of diffusers, so its pictures can't be made")
    return cls.from_config(json.loads(path.read_bytes()))


def _tokenizer(originals: Originals, name: str) -> Any:
    from transformers import CLIPTokenizer

    files = {key: path for key, path in originals.source.extras.items() if key.startswith(f"{name}/")}
    if not files:
        raise SourceError(f"the source has no {name}, so its pictures can't be made")
    with tempfile.TemporaryDirectory(prefix="olivelike-tokenizer-") as folder:
        for key, path in files.items():
            shutil.copyfile(path, Path(folder, key.rpartition("/")[2]))
        return CLIPTokenizer.from_pretrained(folder, local_files_only=True)

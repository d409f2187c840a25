"""Diffusers' torch pipelines of the little networks, and how far pictures are from theirs."""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np

from tests.fixtures.little_networks import make_networks
from tests.fixtures.little_pipeline import little_checkpoint

SCHEDULERS = {
    "DDIM": "DDIMScheduler",
    "PLMS": "PNDMScheduler",
    "Euler": "EulerDiscreteScheduler",
    "Euler a": "EulerAncestralDiscreteScheduler",
    "DPM++ 2M": "DPMSolverMultistepScheduler",
    "UniPC": "UniPCMultistepScheduler",
    "Heun": "HeunDiscreteScheduler",
}
OTHERS = {"LCM": "LCMScheduler"}
"""A1111's name → diffusers' class."""


@cache
def torch_pipeline(class_name, kind="sd"):
    """Return a pipeline of diffusers without its safety checker."""
    import diffusers
    from transformers import CLIPTokenizer

    diffusers.utils.logging.set_verbosity_error()
    parts = {name: part for name, part in make_networks(kind).items() if name != "safety_checker"}
    for name in [name for name in parts if name.startswith("text_encoder")]:
        folder = name.replace("text_encoder", "tokenizer")
        parts[folder] = CLIPTokenizer.from_pretrained(little_checkpoint(kind) / folder)
    parts["scheduler"] = diffusers.PNDMScheduler.from_pretrained(little_checkpoint(kind), subfolder="scheduler")
    if kind.endswith("xl"):
        more = {"add_watermarker": False, "force_zeros_for_empty_prompt": True}
    else:
        more = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipeline = getattr(diffusers, class_name)(**parts, **more)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint(class_name, scheduler, seeds, *, kind="sd", prediction_type="epsilon", settings=None, **arguments):
    """Return what diffusers' pipeline paints, with a generator for each picture; `settings` are the scheduler's."""
    import diffusers
    import torch

    pipeline = torch_pipeline(class_name, kind)
    published = diffusers.PNDMScheduler.load_config(little_checkpoint(kind), subfolder="scheduler")
    pipeline.scheduler = getattr(diffusers, {**SCHEDULERS, **OTHERS}.get(scheduler, scheduler)).from_config(
        published, prediction_type=prediction_type, **(settings or {})
    )
    arguments = {"prompt": "a red circle", "num_inference_steps": 4, **arguments}
    arguments["prompt"] = [arguments["prompt"]] * len(seeds)
    for name in ("negative_prompt", "image", "mask_image"):
        if arguments.get(name) is not None:
            arguments[name] = [arguments[name]] * len(seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(generator=generators, **arguments).images


def psnr(picture, other):
    """Return the peak signal-to-noise ratio of two 8-bit pictures, in dB."""
    first, second = (np.asarray(image, np.float64) for image in (picture, other))
    error = np.mean((first - second) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def assert_alike(result, images, least=50.0):
    """Check a result against pictures of torch, which have something to show."""
    assert len(result.pictures) == len(images)
    for picture, image in zip(result.pictures, images, strict=True):
        assert np.asarray(image).std() > 20
        assert psnr(picture.image, image) >= least

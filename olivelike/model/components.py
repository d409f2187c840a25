"""Names of the components of pipelines, of their files, and of what goes in and out of them; families have a room."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from olivelike.model.guides import GUIDED_FILES
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE

INDEX_FILE: Final = "model_index.json"
"""Name that diffusers has for a pipeline's index."""
MODEL_FILE: Final = "model.onnx"
"""A component's graph, in its folder."""
PIPELINE: Final = "pipeline"
"""Stands for a component where the whole pipeline is meant."""
PIPELINE_FILE: Final = "pipeline.onnx"
"""A whole pipeline as one model, in its folder."""
SHALLOW_FILE: Final = "shallow.onnx"
"""The part of a UNet's graph that steps between full ones run, beside it: the pass `deepcache` makes it."""
CACHED_FEATURES: Final = "cached_features"
"""Output of a UNet's graph, and input of its shallow part."""
TAKEN_STATES: Final = "taken_states"
"""Key of our own in the config of a text encoder: the numbers of the states that its family's denoiser takes."""
ONNX_SUFFIXES: Final = (".onnx", ".onnx.data", ".onnx_data", ".pb")
"""Ends of the names of ONNX models and of the files with their weights."""
WEIGHT_FILE_SUFFIXES: Final = (".safetensors", ".gguf", ".ckpt", ".pt", ".pth", ".bin")
"""Ends of the names of weight files that are read, pickled ones included."""
DERIVED_FILES: Final = frozenset({SHALLOW_FILE, LORA_INPUTS_FILE, *GUIDED_FILES})
"""Graphs that are made of a network's, over its weights."""

VAES: Final[tuple[str, ...]] = ("vae_encoder", "vae_decoder")
"""The halves of one network, which torch pipelines keep in one folder."""
SAFETY_CHECKER: Final = "safety_checker"
PREVIEW: Final = "preview_decoder"
"""The decoder of a tiny VAE beside a pipeline's own, for pictures of steps; no client but the runtime knows it."""


def own_marks(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a network's config is our own, so that no library knows it."""
    return {key: config[key] for key in (TAKEN_STATES,) if key in config}


def torch_folder(component: str) -> str:
    """Return the folder that holds a component's weights in a pipeline of torch."""
    return "vae" if component in VAES else component


def latents_in_square(vae: Mapping[str, object]) -> int:
    """Return the latents along a side of the squares that a VAE's graph takes and makes, by its config: FLUX.2 has 2.

    Each is one to the denoiser, with all its latents as channels.
    """
    patch = vae.get("patch_size")
    return patch[0] if isinstance(patch, list | tuple) and patch and isinstance(patch[0], int) else 1


def latent_channels(vae: Mapping[str, object]) -> int | None:
    """Return the channels of latents that a VAE's graph takes and makes, by its config; `None` if it does not say."""
    channels = vae.get("latent_channels", vae.get("z_dim"))
    return channels * latents_in_square(vae) ** 2 if isinstance(channels, int) else None


def pixels_per_latent(vae: Mapping[str, object]) -> int:
    """Return how many pixels such a latent has along a side, by a VAE's config; 8 if it does not say.

    A VAE halves sides between its levels, which configs of several classes list by several names.
    """
    lists = (vae.get(key) for key in ("block_out_channels", "decoder_block_out_channels", "dim_mult"))
    levels = next((len(one) for one in lists if isinstance(one, list | tuple) and one), _VAE_LEVELS)
    return int(2 ** (levels - 1)) * latents_in_square(vae)


def wrong_statistics(vae: Mapping[str, object]) -> str | None:
    """Return what a VAE's config says of its latents' means and deviations that is none, as a part of a sentence.

    Another number of them than of channels is: one alone would be taken for all without a word.
    """
    channels = vae.get("latent_channels", vae.get("z_dim"))
    for key in ("latents_mean", "latents_std"):
        told = vae.get(key)
        if told is None:
            continue
        found = list(told) if isinstance(told, list | tuple) else []
        numbers = [float(one) for one in found if isinstance(one, int | float) and not isinstance(one, bool)]
        whole = 0 < len(numbers) == len(found) and channels in (None, len(found)) and all(map(math.isfinite, numbers))
        if not whole or (key == "latents_std" and min(numbers) <= 0):
            several = f"each of {channels} channels" if isinstance(channels, int) else "each channel"
            return (
                f"`{key}: {json.dumps(told)[:_SHOWN]}`, where a list of a number for {several}, above 0 if it is a "
                "deviation, makes sense"
            )
    return None


_SHOWN: Final = 40
_VAE_LEVELS: Final = 4
Prediction = Literal["epsilon", "v_prediction", "sample"]
"""A UNet's prediction: the noise, v (https://arxiv.org/abs/2202.00512), or the picture, as Lightning's in one step."""


HALF_PASSES: Final = {"fp16": "float16", "bf16": "bfloat16"}
"""The pass that brings a graph to each half precision."""
QUANTISING_PASSES: Final = {"w8": "weights8", "w4": "weights4", "int8": "int8", "fp8": "fp8"}
"""The pass that brings weights alone (`w8`, `w4`) or what is computed to so many bits, behind what brings the graph to
the target's precision."""

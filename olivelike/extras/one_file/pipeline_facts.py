"""Reading of a pipeline's configs, but for its networks, for its graph as one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from olivelike._untrusted import JsonView
from olivelike.engine.output.scheduler_model import config_of_schedules, scheduler_choices
from olivelike.engine.output.tokenizer_step import tokenizer_architecture
from olivelike.extras.one_file.pipeline_graph import PipelineFacts
from olivelike.families import TEXT_ENCODERS, TOKENIZER_OF, denoiser_among
from olivelike.model import Architecture

_PREPROCESSOR: Final = "feature_extractor/preprocessor_config.json"


def pipeline_facts(
    index: JsonView, assets: Mapping[str, bytes], architectures: Mapping[str, Architecture]
) -> PipelineFacts:
    """Return what a pipeline is beside its networks.

    Raises `SourceError` if there is no scheduler that can draw, or a tokenizer is none of CLIP's.

    Args:
        index: The source's `model_index.json`.
        assets: Content of the files beside the networks, by relative path.
        architectures: Of the networks, where they are known.
    """
    choices = scheduler_choices(config_of_schedules(assets))
    vae = architectures.get("vae_decoder")
    unet = architectures.get(denoiser_among(architectures) or "")
    width, trained = (
        unet.config.get(key) if unet is not None else None for key in ("time_cond_proj_dim", "sample_size")
    )
    sides = [trained] * 2 if isinstance(trained, int) else trained
    known = isinstance(sides, list | tuple) and len(sides) == 2 and all(type(side) is int for side in sides)
    zeros: tuple[int, ...] = ()
    if index.get("force_zeros_for_empty_prompt"):
        encoders = [name for name in TEXT_ENCODERS if name in architectures]
        zeros = tuple(_end(TOKENIZER_OF[name], assets) for name in encoders)
    return PipelineFacts(
        choices,
        vae.config if vae is not None else {},
        width if isinstance(width, int) else None,
        json.loads(assets[_PREPROCESSOR]) if _PREPROCESSOR in assets else None,
        (sides[0], sides[1]) if known else None,
        zeros,
    )


def _end(tokenizer: str, assets: Mapping[str, bytes]) -> int:
    """Return the id that ends texts."""
    files = {path: data for path, data in assets.items() if path.startswith(f"{tokenizer}/")}
    end: int = tokenizer_architecture(tokenizer, files).config["vocab"]["<|endoftext|>"]
    return end

"""What the published pipelines of each family say beside their weights, for checkpoints in one file.

Configs of networks are those of the repositories named below. `family_configs` replaces widths, depths and counts in
them by what a file's shapes say; what no shape tells (heads, groups, activations, scaling factor) stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.model.architecture import Config
    from olivelike.model.families import Prediction

_PUBLISHED = Path(__file__).parents[2] / "data" / "published"

NETWORK_CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    "unet": ("diffusers", "UNet2DConditionModel"),
    "vae": ("diffusers", "AutoencoderKL"),
    "text_encoder": ("transformers", "CLIPTextModel"),
    "text_encoder_2": ("transformers", "CLIPTextModelWithProjection"),
}
"""Folder → library and class."""


@dataclass(frozen=True)
class Published:
    """What belongs to a pipeline of a family and is not in its single file."""

    family: str
    pipeline: str
    """Class of the pipeline, in diffusers."""
    inpainting_pipeline: str
    index: Config
    """Further settings of `model_index.json`, such as `force_zeros_for_empty_prompt`."""
    tokenizers: Mapping[str, str]
    """Folder of the tokenizer → folder of its published settings."""
    scheduler: str
    """The scheduler for `epsilon`."""
    head_width: int | None
    """Channels per attention head of the UNet; `None` if the count of heads is the same at every level."""
    changes: Mapping[Prediction, Config] = field(default_factory=dict)
    """Prediction → UNet settings that differ between the published networks."""

    @cached_property
    def configs(self) -> Mapping[str, Config]:
        """Folder → published `config.json`."""
        path = _PUBLISHED / "networks" / f"{self.family}.json"
        configs: Mapping[str, Config] = json.loads(path.read_text(encoding="utf-8"))
        return configs


def scheduler_file(family: Published, prediction: Prediction, *, zero_snr: bool) -> tuple[str, Path]:
    """Return class and config file of the published scheduler for a prediction.

    Args:
        family: the family.
        prediction: what the UNet predicts.
        zero_snr: the network was trained with zero terminal signal-to-noise ratio, https://arxiv.org/abs/2305.08891.
    """
    euler = family.scheduler == "EulerDiscreteScheduler"
    if prediction != "v_prediction":
        name, stem = family.scheduler, "euler_epsilon" if euler else "pndm_epsilon"
    else:
        name = "EulerDiscreteScheduler" if euler else "DDIMScheduler"
        stem = ("euler" if euler else "ddim") + "_v_prediction" + ("_zero_snr" if zero_snr else "")
    return name, _PUBLISHED / "scheduler" / f"{stem}.json"


EDM_SCHEDULER: Final = ("EDMDPMSolverMultistepScheduler", _PUBLISHED / "scheduler" / "edm_epsilon.json")
"""Class and config file of playgroundai/playground-v2.5-1024px-aesthetic."""


def tokenizer_files(family: Published) -> dict[str, Path]:
    """Return the tokenizers' files: relative path in a pipeline folder → file of this package.

    There is no `vocab.json` among them: it follows from `merges.txt`.
    """
    files: dict[str, Path] = {}
    for folder, settings in family.tokenizers.items():
        files[f"{folder}/merges.txt"] = _PUBLISHED / "tokenizer" / "merges.txt"
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            files[f"{folder}/{name}"] = _PUBLISHED / "tokenizer" / settings / name
    return files


_SD_INDEX: Final[Config] = {
    "feature_extractor": [None, None],
    "requires_safety_checker": False,
    "safety_checker": [None, None],
}

PUBLISHED: Final[Mapping[str, Published]] = {
    # stable-diffusion-v1-5/stable-diffusion-v1-5 and stable-diffusion-v1-5/stable-diffusion-inpainting
    "sd1": Published(
        "sd1",
        "StableDiffusionPipeline",
        "StableDiffusionInpaintPipeline",
        index=_SD_INDEX,
        tokenizers={"tokenizer": "pad_end"},
        scheduler="PNDMScheduler",
        head_width=None,
    ),
    # stabilityai/stable-diffusion-2-1 (v), stable-diffusion-2-1-base (epsilon), stable-diffusion-2-inpainting
    "sd2": Published(
        "sd2",
        "StableDiffusionPipeline",
        "StableDiffusionInpaintPipeline",
        index=_SD_INDEX,
        tokenizers={"tokenizer": "pad_exclamation"},
        scheduler="PNDMScheduler",
        head_width=64,
        changes={"v_prediction": {"sample_size": 96, "upcast_attention": True}},
    ),
    # stabilityai/stable-diffusion-xl-base-1.0 and diffusers/stable-diffusion-xl-1.0-inpainting-0.1
    "sdxl": Published(
        "sdxl",
        "StableDiffusionXLPipeline",
        "StableDiffusionXLInpaintPipeline",
        index={"force_zeros_for_empty_prompt": True},
        tokenizers={"tokenizer": "pad_end", "tokenizer_2": "pad_exclamation"},
        scheduler="EulerDiscreteScheduler",
        head_width=64,
    ),
    # stabilityai/stable-diffusion-xl-refiner-1.0
    "sdxl_refiner": Published(
        "sdxl_refiner",
        "StableDiffusionXLImg2ImgPipeline",
        "StableDiffusionXLInpaintPipeline",
        index={
            "force_zeros_for_empty_prompt": False,
            "requires_aesthetics_score": True,
            "text_encoder": [None, None],
            "tokenizer": [None, None],
        },
        tokenizers={"tokenizer_2": "pad_exclamation"},
        scheduler="EulerDiscreteScheduler",
        head_width=64,
    ),
}

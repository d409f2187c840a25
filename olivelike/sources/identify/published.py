"""The families of single-file checkpoints: what the published pipelines of each say beside their weights.

The values are those of the repositories that each template names. Widths, depths and counts in them are those of
the published network; `family_configs` replaces them by what a file's shapes say. What no shape tells (heads,
groups, activations, scaling factor) stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from olivelike.model.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.model.families import FamilyName, Prediction

_PUBLISHED = Path(__file__).parents[2] / "data" / "published"


@dataclass(frozen=True)
class Published:
    """What belongs to a pipeline of the family and is not in its single file."""

    pipeline: str
    """Class of the pipeline, in diffusers."""
    inpainting_pipeline: str
    index: Mapping[str, Any]
    """Further settings of `model_index.json`, such as `force_zeros_for_empty_prompt`."""
    configs: Mapping[str, Mapping[str, Any]]
    """Folder → published `config.json`."""
    classes: Mapping[str, tuple[str, str]]
    """Folder → library and class."""
    tokenizers: Mapping[str, str]
    """Folder of the tokenizer → folder of its published settings."""
    scheduler: str
    """The scheduler for `epsilon`."""
    head_width: int | None
    """Channels per attention head of the UNet; `None` if the count of heads is the same at every level."""
    changes: Mapping[str, Mapping[str, Any]]
    """Prediction → UNet settings that differ between the published networks."""


def scheduler_file(family: Published, prediction: Prediction, *, zero_snr: bool) -> tuple[str, Path]:
    """Return class and config file of the published scheduler for a prediction.

    Args:
        family: the family.
        prediction: what the UNet predicts.
        zero_snr: the network was trained with zero terminal signal-to-noise ratio, https://arxiv.org/abs/2305.08891.
    """
    euler = family.scheduler == "EulerDiscreteScheduler"
    if prediction == "epsilon":
        name, stem = family.scheduler, "euler_epsilon" if euler else "pndm_epsilon"
    else:
        name = "EulerDiscreteScheduler" if euler else "DDIMScheduler"
        stem = ("euler" if euler else "ddim") + "_v_prediction" + ("_zero_snr" if zero_snr else "")
    return name, _PUBLISHED / "scheduler" / f"{stem}.json"


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


_UNET: dict[str, Any] = {
    "act_fn": "silu",
    "center_input_sample": False,
    "downsample_padding": 1,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "in_channels": 4,
    "layers_per_block": 2,
    "mid_block_scale_factor": 1,
    "norm_eps": 1e-05,
    "norm_num_groups": 32,
    "out_channels": 4,
}

_UNET_XL: dict[str, Any] = {
    **_UNET,
    "addition_embed_type": "text_time",
    "addition_embed_type_num_heads": 64,
    "addition_time_embed_dim": 256,
    "sample_size": FAMILIES["sdxl"].sample_size,
    "upcast_attention": None,
    "use_linear_projection": True,
}

_VAE: dict[str, Any] = {
    "act_fn": "silu",
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "in_channels": 3,
    "latent_channels": 4,
    "layers_per_block": 2,
    "norm_num_groups": 32,
    "out_channels": 3,
    "sample_size": 512,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}

_TEXT: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "dropout": 0.0,
    "eos_token_id": 2,
    "hidden_act": "quick_gelu",
    "hidden_size": FAMILIES["sd1"].text_width,
    "initializer_factor": 1.0,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 77,
    "model_type": "clip_text_model",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "projection_dim": 768,
    "vocab_size": 49408,
}

_TEXT_BIG_G: dict[str, Any] = {
    **_TEXT,
    "hidden_act": "gelu",
    "hidden_size": FAMILIES["sdxl"].text_encoders["text_encoder_2"],
    "intermediate_size": 5120,
    "num_attention_heads": 20,
    "num_hidden_layers": 32,
    "projection_dim": 1280,
}

_VAE_XL: dict[str, Any] = {
    **_VAE,
    "force_upcast": True,
    "sample_size": 1024,
    "scaling_factor": FAMILIES["sdxl"].scaling_factor,
}

_UNET_CLASS = ("diffusers", "UNet2DConditionModel")
_VAE_CLASS = ("diffusers", "AutoencoderKL")
_TEXT_CLASS = ("transformers", "CLIPTextModel")
_TEXT_PROJECTION_CLASS = ("transformers", "CLIPTextModelWithProjection")

_FOUR_LEVELS: dict[str, Any] = {
    "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
}

# stable-diffusion-v1-5/stable-diffusion-v1-5 and stable-diffusion-v1-5/stable-diffusion-inpainting
_SD1 = Published(
    pipeline="StableDiffusionPipeline",
    inpainting_pipeline="StableDiffusionInpaintPipeline",
    index={
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
    },
    configs={
        "unet": {
            **_UNET,
            **_FOUR_LEVELS,
            "attention_head_dim": 8,
            "block_out_channels": list(FAMILIES["sd1"].unet_widths),
            "cross_attention_dim": FAMILIES["sd1"].text_width,
            "sample_size": FAMILIES["sd1"].sample_size,
        },
        "vae": _VAE,
        "text_encoder": _TEXT,
    },
    classes={"unet": _UNET_CLASS, "vae": _VAE_CLASS, "text_encoder": _TEXT_CLASS},
    tokenizers={"tokenizer": "pad_end"},
    scheduler="PNDMScheduler",
    head_width=None,
    changes={},
)

# stabilityai/stable-diffusion-2-1 (v), stable-diffusion-2-1-base (epsilon), stable-diffusion-2-inpainting
_SD2 = Published(
    pipeline="StableDiffusionPipeline",
    inpainting_pipeline="StableDiffusionInpaintPipeline",
    index=_SD1.index,
    configs={
        "unet": {
            **_UNET,
            **_FOUR_LEVELS,
            "attention_head_dim": [5, 10, 20, 20],
            "block_out_channels": list(FAMILIES["sd2"].unet_widths),
            "cross_attention_dim": FAMILIES["sd2"].text_width,
            "sample_size": FAMILIES["sd2"].sample_size,
            "use_linear_projection": True,
        },
        "vae": {**_VAE, "sample_size": 768},
        "text_encoder": {
            **_TEXT,
            "hidden_act": "gelu",
            "hidden_size": FAMILIES["sd2"].text_width,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 23,
            "projection_dim": 512,
        },
    },
    classes=_SD1.classes,
    tokenizers={"tokenizer": "pad_exclamation"},
    scheduler="PNDMScheduler",
    head_width=64,
    changes={"v_prediction": {"sample_size": 96, "upcast_attention": True}},
)

# stabilityai/stable-diffusion-xl-base-1.0 and diffusers/stable-diffusion-xl-1.0-inpainting-0.1
_SDXL = Published(
    pipeline="StableDiffusionXLPipeline",
    inpainting_pipeline="StableDiffusionXLInpaintPipeline",
    index={"force_zeros_for_empty_prompt": True},
    configs={
        "unet": {
            **_UNET_XL,
            "attention_head_dim": [5, 10, 20],
            "block_out_channels": list(FAMILIES["sdxl"].unet_widths),
            "cross_attention_dim": FAMILIES["sdxl"].text_width,
            "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2],
            "projection_class_embeddings_input_dim": 2816,
            "transformer_layers_per_block": [1, 2, 10],
            "up_block_types": [*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"],
        },
        "vae": _VAE_XL,
        "text_encoder": _TEXT,
        "text_encoder_2": _TEXT_BIG_G,
    },
    classes={
        "unet": _UNET_CLASS,
        "vae": _VAE_CLASS,
        "text_encoder": _TEXT_CLASS,
        "text_encoder_2": _TEXT_PROJECTION_CLASS,
    },
    tokenizers={"tokenizer": "pad_end", "tokenizer_2": "pad_exclamation"},
    scheduler="EulerDiscreteScheduler",
    head_width=64,
    changes={},
)

# stabilityai/stable-diffusion-xl-refiner-1.0
_SDXL_REFINER = Published(
    pipeline="StableDiffusionXLImg2ImgPipeline",
    inpainting_pipeline="StableDiffusionXLInpaintPipeline",
    index={
        "force_zeros_for_empty_prompt": False,
        "requires_aesthetics_score": True,
        "text_encoder": [None, None],
        "tokenizer": [None, None],
    },
    configs={
        "unet": {
            **_UNET_XL,
            "attention_head_dim": [6, 12, 24, 24],
            "block_out_channels": list(FAMILIES["sdxl_refiner"].unet_widths),
            "cross_attention_dim": FAMILIES["sdxl_refiner"].text_width,
            "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2, "DownBlock2D"],
            "projection_class_embeddings_input_dim": 2560,
            "transformer_layers_per_block": 4,
            "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 2, "UpBlock2D"],
        },
        "vae": _VAE_XL,
        "text_encoder_2": _TEXT_BIG_G,
    },
    classes={"unet": _UNET_CLASS, "vae": _VAE_CLASS, "text_encoder_2": _TEXT_PROJECTION_CLASS},
    tokenizers={"tokenizer_2": "pad_exclamation"},
    scheduler="EulerDiscreteScheduler",
    head_width=64,
    changes={},
)

PUBLISHED: Mapping[FamilyName, Published] = MappingProxyType(
    {"sd1": _SD1, "sd2": _SD2, "sdxl": _SDXL, "sdxl_refiner": _SDXL_REFINER}
)

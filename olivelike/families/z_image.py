"""Z-Image, Turbo and base: https://huggingface.co/Tongyi-MAI/Z-Image-Turbo."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from olivelike._untrusted import JsonView
from olivelike.families import flux, sd1
from olivelike.families.family import (
    QWEN_PREFIXES,
    QWEN_STREAMS,
    Family,
    Latents,
    Published,
    Sizes,
    TextPart,
    blocks_of_transformer,
    is_distilled,
)
from olivelike.families.flux2 import QWEN3_FIRST, QWEN3_OUTPUTS, QWEN3_TABLES, QWEN3_VALUES


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del components
    return str(index.get("_class_name")).startswith("ZImage") or {"cap_feat_dim", "n_refiner_layers"} <= denoiser.keys()


def _variant(index: JsonView, denoiser: JsonView) -> Mapping[str, Any]:
    """Return what the base has otherwise than Turbo: the least that its makers recommend.

    https://github.com/Tongyi-MAI/Z-Image: 28 to 50 steps, and 3 to 5 on diffusers' scale.
    """
    del denoiser
    return {"steps": 28, "guidance": 4.0} if is_distilled(index) is False else {}


_SHIFT_OF_BASE: Final = 6.0


def _named_distilled(name: str) -> bool | None:
    """Tell Turbo, as in `z_image_turbo_bf16`, from the base, whose published files are `z_image_bf16` and the like."""
    if "turbo" in name or "base" in name:
        return "turbo" in name
    return False if re.match(r"z[-_ ]?image(?![a-z])", name) else None


FAMILY: Final = Family(
    name="z_image",
    title="Z-Image",
    pipelines=("ZImagePipeline", "ZImageInpaintPipeline"),
    owns=_owns,
    denoiser="transformer",
    denoiser_class="ZImageTransformer2DModel",
    texts=(
        TextPart(
            "text_encoder",
            "tokenizer",
            2560,
            "Qwen3Model",
            "qwen3",
            "text_encoders.qwen3_4b.transformer.",
            QWEN_PREFIXES,
            other_classes=("Qwen3ForCausalLM",),
            kind="chat",
            length=512,
            template=("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
            filled=False,
            states=lambda layers: (layers - 1,),
        ),
    ),
    latents=Latents(channels=16, factor=8, scaling=0.3611, shift=0.1159, colours=flux.COLOURS),
    sizes=Sizes(default=1024, unit=16),
    widths=(),
    published=Published(
        {},
        {"tokenizer": "qwen"},
        "FlowMatchEulerDiscreteScheduler",
        "z_image.json",
        head_width=128,
        flow=lambda facts: "flow_shift_3" if facts.get("is_distilled", True) else "flow_shift_6",
        named_distilled=_named_distilled,
        # Turbo's is 3, that of https://huggingface.co/Tongyi-MAI/Z-Image is 6.
        told_by_schedule=lambda settings: {"is_distilled": False} if settings.get("shift") == _SHIFT_OF_BASE else {},
    ),
    matches=lambda shapes: None,  # noqa: ARG005
    # Turbo's.
    steps=8,
    guidance=1.0,
    # It adds the difference to what the prompt leads to.
    asked=lambda scale: {"guidance_scale": scale - 1},
    variant=_variant,
    refused={"clip_layer": "its text encoder is no CLIP"},
    prompt_syntax=False,
    even_sigmas=True,
    refines_texts=True,
    text_key="cap_feat_dim",
    timestep="1 - sigma",
    # https://github.com/Tongyi-MAI/Z-Image/issues/14: pictures are black where numbers leave float16's range.
    streams={"ZImageTransformer2DModel": ("layers.*", "noise_refiner.*", "context_refiner.*"), **QWEN_STREAMS},
    blocks=blocks_of_transformer(
        (
            "t_embedder", "layers.*.adaLN_modulation", "noise_refiner.*.adaLN_modulation", "all_x_embedder",
            "all_final_layer",
        ),
        QWEN3_VALUES,
        QWEN3_OUTPUTS,
        (*QWEN3_FIRST, "cap_embedder", "context_refiner"),
        QWEN3_TABLES,
        ("noise_refiner", "layers.*.feed_forward.w2"),
        ("layers.*.attention.to_out",),
    ),
    unread=("noise_refiner.0.", "noise_refiner_0_", "context_refiner.0.", "context_refiner_0_"),
    lora_names={"transformer": sd1.TRANSFORMER_NAMES},
)  # fmt: skip

"""FLUX.1, schnell and dev: https://huggingface.co/black-forest-labs/FLUX.1-schnell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from olivelike._untrusted import JsonView
from olivelike.families import sd1
from olivelike.families.family import (
    T5_LAYERS,
    T5_PREFIXES,
    T5_STREAMS,
    Family,
    LatentColours,
    Latents,
    Published,
    Sizes,
    TextPart,
    blocks_of_transformer,
)

_CLIP: Final = TextPart("text_encoder", "tokenizer", 768, cut=True, pooled="pooler_output")
_T5: Final = TextPart(
    "text_encoder_2", "tokenizer_2", 4096, "T5EncoderModel", "t5", "text_encoders.t5xxl.transformer.", T5_PREFIXES,
    kind="t5", length=256,
)  # fmt: skip


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del components
    name = str(index.get("_class_name")).removeprefix("ORT")
    return (name.startswith("Flux") and not name.startswith("Flux2")) or {
        "num_single_layers",
        "pooled_projection_dim",
    } <= denoiser.keys()


def _variant(index: JsonView, denoiser: JsonView) -> Mapping[str, Any]:
    """Return what dev has otherwise than schnell: it is distilled to a guidance, and not to few steps."""
    del index
    if not denoiser.get("guidance_embeds"):
        return {}
    return {"steps": 28, "guidance": 3.5, "texts": (_CLIP, replace(_T5, length=512))}


COLOURS: Final = LatentColours(
    (
        (-0.0346, 0.0244, 0.0681), (0.0034, 0.0210, 0.0687), (0.0275, -0.0668, -0.0433), (-0.0174, 0.0160, 0.0617),
        (0.0859, 0.0721, 0.0329), (0.0004, 0.0383, 0.0115), (0.0405, 0.0861, 0.0915), (-0.0236, -0.0185, -0.0259),
        (-0.0245, 0.0250, 0.1180), (0.1008, 0.0755, -0.0421), (-0.0515, 0.0201, 0.0011), (0.0428, -0.0012, -0.0036),
        (0.0817, 0.0765, 0.0749), (-0.1264, -0.0522, -0.1103), (-0.0280, -0.0881, -0.0499), (-0.1262, -0.0982, -0.0778),
    ),
    (-0.0329, -0.0718, -0.0851),
)  # fmt: skip
"""Of its VAE, which Z-Image has, too."""
FAMILY: Final = Family(
    name="flux",
    title="FLUX.1",
    pipelines=("FluxPipeline", "FluxInpaintPipeline"),
    owns=_owns,
    denoiser="transformer",
    denoiser_class="FluxTransformer2DModel",
    texts=(_CLIP, _T5),
    latents=Latents(channels=16, factor=8, scaling=0.3611, shift=0.1159, colours=COLOURS, packing=2),
    sizes=Sizes(default=1024, unit=16),
    widths=(),
    published=Published(
        {},
        {"tokenizer": "pad_end", "tokenizer_2": "t5"},
        "FlowMatchEulerDiscreteScheduler",
        "flux.json",
        head_width=128,
        flow=lambda denoiser: "flow_dev" if denoiser.get("guidance_embeds") else "flow_schnell",
    ),
    matches=lambda shapes: None,  # noqa: ARG005
    steps=4,
    guidance=0.0,
    takes_negatives=False,
    refused={
        "negative_prompt": "it was distilled so that nothing leads away from a text",
        "clip_layer": "its denoiser takes one vector of CLIP, that of the last layer",
    },
    prompt_syntax=False,
    even_sigmas=True,
    variant=_variant,
    text_key="",
    sample="hidden_states",
    timestep="sigma",
    # https://github.com/huggingface/diffusers/pull/9097 clips them where a tensor is float16, which no trace has.
    streams={"FluxTransformer2DModel": ("transformer_blocks.*", "single_transformer_blocks.*"), **T5_STREAMS},
    blocks=blocks_of_transformer(("time_text_embed", "x_embedder", "norm_out", "proj_out")),
    unread=("double_blocks.0.", "double_blocks_0_", "single_transformer_blocks.0."),
    lora_names={
        "transformer": sd1.TRANSFORMER_NAMES,
        "text_encoder": sd1.LORA_NAMES["text_encoder"],
        "text_encoder_2": ("te2", "text_encoder_2"),
    },
    lora_layers={"text_encoder": sd1.LORA_LAYERS["text_encoder"], "text_encoder_2": T5_LAYERS},
)

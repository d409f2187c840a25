"""FLUX.2-klein of 4B, distilled and base: https://huggingface.co/black-forest-labs/FLUX.2-klein-4B."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from olivelike._untrusted import JsonView
from olivelike.families import sd1
from olivelike.families.family import (
    QWEN_PREFIXES,
    QWEN_STREAMS,
    Family,
    LatentColours,
    Latents,
    Published,
    Sizes,
    TextPart,
    blocks_of_transformer,
    is_distilled,
)

_STEPS: Final = 4
_FEWEST, _MOST = 10, 200
"""Steps between which the shift of a schedule is on a line."""
_LARGE: Final = 4300
"""Tokens of a picture above which the number of steps is of no account."""
QWEN3_VALUES: Final = ("layers.*.self_attn.v_proj", "model.layers.*.self_attn.v_proj")
QWEN3_FIRST: Final = (
    "layers.[0-5].self_attn", "model.layers.[0-5].self_attn", "layers.[0-5].mlp", "model.layers.[0-5].mlp",
)  # fmt: skip
QWEN3_TABLES: Final = ("embed_tokens", "model.embed_tokens")
QWEN3_OUTPUTS: Final = ("layers.*.self_attn.o_proj", "model.layers.*.self_attn.o_proj")


def _quarters(layers: int) -> tuple[int, int, int]:
    """Return the states of a quarter, a half and three quarters of the layers: 9, 18 and 27 of Qwen3's 36."""
    return layers // 4, layers // 2, layers * 3 // 4


def _shift(xp: Any, tokens: Any, steps: Any) -> Any:
    """Return the shift of a schedule: what `compute_empirical_mu` of diffusers' pipelines has for it."""
    at_most, at_fewest = 0.00016927 * tokens + 0.45666666, 8.73809524e-05 * tokens + 1.89833333
    slope = (at_most - at_fewest) / (_MOST - _FEWEST)
    return xp.where(tokens > _LARGE, at_most, at_most + slope * (steps - _MOST))


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del components
    return "Flux2" in str(index.get("_class_name")) or "timestep_guidance_channels" in denoiser


def _variant(index: JsonView, denoiser: JsonView) -> Mapping[str, Any]:
    """Return what distilled networks have otherwise than the base: few steps, and no guidance."""
    del denoiser
    if not is_distilled(index):
        return {}
    refused = {**FAMILY.refused, "negative_prompt": "it was distilled so that nothing leads away from a text"}
    return {"steps": _STEPS, "guidance": 1.0, "takes_negatives": False, "refused": refused}


_COLOURS: Final = LatentColours(
    (
        (0.0058, 0.0113, 0.0073), (0.0495, 0.0443, 0.0836), (-0.0099, 0.0096, 0.0644), (0.2144, 0.3009, 0.3652),
        (0.0166, -0.0039, -0.0054), (0.0157, 0.0103, -0.0160), (-0.0398, 0.0902, -0.0235), (-0.0052, 0.0095, 0.0109),
        (-0.3527, -0.2712, -0.1666), (-0.0301, -0.0356, -0.0180), (-0.0107, 0.0078, 0.0013), (0.0746, 0.0090, -0.0941),
        (0.0156, 0.0169, 0.0070), (-0.0034, -0.0040, -0.0114), (0.0032, 0.0181, 0.0080), (-0.0939, -0.0008, 0.0186),
        (0.0018, 0.0043, 0.0104), (0.0284, 0.0056, -0.0127), (-0.0024, -0.0022, -0.0030), (0.1207, -0.0026, 0.0065),
        (0.0128, 0.0101, 0.0142), (0.0137, -0.0072, -0.0007), (0.0095, 0.0092, -0.0059), (0.0000, -0.0077, -0.0049),
        (-0.0465, -0.0204, -0.0312), (0.0095, 0.0012, -0.0066), (0.0290, -0.0034, 0.0025), (0.0220, 0.0169, -0.0048),
        (-0.0332, -0.0457, -0.0468), (-0.0085, 0.0389, 0.0609), (-0.0076, 0.0003, -0.0043), (-0.0111, -0.0460, -0.0614),
    ),
    (-0.0329, -0.0718, -0.0851),
)  # fmt: skip
"""Of the 32 channels that are in a square of 2 by 2."""
FAMILY: Final = Family(
    name="flux2",
    title="FLUX.2-klein",
    pipelines=("Flux2KleinPipeline", "Flux2KleinInpaintPipeline"),
    owns=_owns,
    denoiser="transformer",
    denoiser_class="Flux2Transformer2DModel",
    texts=(
        TextPart(
            "text_encoder",
            "tokenizer",
            7680,
            "Qwen3ForCausalLM",
            "qwen3",
            "text_encoders.qwen3_4b.transformer.",
            QWEN_PREFIXES,
            kind="chat",
            length=512,
            template=("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
            states=_quarters,
            closes=True,
        ),
    ),
    # The VAE's graph takes and makes squares of 2 by 2 latents of 32 channels, with its own statistics.
    latents=Latents(channels=128, factor=16, scaling=1.0, colours=_COLOURS),
    sizes=Sizes(default=1024, unit=16),
    widths=(),
    published=Published(
        {"is_distilled": True},
        {"tokenizer": "qwen"},
        "FlowMatchEulerDiscreteScheduler",
        "flux2.json",
        head_width=128,
        flow=lambda denoiser: "flow_dev",  # noqa: ARG005
        vae_class="AutoencoderKLFlux2",
        named_distilled=lambda name: False if "base" in name else True if "klein" in name else None,
    ),
    matches=lambda shapes: None,  # noqa: ARG005
    steps=50,
    guidance=4.0,
    most_references=10,
    shows_masked=True,
    refused={"clip_layer": "its denoiser takes states of three layers, which are the ones that it was trained with"},
    prompt_syntax=False,
    even_sigmas=True,
    flow_shift=_shift,
    variant=_variant,
    text_key="joint_attention_dim",
    sample="hidden_states",
    timestep="sigma",
    streams={"Flux2Transformer2DModel": ("transformer_blocks.*", "single_transformer_blocks.*"), **QWEN_STREAMS},
    blocks=blocks_of_transformer(
        ("time_guidance_embed", "*_stream_modulation*", "x_embedder", "norm_out", "proj_out"),
        QWEN3_VALUES,
        QWEN3_OUTPUTS,
        QWEN3_FIRST,
        QWEN3_TABLES,
    ),
    unread=("double_stream_modulation_img.lin.", "double_stream_modulation_img.linear."),
    lora_names={"transformer": sd1.TRANSFORMER_NAMES},
)

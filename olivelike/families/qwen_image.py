"""Qwen-Image: https://huggingface.co/Qwen/Qwen-Image."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from olivelike._untrusted import JsonView
from olivelike.errors import SourceError
from olivelike.families.family import QWEN_STREAMS, Family, LatentColours, Latents, Published, Sizes, TextPart

_DROPPED: Final = 34
"""Tokens of the template before a text, as diffusers' pipeline counts them."""
_LENGTH: Final = 512
"""Tokens behind them that the denoiser is given at most."""
_ASKED: Final = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:"
)


def _owns(index: JsonView, components: Collection[str], denoiser: JsonView) -> bool:
    del components
    name = str(index.get("_class_name"))
    return name.startswith("QwenImage") or denoiser.get("_class_name") == "QwenImageTransformer2DModel"


def _variant(index: JsonView, denoiser: JsonView) -> Mapping[str, Any]:
    """Refuse pipelines whose networks are of these classes, but were trained to work after pictures."""
    del denoiser
    name = str(index.get("_class_name"))
    if name.startswith(("QwenImageEdit", "QwenImageLayered")):
        raise SourceError(
            f"model_index.json: {json.dumps(name)[:64]} is not supported: its networks were trained to work after "
            "pictures; take a pipeline that draws from text, such as QwenImagePipeline"
        )
    return {}


_COLOURS: Final = LatentColours(
    (
        (-0.1299, -0.1692, 0.2932), (0.0671, 0.0406, 0.0442), (0.3568, 0.2548, 0.1747), (0.0372, 0.2344, 0.1420),
        (0.0313, 0.0189, -0.0328), (0.0296, -0.0956, -0.0665), (-0.3477, -0.4059, -0.2925), (0.0166, 0.1902, 0.1975),
        (-0.0412, 0.0267, -0.1364), (-0.1293, 0.0740, 0.1636), (0.0680, 0.3019, 0.1128), (0.0032, 0.0581, 0.0639),
        (-0.1251, 0.0927, 0.1699), (0.0060, -0.0633, 0.0005), (0.3477, 0.2275, 0.2950), (0.1984, 0.0913, 0.1861),
    ),
    (-0.1835, -0.0868, -0.3360),
)  # fmt: skip
"""Of its VAE, which has Wan 2.1's latents."""
FAMILY: Final = Family(
    name="qwen_image",
    title="Qwen-Image",
    pipelines=("QwenImagePipeline", "QwenImageInpaintPipeline"),
    owns=_owns,
    denoiser="transformer",
    denoiser_class="QwenImageTransformer2DModel",
    variant=_variant,
    texts=(
        TextPart(
            "text_encoder",
            "tokenizer",
            3584,
            "Qwen2_5_VLForConditionalGeneration",
            kind="chat",
            length=_DROPPED + _LENGTH,
            template=(
                f"<|im_start|>system\n{_ASKED}<|im_end|>\n<|im_start|>user\n",
                "<|im_end|>\n<|im_start|>assistant\n",
            ),
            filled=False,
            dropped=_DROPPED,
            states=lambda layers: (layers,),
            closes=True,
        ),
    ),
    # The VAE's config has mean and deviation of each channel. The graph of the denoiser packs latents.
    latents=Latents(channels=16, factor=8, scaling=1.0, colours=_COLOURS, packing=2),
    sizes=Sizes(default=1024, unit=16),
    widths=(),
    published=Published({}, {}, "FlowMatchEulerDiscreteScheduler"),
    matches=lambda shapes: None,  # noqa: ARG005
    steps=50,
    guidance=4.0,
    # Without a negative prompt that pipeline has no guidance.
    asked=lambda scale: {"true_cfg_scale": scale, "negative_prompt": ""},
    refused={"clip_layer": "its text encoder is no CLIP"},
    prompt_syntax=False,
    even_sigmas=True,
    text_key="joint_attention_dim",
    timestep="sigma",
    # diffusers clips them where a tensor is float16, which no trace has.
    streams={"QwenImageTransformer2DModel": ("transformer_blocks.*",), **QWEN_STREAMS},
    unread=("transformer_blocks.0.img_mod.", "transformer_blocks_0_img_mod_"),
)

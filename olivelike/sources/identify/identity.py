"""What a weight file is, as a value, and what names and metadata alone say of it.

Marks of other networks are those of diffusers' `CHECKPOINT_KEY_NAMES` (`loaders/single_file_utils.py`). Metadata:
https://github.com/Stability-AI/ModelSpec (`modelspec.*`) and kohya's trainer (`ss_*`). Tensors `v_pred` and `ztsnr`
are what ComfyUI and A1111 look for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from olivelike.model.families import FamilyName, Prediction

_OTHER_NETWORKS: dict[str, tuple[str, ...]] = {
    "FLUX.2": ("single_stream_modulation.lin.weight",),
    "Chroma": ("distilled_guidance_layer.in_proj.",),
    "FLUX": (
        "double_blocks.0.img_attn.",
        "single_transformer_blocks.0.attn.",
        "double_blocks_0_img_attn",
        "single_blocks_0_linear1",
    ),
    "Stable Diffusion 3": (
        "joint_blocks.0.",
        "joint_blocks_0_",
        "text_encoders.clip_g.",
        "transformer_blocks.0.norm1_context.",
    ),
    "AuraFlow": ("double_layers.0.attn.w2q.weight",),
    "PixArt or Sana": ("caption_projection.linear_1.weight", "blocks.0.cross_attn.q_linear.weight"),
    "Wan": ("head.modulation", "decoder.middle.0.residual.0.gamma"),
    "LTX-Video": ("patchify_proj.weight", "last_scale_shift_table"),
    "HunyuanVideo": ("txt_in.individual_token_refiner.blocks.0.",),
    "Hunyuan-DiT": ("mlp_t5.0.weight",),
    "Lumina 2 or Z-Image": ("cap_embedder.0.weight", "cap_embedder.1.weight"),
    "Qwen-Image": ("transformer_blocks.0.img_mlp.", "txt_in.text_norm.weight"),
    "HiDream": ("double_stream_blocks.0.block.",),
    "Stable Cascade": ("clip_txt_mapper.weight", "down_blocks.1.0.channelwise.0.weight"),
    "Kandinsky 2": ("model.diffusion_model.encoder_hid_proj", "encoder_hid_proj.image_embeds.weight"),
    "AnimateDiff (a motion module)": (".motion_modules.0.temporal_transformer.",),
    "Stable Video Diffusion": (".time_stack.", ".temporal_transformer_blocks."),
    "DeepFloyd IF": ("encoder_pooling.", "add_embedding.pool."),
    "T2I-Adapter": ("adapter.body.0.", "body.0.block1.weight", "body.0.in_conv.weight"),
    "IP-Adapter": ("ip_adapter.", "image_proj."),
    "GLIGEN": (".fuser.attn.",),
    "Playground 2.5": ("edm_mean",),
    "LCM (a UNet that takes the guidance as an input)": ("time_embed.cond_proj.", "time_embedding.cond_proj."),
    "T5": ("encoder.block.0.layer.0.SelfAttention.",),
}

_BY_INPUT_CHANNELS = {
    5: "Stable Diffusion 2 with depth (5 input channels)",
    7: "Stable Diffusion x4 upscaler (7 input channels)",
    8: "InstructPix2Pix (8 input channels)",
}


def find_other_network(names: Collection[str]) -> tuple[str, str] | None:
    """Return name and telling tensor of an unsupported network; `None` if `names` are of no known one."""
    # One pass over a text is many times as fast as a search in each name.
    text = "\n".join(names)
    for network, marks in _OTHER_NETWORKS.items():
        mark = next((mark for mark in marks if mark in text), None)
        if mark is not None:
            return network, next(name for name in names if mark in name)
    return None


def other_by_channels(channels: int) -> str | None:
    """Return the name of a UNet that takes this many input channels; `None` for 4 and 9, which are supported."""
    if channels in (4, 9):
        return None
    return _BY_INPUT_CHANNELS.get(channels, f"a UNet with {channels} input channels")


_WORDS: dict[str, Prediction] = {
    "v": "v_prediction",
    "v_pred": "v_prediction",
    "v_prediction": "v_prediction",
    "v-prediction": "v_prediction",
    "epsilon": "epsilon",
    "eps": "epsilon",
}
_METADATA_WORDS = ("modelspec.prediction_type", "modelspec.predict_key")


@dataclass(frozen=True)
class StatedPrediction:
    """What a file states."""

    value: Prediction | None
    zero_snr: bool
    reason: str
    """Empty if it states nothing."""


def read_prediction(names: Collection[str], metadata: Mapping[str, str]) -> StatedPrediction:
    """Return what names and metadata say; a tensor counts more than metadata, which outlives merges."""
    zero_snr = "ztsnr" in names or metadata.get("ss_zero_terminal_snr") == "True"
    for name in ("v_pred", "ztsnr"):
        if name in names:
            return StatedPrediction("v_prediction", zero_snr, f"prediction: it holds a tensor {name}")
    for key in _METADATA_WORDS:
        word = _WORDS.get(str(metadata.get(key, "")).lower())
        if word is not None:
            return StatedPrediction(word, zero_snr, f"prediction: its metadata says {key} = {metadata[key]}")
    architecture = str(metadata.get("modelspec.architecture", ""))
    if architecture.startswith("stable-diffusion-v2-"):
        value: Prediction = "v_prediction" if "-768-v" in architecture else "epsilon"
        reason = f"prediction: its metadata says modelspec.architecture = {architecture}"
        return StatedPrediction(value, zero_snr, reason)
    trained = metadata.get("ss_v_parameterization")
    if trained in ("True", "False"):
        value = "v_prediction" if trained == "True" else "epsilon"
        return StatedPrediction(value, zero_snr, f"prediction: ss_v_parameterization = {trained}")
    return StatedPrediction(None, zero_snr, "")


Kind = Literal["checkpoint", "unet", "vae", "text_encoder", "lora", "embedding", "controlnet", "unknown"]
Naming = Literal["original", "diffusers"]
Converter = Literal["unet", "vae", "clip", "open_clip"]

PLACES: dict[Kind, str] = {
    "checkpoint": "name it as `source:`",
    "vae": "name it as `vae:` beside a `source:`",
    "lora": "name it under `loras:`",
    "embedding": "name it under `embeddings:`",
}
"""Where in a workflow a file of a kind belongs."""
_KINDS: dict[Kind, str] = {
    "checkpoint": "a checkpoint",
    "unet": "a UNet alone",
    "vae": "a VAE",
    "text_encoder": "a text encoder",
    "lora": "a LoRA",
    "embedding": "an embedding (textual inversion)",
    "controlnet": "a ControlNet",
    "unknown": "of no kind that is known",
}


@dataclass(frozen=True)
class Part:
    """A component's tensors within a file of original (LDM) names."""

    folder: str
    """As in a pipeline folder: `unet`, `vae`, `text_encoder`, `text_encoder_2`."""
    converter: Converter
    """Which of diffusers' converters knows its names."""
    prefix: str
    """What the names of its tensors begin with."""


@dataclass(frozen=True)
class Precision:
    """How a file stores its values."""

    dominant: str
    """Dtype of most values, as safetensors names it."""
    elements: Mapping[str, int]
    """Number of values by dtype, of all tensors."""

    @property
    def mixed(self) -> bool:
        """Tell whether more than one floating dtype occurs."""
        return sum(name.startswith(("F", "BF")) for name in self.elements) > 1


_UNREAD = Precision("", {})


@dataclass(frozen=True)
class Identity:
    """What a weight file is, judged by names, shapes and metadata of its tensors, never by the file's name."""

    kind: Kind
    family: FamilyName | None = None
    network: str = ""
    """In words: `Stable Diffusion XL`, `FLUX`, …"""
    supported: bool = True
    """False for a network that is known by name and can't be opened."""
    naming: Naming | None = None
    inpainting: bool = False
    prediction: Prediction | None = None
    """What the file says that its UNet predicts; `None` if it does not say."""
    expected_prediction: Prediction | None = None
    """`prediction`, else what the family's networks predict; `None` without a UNet."""
    zero_snr: bool = False
    """The file says that it was trained with zero terminal signal-to-noise ratio."""
    parts: tuple[Part, ...] = ()
    """The components, for original names."""
    precision: Precision = _UNREAD
    reasons: tuple[str, ...] = ()
    """What each finding rests on, for a person."""

    def part(self, folder: str) -> Part | None:
        """Return the part that goes into a folder of the pipeline; `None` if the file lacks it."""
        return next((part for part in self.parts if part.folder == folder), None)

    @property
    def description(self) -> str:
        """The file in a few words: `a LoRA for Stable Diffusion XL`."""
        words = _KINDS[self.kind] + (" for inpainting" if self.inpainting else "")
        return f"{words} of {self.network}" if self.network else words

    def to_json(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
        return {**asdict(self), "parts": [part.folder for part in self.parts], "reasons": list(self.reasons)}

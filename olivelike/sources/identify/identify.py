"""Telling what a weight file is from its header: kind, family, prediction, names, precision.

Marks of other networks are those of diffusers' `CHECKPOINT_KEY_NAMES` (`loaders/single_file_utils.py`). Metadata:
https://github.com/Stability-AI/ModelSpec (`modelspec.*`) and kohya's trainer (`ss_*`). Tensors `v_pred` and `ztsnr`
are what ComfyUI and A1111 look for.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from olivelike.families import DENOISERS, FAMILIES, TEXT_ENCODERS, family_of_text_width
from olivelike.families.networks import STORED, stored_as
from olivelike.families.networks.unet import COMPONENT
from olivelike.model.block_forms import BLOCK_FORMS
from olivelike.model.few_steps import few_steps_of_metadata
from olivelike.model.guides import GUIDES
from olivelike.sources.adapters.layer_names import families_with, flat_name
from olivelike.sources.adapters.lora_keys import parse_key
from olivelike.sources.identify.guide_files import MARKS, identify_guide, marked_guide
from olivelike.sources.identify.identity import Identity, Kind, Naming, Part, Precision
from olivelike.sources.identify.tiny_vae import NETWORK, TinyHalf, tiny_config, tiny_halves

if TYPE_CHECKING:
    from olivelike.families.network import Network, Stored
    from olivelike.model.components import Prediction
    from olivelike.sources.files.weight_header import RawTensor

_OTHER_NETWORKS: dict[str, tuple[str, ...]] = {
    "FLUX.2": ("single_stream_modulation.lin.weight",),
    "Chroma": ("distilled_guidance_layer.in_proj.",),
    "FLUX": (
        "double_blocks.0.img_attn.",
        "single_transformer_blocks.0.attn.",
        "double_blocks_0_img_attn",
        "single_blocks_0_linear1",
    ),
    **{family.title: family.unread for family in FAMILIES.values() if family.unread},
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
    **{kind.title: MARKS[kind.name] for kind in GUIDES.values() if kind.is_file and kind.name in MARKS},
    "GLIGEN": (".fuser.attn.",),
    "T5": ("encoder.block.0.layer.0.SelfAttention.",),
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


_WORDS: dict[str, Prediction] = {
    "v": "v_prediction",
    "v_pred": "v_prediction",
    "v_prediction": "v_prediction",
    "v-prediction": "v_prediction",
    "epsilon": "epsilon",
    "eps": "epsilon",
    "sample": "sample",
}
_METADATA_WORDS = ("modelspec.prediction_type", "modelspec.predict_key")


@dataclass(frozen=True)
class StatedPrediction:
    """Prediction that a file states."""

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


Shapes = dict[str, tuple[int, ...]]

_LORA_MARKS = (".oft_blocks", ".oft_diag")
"""Marks of adapters that are like LoRAs, and have no names of theirs."""
_EMBEDDING_NAMES = frozenset({"emb_params", "clip_l", "clip_g"})
_EMBEDDING_PREFIX = "string_to_param."
_DENOISERS = tuple((component, stored) for component in DENOISERS for stored in stored_as(component))
_LONE_TEXTS: Final = {"qwen3": "Qwen3", "t5": "T5", "qwen3_llama": "Qwen3", "t5_llama": "T5"}
"""Way in which a text encoder is held that is no CLIP → what it is called."""
_TEXTS = {text: re.compile(text.prefixes) for family in FAMILIES.values() for text in family.texts}
_LEFTOVERS = re.compile(
    r"v_pred|ztsnr|edm_\w+|global_step|(sqrt_|log_one_minus_|posterior_)?\w*(alphas_cumprod|betas?|variance|mean_coef)\w*"
    r"|(.*\.)?logit_scale|logvar|lvlb_weights|scale_factor|model_ema\.(decay|num_updates)|denoiser\..*|(first_stage_model\.)?loss\..*"
)
"""Tensors that no network computes with: marks, and what training leaves."""


def identify(tensors: Mapping[str, RawTensor], metadata: Mapping[str, str] | None = None) -> Identity:
    """Tell what a weight file is.

    Args:
        tensors: its tensors, as `read_header` or `read_pickle_table` returns them.
        metadata: of the safetensors header.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    guide = marked_guide(shapes)
    # Its keys have names that those of other networks have, too.
    is_first = guide is not None and GUIDES[guide].is_file
    found = identify_guide(guide, shapes) if guide and is_first else _identify(shapes, metadata or {})
    return replace(found, precision=_precision(tensors))


def _identify(shapes: Shapes, metadata: Mapping[str, str]) -> Identity:
    other = find_other_network(shapes)
    # A checkpoint may hold tensors of an adapter beside its networks; no adapter holds a whole UNet, but some guides.
    kind = None if _is_checkpoint(shapes) else _adapter_kind(shapes)
    if kind is not None:
        return _adapter(kind, shapes, metadata, other)
    for component, stored in _DENOISERS:
        # Marks of a UNet are those of some other networks, too.
        if other is not None and component == COMPONENT:
            continue
        if (prefix := stored.prefix_among(shapes)) is not None:
            return _original(shapes, metadata, stored, Part(component, stored.name, prefix))
    for way, network in _LONE_TEXTS.items():
        if any(STORED[way].prefix_at(name) == "" for name in shapes):
            in_llama = ", in llama.cpp's names" if way.endswith("_llama") else ""
            reason = f"text_encoder: names of its layers, as {network} has them{in_llama}"
            return Identity("text_encoder", network=network, naming="diffusers", reasons=(reason,))
    if other is not None:
        network, name = other
        return _unsupported("checkpoint", network, f"{name} occurs in {network} only")
    return _lone_network(shapes)


def _is_checkpoint(shapes: Shapes) -> bool:
    """Tell whether a file holds a whole denoiser, and no guide that was stored with it."""
    whole = any(
        (prefix := stored.prefix_among(shapes)) is not None and all(prefix + name in shapes for name in stored.whole)
        for _, stored in _DENOISERS
    )
    return whole and marked_guide(shapes) is None


def _unsupported(kind: Kind, network: str, reason: str = "") -> Identity:
    return Identity(kind, network=network, supported=False, reasons=(reason,) if reason else ())


def _adapter_kind(shapes: Shapes) -> Kind | None:
    """Return the kind of a file that is no network of its own."""
    if any(name in _EMBEDDING_NAMES or name.startswith(_EMBEDDING_PREFIX) for name in shapes):
        return "embedding"
    keys = (parse_key(name) for name in shapes)
    if any(key is not None and key.role != "alpha" for key in keys):
        return "lora"
    if any(mark in name for mark in _LORA_MARKS for name in shapes):
        return "lora"
    # diffusers stores an embedding's vectors under the token alone.
    if len(shapes) == 1 and all(len(shape) in (1, 2) and "." not in name for name, shape in shapes.items()):
        return "embedding"
    return marked_guide(shapes)


def _adapter(kind: Kind, shapes: Shapes, metadata: Mapping[str, str], other: tuple[str, str] | None) -> Identity:
    if kind == "lora" and (flows := _flows(shapes)):
        told = (
            f"family: the names of all its layers are those of {' and '.join(FAMILIES[name].title for name in flows)}"
        )
        reasons = (f"lora: {min(shapes)} and its like", told)
        network = " or ".join(FAMILIES[name].title for name in flows)
        return Identity(kind, family=flows[0] if len(flows) == 1 else None, network=network, reasons=reasons)
    if other is not None:
        return _unsupported(kind, other[0], f"{other[1]} occurs with {other[0]} only")
    if kind in GUIDES:
        return identify_guide(kind, shapes)
    family, reason = _embedding_family(shapes) if kind == "embedding" else _lora_family(shapes)
    found = Identity(
        kind,
        family=family,
        network=FAMILIES[family].title if family else "",
        reasons=(f"{kind}: {min(shapes)} and its like", *([f"family: {reason}"] if reason else [])),
    )
    if kind == "embedding":
        return found
    stated = read_prediction(shapes, metadata)
    # What was distilled changes no text encoder.
    changed = {key.component for key in map(parse_key, shapes) if key is not None}
    few_steps = few_steps_of_metadata(metadata) if changed.isdisjoint(TEXT_ENCODERS) else None
    return replace(
        found, prediction=stated.value, expected_prediction=stated.value, zero_snr=stated.zero_snr, few_steps=few_steps
    )


def _embedding_family(shapes: Shapes) -> tuple[str | None, str]:
    if {"clip_l", "clip_g"} & shapes.keys():
        return "sdxl", "vectors for two text encoders"
    width = next((shape[-1] for shape in shapes.values() if shape), 0)
    return family_of_text_width(width), f"vectors of width {width}"


def _flows(shapes: Shapes) -> list[str]:
    """Return the families of transformers that have all layers of the denoiser that a LoRA changes."""
    keys = (parse_key(name) for name in shapes)
    return families_with({flat_name(key.path) for key in keys if key is not None and key.component in DENOISERS})


def _lora_family(shapes: Shapes) -> tuple[str | None, str]:
    if any(key is not None and key.component == "text_encoder_2" for key in map(parse_key, shapes)):
        return "sdxl", "it changes a second text encoder"
    for name, shape in shapes.items():
        crosses = "attn2" in name and ("to_k" in name or "to_v" in name)
        if crosses and ("down" in name.rpartition("to_")[2] or "lora_A" in name) and len(shape) > 1:
            return family_of_text_width(shape[1]), f"{name} takes text of width {shape[1]}"
    return None, ""


def _original(shapes: Shapes, metadata: Mapping[str, str], stored: Stored, denoiser: Part) -> Identity:
    """Identify a file with a denoiser in original names, alone or with the other networks."""
    cut = len(denoiser.prefix)
    own = {name[cut:]: shape for name, shape in shapes.items() if name.startswith(denoiser.prefix)}
    texts = _text_parts(shapes, denoiser.folder)
    told = stored.tell(own, _family_of_texts(texts))
    family = told.family
    parts = [denoiser, *texts]
    if family is not None and denoiser.folder != COMPONENT:
        parts = [denoiser, *_text_parts(shapes, denoiser.folder, family)]
    vae = _vae_part(shapes)
    if vae is not None and vae.prefix:
        parts.append(vae)
    if family is None:
        return _unsupported("checkpoint", told.network, told.reason)
    title = FAMILIES[family].title
    stated = read_prediction(shapes, metadata)
    inpainting = told.takes_mask
    few_steps = told.few_steps or few_steps_of_metadata(metadata)
    expected = stated.value or ("epsilon" if inpainting or few_steps else FAMILIES[family].prediction)
    if flows := FAMILIES[family].published.flow is not None:
        stated = replace(stated, value=None, reason="prediction: it makes flows")
    kind: Kind = "checkpoint" if len(parts) > 1 else denoiser.folder
    # A transformer's may be its library's, too.
    names = " in original names" if denoiser.folder == COMPONENT else ""
    held = f"{kind}: holds {', '.join(part.folder for part in parts)}{names}"
    return Identity(
        kind,
        family=family,
        network=title,
        naming="original",
        inpainting=inpainting,
        prediction=stated.value,
        expected_prediction=None if flows else expected,
        zero_snr=stated.zero_snr,
        parts=tuple(part for part in parts if part.folder in FAMILIES[family].folders),
        few_steps=few_steps,
        edm="edm_mean" in shapes and "edm_std" in shapes,
        reasons=(
            *([held] if names or len(parts) > 1 else []),
            f"family: {told.reason}",
            *told.notes,
            stated.reason or f"prediction: not in the file, {expected} is usual for {title}",
        ),
    )


def _lone_network(shapes: Shapes) -> Identity:
    """Identify a file with one network, or with none that is known."""
    names = shapes.keys()
    if halves := tiny_halves(shapes):
        return _tiny_vae(shapes, halves)
    vae, texts = _vae_part(shapes), _text_parts(shapes)
    if vae is not None and not texts:
        return _lone_vae(shapes, vae.prefix, "original", (vae,))
    if "decoder.conv_in.weight" in names and any(name.startswith("decoder.up_blocks.") for name in names):
        return _lone_vae(shapes, "", "diffusers", ())
    if "conv_in.weight" in names and any(name.startswith("down_blocks.") for name in names):
        return Identity(COMPONENT, naming="diffusers", reasons=(f"{COMPONENT}: names of its blocks",))
    if texts or any("encoder.layers.0.self_attn." in name for name in names):
        return Identity(
            "text_encoder",
            naming="original" if texts else "diffusers",
            parts=texts,
            reasons=("text_encoder: names of its layers",),
        )
    few = ", ".join(sorted(names)[:3])
    return _unsupported("unknown", "", f"no name is of a known network: {few}")


def _lone_vae(shapes: Shapes, prefix: str, naming: Naming, parts: tuple[Part, ...]) -> Identity:
    shape = shapes[f"{prefix}decoder.conv_in.weight"]
    channels = shape[1] if len(shape) > 1 else 0
    vaes = {one.title: one.published.configs["vae"] for one in FAMILIES.values() if one.published.configs}
    own = [title for title, vae in vaes.items() if vae["latent_channels"] == channels]
    if not own:
        return _unsupported("vae", f"another family ({channels} latent channels)")
    network = "" if channels == _USUAL else f"{' or '.join(own)} ({channels} latent channels)"
    return Identity("vae", network=network, naming=naming, parts=parts, reasons=("vae: names of its decoder",))


_USUAL: Final = 4
"""Latent channels of the VAEs of Stable Diffusion, whose shapes tell no family."""


def _tiny_vae(shapes: Shapes, halves: tuple[TinyHalf, ...]) -> Identity:
    held = " and ".join(half.component for half in halves)
    reason = f"vae: numbered layers of TAESD, its {held}"
    try:
        channels = tiny_config(shapes, halves)["latent_channels"]
    except (ValueError, IndexError) as error:
        return _unsupported("vae", NETWORK, str(error))
    if channels != 4:
        return _unsupported("vae", f"{NETWORK} for another family ({channels} latent channels)", reason)
    return Identity("vae", network=NETWORK, naming="original" if halves[0].original else "diffusers", reasons=(reason,))


def _text_parts(names: Collection[str], denoiser: str = COMPONENT, family: str | None = None) -> tuple[Part, ...]:
    """Return the text encoders of a file, one for a folder, as families with a denoiser have them, or one of them."""
    parts: dict[str, Part] = {}
    families = [one for one in FAMILIES.values() if one.denoiser == denoiser and family in (None, one.name)]
    known_texts = {text: _TEXTS[text] for one in families for text in one.texts}
    ways = {stored.name: stored for component in TEXT_ENCODERS for stored in stored_as(component)}
    found = ((one.prefix_at(name), way) for name in names for way, one in ways.items())
    for prefix, way in sorted((prefix, way) for prefix, way in found if prefix is not None):
        # Each folder has a class, and XL's second encoder is stored as open_clip's.
        fitting = (text.component for text, known in known_texts.items() if text.stored == way and known.match(prefix))
        if folder := next(fitting, None):
            parts.setdefault(folder, Part(folder, way, prefix))
    return tuple(parts[folder] for folder in sorted(parts))


def _family_of_texts(parts: Collection[Part]) -> str | None:
    """Return the family whose text encoders these are."""
    found = {part.folder: part.converter for part in parts if part.folder in TEXT_ENCODERS}
    alike = {
        name: {text.component: text.stored for text in family.texts}
        for name, family in FAMILIES.items()
        if {text.component for text in family.texts} == found.keys()
    }
    return next((name for name, texts in alike.items() if texts == found or len(alike) == 1), None)


def unclaimed(identity: Identity, names: Collection[str]) -> list[str]:
    """Return the tensors of a checkpoint that are of none of its parts, in order of name."""
    claimed = tuple(beginning for part in identity.parts for beginning in part.beginnings)
    return sorted(name for name in names if not name.startswith(claimed) and not _LEFTOVERS.fullmatch(name))


def _vae_part(names: Collection[str]) -> Part | None:
    """Return the VAE of a file in original names."""
    found = ((way, STORED[way].prefix_among(names)) for way in ("vae_flux2", "vae"))
    return next((Part("vae", way, prefix) for way, prefix in found if prefix is not None), None)


def part_among(names: Collection[str], folder: str, network: Network | None) -> Part | None:
    """Return the network of a class in a file that is said to hold it; `None` if it does not."""
    for way in network.stored if network is not None else ():
        prefix = way.prefix_among(names) if way.marks else None
        prefixes = [prefix, *map(way.prefix_at, names)]
        if (first := next((one for one in prefixes if one is not None), None)) is not None:
            return Part(folder, way.name, first)
    return None


def _precision(tensors: Mapping[str, RawTensor]) -> Precision:
    counts: Counter[str] = Counter()
    for tensor in tensors.values():
        counts[tensor.dtype] += math.prod(tensor.shape)
    floating = {name: count for name, count in counts.items() if name.startswith(("F", "BF")) or name in BLOCK_FORMS}
    dominant = max(sorted(floating or counts), key=lambda name: counts[name], default="")
    return Precision(dominant, dict(sorted(counts.items())))

"""Meanings of stored names in a LoRA file, and of files whose names are no LoRA's that can be merged.

A name says network and layer (`layer_names`), role, adapter, and by its role and prefix who spells so:

| spelling | example |
| --- | --- |
| `kohya` | `lora_unet_mid_block_attentions_0_proj_in.lora_down.weight`, LyCORIS's `hada_*` and `lokr_*` |
| `diffusers` | `unet.….attn1.processor.to_q_lora.down.weight`, `unet.….to_q.lora.down.weight` |
| `peft` | `unet.….to_q.lora_A.weight` |
| `peft_native` | `base_model.model.….to_q.lora_A.weight` |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError
from olivelike.families import FAMILIES, TEXT_ENCODERS
from olivelike.sources.adapters.layer_names import flat_name, layer_roots, parse_layer

if TYPE_CHECKING:
    from olivelike.sources.files.weight_header import RawTensor

_KOHYA = ("lora_", "lycoris_")
NATIVE_PREFIX = "base_model.model."
_NAMES: Final = 1 << 13
"""Names whose meaning is kept: LoRAs of a family have the same ones, some 2,000 for SDXL."""

_ADAPTER = r"(?:\.(?P<adapter>(?!weight$|bias$)[^.]+))?"
_PATTERNS = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (rf"(?P<module>.+)\.lora_(?P<role>A|B){_ADAPTER}(?:\.weight)?", "peft"),
        (rf"(?P<module>.+)\.lora_(?P<role>magnitude)_vector{_ADAPTER}(?:\.weight)?", "peft"),
        (rf"(?P<module>.+)\.lora_(?P<role>down|up|mid){_ADAPTER}\.weight", "diffusers"),
        (r"(?P<module>.+\.processor\.\w+_lora[12])\.(?P<role>down|up)\.weight", "diffusers"),
        (r"(?P<module>.+?)(?:_lora|\.lora|\.lora_linear_layer)\.(?P<role>down|up)\.weight", "diffusers"),
        (rf"(?P<module>.+)\.(?P<role>hada_(?:w[12]_[ab]|t[12])|lokr_(?:w[12](?:_[ab])?|t2)){_ADAPTER}", "peft"),
        (r"(?P<module>.+?)(?:_lora|\.lora)?\.(?P<role>alpha|dora_scale)", ""),
    )
)
_ROLES = {"A": "down", "B": "up"}


@dataclass(frozen=True, slots=True)
class LoraKey:
    """One stored name, taken apart."""

    stored: str
    module: str
    role: str
    spelling: str
    """Empty where the name alone does not tell: `alpha` and `dora_scale` of a dotted name."""
    component: str | None
    """`None` if the name belongs to no network that is known."""
    path: str
    bare: bool
    """Whether no prefix says which network it is in."""
    adapter: str | None


@lru_cache(maxsize=_NAMES)
def parse_key(stored: str) -> LoraKey | None:
    """Take a stored name apart; `None` if it is no part of a LoRA."""
    for pattern, spelling in _PATTERNS:
        found = pattern.fullmatch(stored)
        if found is None:
            continue
        module, role = found["module"], _ROLES.get(found["role"], found["role"])
        layer = parse_layer(module)
        if module.startswith(_KOHYA):
            spelled = "kohya"
        elif module.startswith(NATIVE_PREFIX):
            spelled = "peft_native"
        else:
            spelled = spelling
        adapter = found.groupdict().get("adapter")
        return LoraKey(stored, module, role, spelled, layer.component, layer.path, layer.bare, adapter)
    return None


_NETWORKS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(.*_)?t5xxl_", "T5 under a name that does not say which of a pipeline's encoders it is"),
        (r"(.*_)?prior_", "Stable Cascade"),
        (r"(.*_)?controlnet_", "a ControlNet"),
        (r"(.*_)?motion_modules?_", "AnimateDiff's motion modules"),
    )
)
"""Other networks by the whole name."""
_OTHER_LAYERS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(down|up)_blocks_\d+_\d+_", "Stable Cascade"),
        (r"(blocks|layers)_\d", "a diffusion transformer (Wan, Lumina or one like them)"),
        (r"input_hint_block_|zero_convs_", "a ControlNet"),
    )
)
"""Other networks by the name behind the prefix, unless a family here has such layers."""
_LANGUAGE_MODEL = re.compile(r"(model_)?(language_model_)?layers_\d+_(self_attn|mlp)_")
_TRANSFORMER = re.compile(r"((base_model_model|lora)_)*transformer_")
_KNOWN = ", ".join(family.title for family in FAMILIES.values())

_FORMATS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r".*\.(diff|diff_b)", "whole differences (LyCORIS Full)"),
        (r".*\.(w_norm|b_norm)", "trained normalisation layers (LyCORIS norm)"),
        (r".*[._]?(oft_\w+|boft_\w+)(\..*)?", "OFT"),
        (r".*\.(a1|a2|b1|b2|bm1|bm2)\.weight", "GLoRA"),
        (r".*\.(on_input|ia3_l)(\..*)?", "IA³"),
        (r".*\.vera_lambda_[bd](\..*)?", "VeRA"),
        (r".*\.lora_[EP]|.*\.ranknum", "AdaLoRA"),
        (r".*\.lora_embedding_[AB](\..*)?", "a LoRA of an embedding table"),
        (r".*\.(hada|lokr)_\w+", "a LyCORIS tensor that is not known"),
        (r".*\.(set_weight|reshape_weight)", "replaced weights"),
        (r".*\.(query|key)_norm\.scale|.*norm_(added_)?[qk]\.weight", "trained norms, as FLUX.1's control LoRAs do"),
        (r"bundle_emb\..*", "a textual-inversion embedding bundled with the LoRA"),
        (r".*\.bias", "a trained bias"),
    )
)  # fmt: skip

_CHECKPOINT = ("model.diffusion_model.", "cond_stage_model.", "conditioner.embedders.")
_VAE = ("first_stage_model.", "encoder.down.", "decoder.up.", "encoder.down_blocks.", "decoder.up_blocks.",
        "quant_conv.", "post_quant_conv.")  # fmt: skip
_UNET = ("down_blocks.", "up_blocks.", "mid_block.", "input_blocks.", "output_blocks.")
_TEXT = ("text_model.", "encoder.layers.", "transformer.resblocks.")
_EMBEDDING = ("emb_params", "string_to_param", "string_to_token", "clip_l", "clip_g")

_LISTED = 5


def refuse_other_networks(path: Path, names: Iterable[str]) -> None:
    """Refuse a LoRA for a network of no family here.

    Raises:
        SourceError: that names network and key.
    """
    for name in names:
        network = _other_network(name)
        if network is not None:
            raise SourceError(
                f"{path}: this LoRA is for {network} (it has {name}); use one for the family of the source, of {_KNOWN}"
            )


@lru_cache(maxsize=_NAMES)
def _other_network(name: str) -> str | None:
    """Return the title of the network that a name is of; `None` if it can be one of a family here."""
    flat, layer = flat_name(name), parse_layer(name)
    path, roots = flat_name(layer.path), layer_roots(layer.component)
    if layer.component in TEXT_ENCODERS and _LANGUAGE_MODEL.match(path):
        return "a language model that reads texts, such as FLUX.2's Qwen3, which LoRAs do not change here"
    others = [row for row in _OTHER_LAYERS if not any(row[0].match(f"{root}_0_") for root in roots)]
    for patterns, text in ((_NETWORKS, flat), (others, path)):
        found = next((network for pattern, network in patterns if pattern.match(text)), None)
        if found is not None:
            return found
    if layer.component is None and _TRANSFORMER.match(flat):
        return "a diffusion transformer of no family here"
    return None


def refuse_unknown(path: Path, names: Iterable[str]) -> None:
    """Refuse keys of a LoRA file that have no known meaning.

    Raises `SourceError` if there is one, naming keys and format.
    """
    unknown = sorted(names)
    if not unknown:
        return
    listed = ", ".join(unknown[:_LISTED]) + (f", and {rest} more" if (rest := len(unknown) - _LISTED) > 0 else "")
    name = _format_of(unknown[0])
    what = f"it holds {name}, which can't be merged" if name else "its format is not known"
    raise SourceError(
        f"{path}: {what}: {listed}; leaving keys out would change the result in silence, so use a file in a "
        "LoRA, LoCon, LoHa, LoKr or DoRA format"
    )


def refuse_other_files(path: Path, tensors: Mapping[str, RawTensor]) -> None:
    """Refuse a file without a single LoRA key, and say what it is.

    Raises:
        SourceError: always.
    """
    names = list(tensors)
    if not names:
        raise SourceError(f"{path}: it holds no tensors, so it is no LoRA; get the file again")
    refuse_other_networks(path, names)
    for prefixes, what, where in (
        (_CHECKPOINT, "a whole checkpoint", "give it to `olivelike convert`, or name it under `source:` of a workflow"),
        (_EMBEDDING, "a textual-inversion embedding", "name it under `embeddings:`"),
        (_VAE, "a VAE", "name it under `vae:`"),
        (_UNET, "the weights of a UNet", "name the pipeline that it belongs to under `source:`"),
        (_TEXT, "the weights of a text encoder", "name the pipeline that it belongs to under `source:`"),
    ):
        hit = next((name for name in names if name.startswith(prefixes)), None)
        if hit is not None and _format_of(hit) in ("", "a trained bias"):
            raise SourceError(f"{path}: this is {what}, no LoRA (it has {hit}); {where}")
    if len(names) == 1 and len(tensors[names[0]].shape) in (1, 2) and "." not in names[0]:
        raise SourceError(
            f"{path}: this is a textual-inversion embedding, no LoRA (its one tensor is {names[0]}); "
            "name it under `embeddings:`"
        )
    refuse_unknown(path, names)


def _format_of(name: str) -> str:
    return next((what for pattern, what in _FORMATS if pattern.fullmatch(name)), "")

"""A LoRA file as a value: its modules, and for which family of networks their names and shapes say it was made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.model.families import FAMILIES, FamilyName, family_of_text_width
from olivelike.sources.adapters.lora_shapes import Difference

if TYPE_CHECKING:
    from olivelike.sources.files.safetensors_header import RawTensor

_SGM = ("input_blocks_", "middle_block_", "output_blocks_")
_SECOND_WIDTH = FAMILIES["sdxl"].text_encoders["text_encoder_2"]
_PROMPT_READERS = ("attn2_to_k", "attn2_to_v", "attn2.to_k", "attn2.to_v",
                   "attn2.processor.to_k", "attn2.processor.to_v")  # fmt: skip
_TEXT_INPUTS = ("_q_proj", ".q_proj", "_k_proj", ".k_proj", "_v_proj", ".v_proj", "self_attn.to_q",
                "self_attn.to_k", "self_attn.to_v", "_fc1", ".fc1")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoraModule(Difference):
    """The factors that change one layer of one network."""

    name: str
    """What the stored names begin with, such as `lora_unet_mid_block_attentions_0_proj_in`."""
    component: str
    """`unet`, `text_encoder` or `text_encoder_2`."""
    spelling: str
    """Which convention spells the name: `kohya`, `diffusers_old`, `diffusers_mid`, `peft`, `peft_native`."""
    path: str
    """The name without what says which network it is in; a kohya name keeps its underscores."""
    roles: Mapping[str, str]
    """Role → stored name. Roles: `down`, `up`, `mid`, `alpha`, `dora_scale`, `magnitude`, `hada_…`, `lokr_…`."""
    alpha: float | None
    """`None` where neither the file nor its config has one."""
    rslora: bool
    """Whether alpha is divided by the root of the rank; https://arxiv.org/abs/2312.03732."""

    @property
    def scale(self) -> float:
        """The factor of the difference: alpha / rank; 1 without alpha, and for a LoKr without a rank."""
        if self.rank is None or self.alpha is None:
            return 1.0
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def decomposed(self) -> bool:
        """Whether the weight's magnitude is set apart (DoRA)."""
        return "dora_scale" in self.roles or "magnitude" in self.roles


@dataclass(frozen=True)
class LoraFile:
    """An opened LoRA, checked as far as its header goes."""

    path: Path
    """The weight file."""
    config_path: Path | None
    """`adapter_config.json`, if alpha and rank come from it."""
    format: str
    """How its names are spelled: `diffusers`, `peft`, `peft_native`, `kohya`; joined by `+` if mixed."""
    kinds: frozenset[str]
    """What occurs: `lora`, `locon` (factors of convolutions), `loha`, `lokr`, `dora`."""
    modules: Mapping[str, LoraModule]
    """By name, in order of name."""
    tensors: Mapping[str, RawTensor]
    """Stored name → tensor, for the names that `modules` refer to."""
    components: frozenset[str]
    """The networks that it changes: `unet`, `text_encoder`, `text_encoder_2`."""
    family: FamilyName | None
    """`sd1`, `sd2`, `sdxl`, `sdxl_refiner`; `None` if names and shapes don't tell."""
    cross_attention_dim: int | None
    """Width of the prompt's vectors in the UNet that it was made for, if it changes a layer that reads them."""
    ranks: frozenset[int]
    metadata: Mapping[str, str]
    """The header's own metadata."""


@dataclass(frozen=True)
class WeightedLora:
    """A LoRA and how much of it."""

    file: LoraFile
    weight: float
    """1 is what was trained; 0 leaves the base as it is; negative weights are allowed."""


def cross_attention_dim_of(modules: Iterable[LoraModule]) -> int | None:
    """Return the width of the prompt's vectors that the UNet's modules read; `None` if none reads them."""
    readers = [m for m in modules if m.component == "unet" and m.path.endswith(_PROMPT_READERS)]
    return readers[0].columns if readers else None


def family_of(modules: Iterable[LoraModule]) -> FamilyName | None:
    """Return `sd1`, `sd2`, `sdxl` or `sdxl_refiner`; `None` if names and shapes don't tell."""
    known = list(modules)
    width = cross_attention_dim_of(known)
    if width is not None:
        return family_of_text_width(width)
    names = [module.name for module in known]
    if any(name.startswith("lora_te1_") for name in names) or any(m.component == "text_encoder_2" for m in known):
        return "sdxl"
    # Trainers name the UNet's blocks so for XL alone; for 1.x and 2.x they use diffusers' names.
    if any(m.component == "unet" and m.path.startswith(_SGM) for m in known):
        return "sdxl"
    texts = {m.columns for m in known if m.component == "text_encoder" and m.path.endswith(_TEXT_INPUTS)}
    if FAMILIES["sd2"].text_width in texts:
        return "sd2"
    # 768 is the width of 1.x's encoder and of XL's first one; only this prefix tells them apart.
    if FAMILIES["sd1"].text_width in texts and any(name.startswith("lora_te_") for name in names):
        return "sd1"
    return None


def is_second_encoder(modules: Iterable[LoraModule], base_class: str | None) -> bool:
    """Tell whether modules that name no network are of XL's second text encoder: a projection, or width 1280."""
    if base_class is not None and base_class.endswith("TextModelWithProjection"):
        return True
    return any(
        m.path.startswith("text_projection") or (m.path.endswith(_TEXT_INPUTS) and m.columns == _SECOND_WIDTH)
        for m in modules
    )


def check_family(lora: LoraFile, cross_attention_dim: int, where: str) -> None:
    """Check from headers alone that a LoRA was made for a UNet of this width.

    Raises `SourceError` if it was made for another family.

    Args:
        cross_attention_dim: width of the prompt's vectors in the UNet's config: 768, 1024, 2048, …"""
    made_for = lora.cross_attention_dim
    if made_for is None and lora.family is not None and family_of_text_width(cross_attention_dim):
        made_for = FAMILIES[lora.family].text_width
    if made_for is None or made_for == cross_attention_dim:
        return
    raise SourceError(
        f"{lora.path}: this LoRA is for {_title(made_for)}, and {where} is {_title(cross_attention_dim)}; "
        "use a LoRA and a source of one family"
    )


def _title(width: int) -> str:
    family = family_of_text_width(width)
    prompt = f"prompt vectors of width {width}"
    return f"{FAMILIES[family].title} ({prompt})" if family else f"a network with {prompt}"

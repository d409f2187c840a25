"""A LoRA file as a value: its modules, and what their names and shapes say about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.model.families import FamilyName
    from olivelike.sources import RawTensor


@dataclass(frozen=True)
class LoraModule:
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
    kind: str
    """Law of the difference: `lora`, `loha` or `lokr`."""
    rank: int | None
    """`None` for a LoKr whose two factors are stored whole."""
    alpha: float | None
    """`None` where neither the file nor its config has one."""
    rslora: bool
    """Whether alpha is divided by the root of the rank; https://arxiv.org/abs/2312.03732."""
    rows: int
    """First dimension of the weight that it fits."""
    columns: int
    """Product of the other dimensions."""
    kernel: tuple[int, ...] | None
    """Kernel of the convolution that it fits, (1, 1) also fits a linear layer; `None` if not stated."""

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

"""A LoRA file as a value: its modules, and for which family of networks their names and shapes say it was made.

Whether the factors of one module are complete and fit each other, and what weight they fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.families import DENOISERS, FAMILIES, family_of_text_width
from olivelike.model.few_steps import FewSteps, few_steps_of_metadata, few_steps_of_path
from olivelike.sources.adapters.layer_names import families_with, flat_name

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.sources.files.weight_header import RawTensor

_NAMED_FAMILY = re.compile(r"sd|xl", re.IGNORECASE)
_EXTRAS = frozenset({"alpha", "dora_scale", "magnitude"})
_LORA = frozenset({"down", "up", "mid"})

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """The form of a module's difference, from the shapes of its factors."""

    kind: str
    """Its law: `lora`, `loha` or `lokr`."""
    rank: int | None
    """`None` for a LoKr whose two factors are stored whole."""
    rows: int
    """First dimension of the weight that it fits."""
    columns: int
    """Product of the other dimensions."""
    kernel: Shape | None
    """Kernel of the convolution that it fits, (1, 1) also fits a linear layer; `None` if not stated."""


_ORIGINAL = ("input_blocks_", "middle_block_", "output_blocks_")
_SECOND_WIDTH = FAMILIES["sdxl"].texts[1].width
_PROMPT_READERS = ("attn2_to_k", "attn2_to_v", "attn2_processor_to_k", "attn2_processor_to_v")
_TEXT_INPUTS = ("_q_proj", "_k_proj", "_v_proj", "self_attn_to_q", "self_attn_to_k", "self_attn_to_v", "_fc1",
                "_c_fc")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoraModule(Difference):
    """The factors that change one layer of one network."""

    name: str
    """Beginning of the stored names, such as `lora_unet_mid_block_attentions_0_proj_in`."""
    component: str
    """`unet`, `text_encoder` or `text_encoder_2`."""
    spelling: str
    """Convention that spells the name: `kohya`, `diffusers`, `peft`, `peft_native`."""
    path: str
    """The name without what says which network it is in; a kohya name keeps its underscores."""
    bare: bool
    """Whether no prefix says which network it is in."""
    roles: Mapping[str, str]
    """Role → stored name. Roles: `down`, `up`, `mid`, `alpha`, `dora_scale`, `magnitude`, `hada_…`, `lokr_…`."""
    alpha: float | None
    """`None` where neither the file nor its config has one."""
    rslora: bool
    """Whether alpha is divided by the root of the rank; https://arxiv.org/abs/2312.03732."""

    @property
    def layer(self) -> str:
        """The path with its dots as underscores, in which all spellings are compared."""
        return flat_name(self.path)

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
    """Kinds that occur: `lora`, `locon` (factors of convolutions), `loha`, `lokr`, `dora`."""
    modules: Mapping[str, LoraModule]
    """By name, in order of name."""
    tensors: Mapping[str, RawTensor]
    """Stored name → tensor, for the names that `modules` refer to."""
    components: frozenset[str]
    """The networks that it changes: `unet`, `text_encoder`, `text_encoder_2`."""
    family: str | None
    """`sd1`, `sdxl`, `flux2` and the like; `None` if names and shapes don't tell."""
    cross_attention_dim: int | None
    """Width of the prompt's vectors in the UNet that it was made for, if it changes a layer that reads them."""
    ranks: frozenset[int]
    metadata: Mapping[str, str]
    """The header's own metadata."""

    def check_scales(self, components: Collection[str]) -> None:
        """Check the alphas of the networks that it is to change.

        Raises `SourceError` if one is not finite, or all are 0, so that it would change nothing.
        """
        scales = {module.scale for module in self.modules.values() if module.component in components}
        if scales == {0.0}:
            raise SourceError(
                f"{self.path}: all its alphas are 0, so that it changes nothing; get another version, or leave it out"
            )
        for module in self.modules.values():
            if module.component in components and not math.isfinite(module.scale):
                raise SourceError(
                    f"{self.path}: {module.roles['alpha']} is {module.alpha}; get the file again, or another version "
                    "of it"
                )

    @property
    def few_steps(self) -> FewSteps | None:
        """Kind of few-step model that it makes of a denoiser, by metadata, or else by name; those change it alone."""
        alone = len(self.components) == 1 and not self.components.isdisjoint(DENOISERS)
        # What is known of few steps is of schedules of noise: flows have their own, at any number of steps.
        alone = alone and not flows_of(self.modules.values())
        return (few_steps_of_metadata(self.metadata) or self._named) if alone else None

    @property
    def _named(self) -> FewSteps | None:
        found = few_steps_of_path(self.path)
        if found is None or found.steps or found.kind not in ("lightning", "turbo", "hyper"):
            return found
        # Words of the language are in names of styles, too.
        return found if _NAMED_FAMILY.search(found.reason) else None


@dataclass(frozen=True)
class WeightedLora:
    """A LoRA and how much of it."""

    file: LoraFile
    weight: float
    """1 is what was trained; 0 leaves the base as it is; negative weights are allowed."""


def cross_attention_dim_of(modules: Iterable[LoraModule]) -> int | None:
    """Return the width of the prompt's vectors that the UNet's modules read; `None` if none reads them."""
    known = list(modules)
    readers = [m for m in known if m.component in DENOISERS and m.layer.endswith(_PROMPT_READERS)]
    return readers[0].columns if readers and not flows_of(known) else None


def flows_of(modules: Iterable[LoraModule]) -> list[str]:
    """Return the families of transformers that have all the denoiser's layers; none if it changes none of these."""
    return families_with({module.layer for module in modules if module.component in DENOISERS})


def family_of(modules: Iterable[LoraModule]) -> str | None:
    """Return the name of a family; `None` if names and shapes don't tell."""
    known = list(modules)
    if flows := flows_of(known):
        return flows[0] if len(flows) == 1 else None
    width = cross_attention_dim_of(known)
    if width is not None:
        return family_of_text_width(width)
    names = [module.name for module in known]
    if any(name.startswith("lora_te1_") for name in names) or any(m.component == "text_encoder_2" for m in known):
        return "sdxl"
    # With kohya's prefix, trainers name the UNet's blocks so for XL alone; for 1.x and 2.x they use diffusers' names.
    if any(m.component in DENOISERS and m.spelling == "kohya" and m.layer.startswith(_ORIGINAL) for m in known):
        return "sdxl"
    texts = {m.columns for m in known if m.component == "text_encoder" and m.layer.endswith(_TEXT_INPUTS)}
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
        m.layer.startswith("text_projection") or (m.layer.endswith(_TEXT_INPUTS) and m.columns == _SECOND_WIDTH)
        for m in modules
    )


def check_denoiser(lora: LoraFile, family: Family, where: str) -> None:
    """Check from names alone that a LoRA was made for denoisers of a pipeline's kind, and of its family, if they tell.

    Raises `SourceError` otherwise.
    """
    fitting = denoisers_of(lora)
    if not fitting or family.name in fitting:
        return
    told = flows_of(lora.modules.values()) or list(filter(None, [lora.family]))
    # All UNets are of one make, and what has none is of many.
    other = "another kind of transformer" if DENOISERS[0] not in lora.components else "Stable Diffusion"
    made_for = " or ".join(FAMILIES[name].title for name in told) or other
    raise SourceError(
        f"{lora.path}: this LoRA is for {made_for}, and {where} is {family.title}; a LoRA fits its own family alone"
    )


def denoisers_of(lora: LoraFile) -> frozenset[str]:
    """Return the families whose denoisers a LoRA's names fit; none if it changes no denoiser."""
    denoiser = next((name for name in DENOISERS if name in lora.components), None)
    flows = flows_of(lora.modules.values())
    return frozenset(
        name for name, family in FAMILIES.items() if family.denoiser == denoiser and (not flows or name in flows)
    )


def check_family(lora: LoraFile, cross_attention_dim: int, where: str) -> None:
    """Check from headers alone that a LoRA was made for a UNet of this width.

    Raises `SourceError` if it was made for another family. `cross_attention_dim` is the width of the prompt's
    vectors in the UNet's config: 768, 1024, 2048, …
    """
    made_for = lora.cross_attention_dim
    if made_for is None and lora.family is not None and family_of_text_width(cross_attention_dim):
        made_for = FAMILIES[lora.family].text_width
    if made_for is None or made_for == cross_attention_dim:
        return
    raise SourceError(
        f"{lora.path}: this LoRA is for {_title(made_for)}, and {where} is {_title(cross_attention_dim)}; "
        "a LoRA fits its own family alone"
    )


def _title(width: int) -> str:
    family = family_of_text_width(width)
    prompt = f"prompt vectors of width {width}"
    return f"{FAMILIES[family].title} ({prompt})" if family else f"a network with {prompt}"


def difference_of(path: Path, module: str, shapes: Mapping[str, Shape]) -> Difference:
    """Return what the factors of a module make.

    Raises `SourceError` if a factor is missing, or two do not fit each other. `shapes` are by role.
    """
    check = _Check(path, module, shapes)
    factors = shapes.keys() - _EXTRAS
    kinds = {_kind(role) for role in factors}
    if len(kinds) > 1:
        raise check.broken(f"it mixes {' and '.join(sorted(kinds))} ({', '.join(sorted(factors))})")
    if "dora_scale" in shapes and "magnitude" in shapes:
        raise check.broken("it has both dora_scale and lora_magnitude_vector")
    match kinds.pop() if kinds else None:
        case "lora":
            return _lora(check)
        case "loha":
            return _loha(check)
        case "lokr":
            return _lokr(check)
    raise check.broken(f"it has {', '.join(sorted(shapes))}, and no factors of a difference")


@dataclass(frozen=True)
class _Check:
    path: Path
    module: str
    shapes: Mapping[str, Shape]

    def broken(self, why: str) -> SourceError:
        return SourceError(
            f"{self.path}: module {self.module} is broken: {why}; get the file again, or another version of it"
        )

    def require(self, *roles: str) -> tuple[Shape, ...]:
        """Return the shapes of roles that must be there."""
        missing = [role for role in roles if role not in self.shapes]
        if missing:
            there = ", ".join(sorted(self.shapes))
            raise self.broken(f"it has {there} without {', '.join(missing)}")
        return tuple(self.shapes[role] for role in roles)

    def dims(self, role: str, *counts: int) -> Shape:
        """Return the shape of a role that must have one of some numbers of dimensions, none of them 0."""
        (shape,) = self.require(role)
        if len(shape) not in counts or 0 in shape:
            expected = " or ".join(map(str, counts))
            raise self.broken(f"{role} has shape {list(shape)} where {expected} dimensions are due")
        return shape

    def square(self, role: str, core: Shape) -> None:
        """Check that the core of a Tucker decomposition has one rank: of two, small factors make a huge one."""
        if core[0] != core[1]:
            raise self.broken(f"{role} has shape {list(core)}, of two ranks in place of one")

    def equal(self, left: str, left_size: int, right: str, right_size: int) -> None:
        """Check that two factors have the same inner dimension."""
        if left_size != right_size:
            shapes = f"{list(self.shapes[left])} and {list(self.shapes[right])}"
            raise self.broken(
                f"{left} and {right} do not fit each other, with inner dimensions {left_size} and "
                f"{right_size} (shapes {shapes})"
            )


def _lora(check: _Check) -> Difference:
    down, up = check.require("down", "up")
    check.dims("down", 2, 4)
    check.dims("up", 2, 4)
    if math.prod(up[2:]) != 1:
        raise check.broken(f"up has a kernel of its own, shape {list(up)}")
    rank, kernel = down[0], down[2:] or None
    if "mid" in check.shapes:
        mid = check.dims("mid", 4)
        if math.prod(down[2:]) != 1:
            raise check.broken(f"down has a kernel beside that of mid, shape {list(down)}")
        check.square("mid", mid)
        check.equal("mid", mid[1], "down", rank)
        check.equal("mid", mid[0], "up", up[1])
        return Difference("lora", rank, up[0], down[1] * math.prod(mid[2:]), mid[2:])
    check.equal("down", rank, "up", up[1])
    return Difference("lora", rank, up[0], math.prod(down[1:]), kernel)


def _loha(check: _Check) -> Difference:
    check.require("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    first, second = ((check.dims(f"hada_{w}_a", 2), check.dims(f"hada_{w}_b", 2), f"hada_{w}") for w in ("w1", "w2"))
    if "hada_t1" in check.shapes or "hada_t2" in check.shapes:
        cores = [check.dims(role, 4) for role in ("hada_t1", "hada_t2")]
        for (a, b, name), core, role in zip((first, second), cores, ("hada_t1", "hada_t2"), strict=True):
            check.square(role, core)
            check.equal(role, core[0], f"{name}_a", a[0])
            check.equal(role, core[1], f"{name}_b", b[0])
        check.equal("hada_w1_a", first[0][1], "hada_w2_a", second[0][1])
        check.equal("hada_w1_b", first[1][1], "hada_w2_b", second[1][1])
        if cores[0][2:] != cores[1][2:]:
            raise check.broken("hada_t1 and hada_t2 have different kernels")
        kernel = cores[0][2:]
        return Difference("loha", first[1][0], first[0][1], first[1][1] * math.prod(kernel), kernel)
    for a, b, name in (first, second):
        check.equal(f"{name}_a", a[1], f"{name}_b", b[0])
    check.equal("hada_w1_a", first[0][0], "hada_w2_a", second[0][0])
    check.equal("hada_w1_b", first[1][1], "hada_w2_b", second[1][1])
    return Difference("loha", first[1][0], first[0][0], first[1][1], None)


def _lokr(check: _Check) -> Difference:
    left, right = _factor(check, "lokr_w1"), _factor(check, "lokr_w2")
    # As LyCORIS and A1111 have it: the rank of the second factor counts, if it has one.
    rank = right.rank if right.rank is not None else left.rank
    return Difference("lokr", rank, left.rows * right.rows, left.columns * right.columns, right.kernel)


def _factor(check: _Check, name: str) -> Difference:
    """Return the form of a Kronecker factor: whole, a product of two, or with a core between them."""
    core_role = "lokr_t2"
    parts = [role for role in (f"{name}_a", f"{name}_b") if role in check.shapes]
    has_core = name == "lokr_w2" and core_role in check.shapes
    if name in check.shapes:
        if parts or has_core:
            raise check.broken(f"it has {name} both whole and in parts")
        whole = check.dims(name, 2, *((4,) if name == "lokr_w2" else ()))
        return Difference("lokr", None, whole[0], math.prod(whole[1:]), whole[2:] or None)
    if not parts:
        check.require(name)
    check.require(f"{name}_a", f"{name}_b")
    a, b = check.dims(f"{name}_a", 2), check.dims(f"{name}_b", 2)
    if has_core:
        core = check.dims(core_role, 4)
        check.square(core_role, core)
        check.equal(core_role, core[0], f"{name}_a", a[0])
        check.equal(core_role, core[1], f"{name}_b", b[0])
        return Difference("lokr", b[0], a[1], b[1] * math.prod(core[2:]), core[2:])
    check.equal(f"{name}_a", a[1], f"{name}_b", b[0])
    return Difference("lokr", b[0], a[0], b[1], None)


def _kind(role: str) -> str:
    return "lora" if role in _LORA else "loha" if role.startswith("hada_") else "lokr"

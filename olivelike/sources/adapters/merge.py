"""Merging LoRAs into one network, tensor by tensor; it runs in a worker.

The law is W + Σ weightᵢ · changeᵢ(W) in float32. Each change is measured against the base W, so neither order nor
company of the files matters; the sum is taken in an order that content decides.

For DoRA the weight scales the whole change, so that 0 is the base and 1 what was trained. diffusers scales the low-rank
difference before normalising: at 1 both agree, at 0 its result still has the trained magnitudes.

A plain LoRA's product is not computed here: whoever reads the merged tensor adds it, block by block, and it is never
stored. Tucker decompositions and DoRA are computed here, by NumPy: to import torch and PEFT takes longer than to merge.
For LoHa and LoKr, PEFT's own layers compute the difference, on a base layer of the meta device, which has shape and no
memory.

Which layer a module of a LoRA file changes, under names other than the network's own, is diffusers' business: a
stand-in pair of one-element factors goes through its converters for each module, one at a time. Its converters know
plain LoRA alone, drop or refuse what else a file holds, and judge all keys by the first or by a sample; one stand-in
pair at a time is free of that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from olivelike.errors import SourceError, UsageError
from olivelike.model.tensor_file import Array, Product, add_products, read_tensor
from olivelike.model.weights import LowRank, Tensor
from olivelike.sources.names.loading_result import quiet

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.model.architecture import Config
    from olivelike.sources.adapters.lora_file import LoraFile, LoraModule, WeightedLora

Shape = tuple[int, ...]
_ADAPTER = "merged"


@dataclass(frozen=True)
class _Part:
    """One module of one file, on the parameter that it changes."""

    lora: WeightedLora
    module: LoraModule

    def stored(self, role: str, file: str = "") -> Tensor:
        """Return where a factor lies, in the file of a digest."""
        raw = self.lora.file.tensors[self.module.roles[role]]
        return Tensor(raw.dtype, raw.shape, file, raw.offset)


@dataclass(frozen=True)
class Change:
    """What LoRAs of a weight other than 0 do to one parameter."""

    component: str
    parameter: str
    parts: tuple[_Part, ...]
    """In an order that content decides."""

    @property
    def is_low_rank(self) -> bool:
        """Tell whether it is a sum of products of two stored factors."""
        return all(
            part.module.kind == "lora" and not part.module.decomposed and "mid" not in part.module.roles
            for part in self.parts
        )

    def low_rank(self, digests: Mapping[Path, str]) -> tuple[LowRank, ...]:
        """Return the products, as entries of a table of weights; `digests` are of the LoRAs' files."""
        files = [(part, digests[part.lora.file.path]) for part in self.parts]
        return tuple(
            LowRank(part.stored("up", file), part.stored("down", file), part.module.scale, part.lora.weight)
            for part, file in files
        )

    def products(self) -> list[Product]:
        """Read the products."""
        found = []
        for part in self.parts:
            factors = _factors(part.lora.file, part.module)
            up, down = (factors[role].reshape(len(factors[role]), -1) for role in ("up", "down"))
            found.append(Product(up, down, part.module.scale, part.lora.weight))
        return found

    def check_dtype(self, stored: np.dtype[Any]) -> None:
        """Refuse a parameter of whole numbers with `SourceError`."""
        if stored.kind in "iub":
            raise SourceError(
                f"{self.parameter} of {self.component} is quantised, to {stored}, so no LoRA can be merged into it; "
                "put `merge_lora` before the step that quantises"
            )

    def apply(self, stored: Array) -> Array:
        """Return the changed parameter, in float32; raises `SourceError` if it is stored as whole numbers."""
        self.check_dtype(stored.dtype)
        if self.is_low_rank:
            return add_products(stored, self.products())
        base = np.require(stored, np.float32, ["C"])
        total: Array | None = None
        for part in self.parts:
            change = _change_of(part.module, _factors(part.lora.file, part.module), base)
            change *= np.float32(part.lora.weight)
            total = change if total is None else np.add(total, change, out=total)
        assert total is not None
        whole: Array = np.add(total, base, out=total)
        return whole


def changes(
    component: str, config: Config, base: Mapping[str, Shape], loras: Sequence[WeightedLora]
) -> dict[str, Change]:
    """Check LoRAs against a network, and return what they do to each parameter that one changes, in order of name.

    Raises:
        SourceError: if a module has no layer, or does not fit it, or holds NaN or infinity.
        UsageError: if a weight is no finite number.
    """
    parts: dict[str, list[_Part]] = {}
    for lora in loras:
        if not math.isfinite(lora.weight):
            raise UsageError(f"{lora.file.path}: a LoRA's weight is a finite number, not {lora.weight}")
        for parameter, module in match_modules(component, config, base, lora.file).items():
            _check_fit(component, parameter, base[parameter], lora.file, module)
            _check_finite(lora.file, module)
            if lora.weight != 0:
                parts.setdefault(parameter, []).append(_Part(lora, module))
    ordered = {name: sorted(found, key=_digest) if len(found) > 1 else found for name, found in sorted(parts.items())}
    return {name: Change(component, name, tuple(found)) for name, found in ordered.items()}


def _check_fit(component: str, parameter: str, shape: Shape, file: LoraFile, module: LoraModule) -> None:
    fits = len(shape) in (2, 4) and shape[0] == module.rows and math.prod(shape[1:]) == module.columns
    if fits and module.kernel is not None:
        fits = module.kernel == (shape[2:] or (1, 1))
    for role in ("dora_scale", "magnitude"):
        if role in module.roles:
            fits = fits and _magnitude_fits(role, file.tensors[module.roles[role]].shape, shape)
    if not fits:
        factors = {role: list(file.tensors[stored].shape) for role, stored in sorted(module.roles.items())}
        raise SourceError(
            f"{file.path}: {module.name} does not fit {parameter} of {component}, whose shape is {list(shape)}: "
            f"{', '.join(f'{role} {size}' for role, size in factors.items())}; the LoRA is for another network"
        )


def _magnitude_fits(role: str, magnitude: Shape, shape: Shape) -> bool:
    axis = _dora_axis(magnitude) if role == "dora_scale" else 0
    return math.prod(magnitude) == shape[axis] == max(magnitude, default=1)


def _check_finite(file: LoraFile, module: LoraModule) -> None:
    for role, values in _factors(file, module).items():
        if not np.isfinite(values).all():
            raise SourceError(
                f"{file.path}: {module.roles[role]} holds NaN or infinity, so its training broke; "
                "use another version of the file"
            )


def _factors(file: LoraFile, module: LoraModule) -> dict[str, Array]:
    """Return role → float32 values of all factors; alpha is known without reading."""
    factors: dict[str, Array] = {}
    for role, stored in module.roles.items():
        if role != "alpha":
            raw = file.tensors[stored]
            values = read_tensor(Tensor(raw.dtype, raw.shape, "", raw.offset), {"": file.path})
            factors[role] = np.asarray(values, dtype=np.float32)
    return factors


def _digest(part: _Part) -> bytes:
    """Return what orders the parts of one parameter: weight, scale and factors, and no name or place."""
    word = hashlib.sha256(f"{part.lora.weight!r}/{part.module.scale!r}/{part.module.kind}".encode())
    for role, values in sorted(_factors(part.lora.file, part.module).items()):
        word.update(f"/{role}{values.shape}".encode())
        word.update(values.tobytes())
    return word.digest()


def _change_of(module: LoraModule, factors: Mapping[str, Array], base: Array) -> Array:
    """Return what a module adds to its layer's weight at LoRA weight 1, in float32.

    For DoRA, merged weight minus base: m · (W + Δ) / ‖W + Δ‖ - W (https://arxiv.org/abs/2402.09353, eq. 5).

    Args:
        factors: role → values in float32, without alpha.
        base: the layer's weight W in float32, (out, in) or (out, in, height, width).
    """
    delta = _difference(module, factors, base.shape)
    if not module.decomposed:
        return delta
    merged = base + delta
    magnitude, axis = _magnitude(factors, merged)
    others = tuple(dimension for dimension in range(merged.ndim) if dimension != axis)
    norm = np.sqrt(np.square(merged, dtype=np.float64).sum(axis=others, keepdims=True)).astype(np.float32)
    norm[norm == 0] = 1  # a row of zeros has no direction, and stays
    change: Array = magnitude / norm * merged - base
    return change


def _difference(module: LoraModule, factors: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    """Return the difference Δ of a module in a layer's shape, alpha / rank included, in float32."""
    if module.kind != "lora":
        return _library_difference(module, factors, shape)
    product = _product(factors)
    product *= np.float32(module.scale)
    return product.reshape(shape)


def _product(factors: Mapping[str, Array]) -> Array:
    """Return up · down (https://arxiv.org/abs/2106.09685), with the core of a Tucker decomposition between them.

    Returns:
        (out, in · kernel): what a convolution by down, then one of 1 x 1 by up does.
    """
    down, up = factors["down"], factors["up"]
    if "mid" in factors:
        down = np.einsum("njkl,jc->nckl", factors["mid"], down.reshape(down.shape[0], -1), optimize=True)
    product: Array = up.reshape(up.shape[0], -1) @ down.reshape(down.shape[0], -1)
    return product


def _library_difference(module: LoraModule, factors: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    """Return the difference of a LoHa or LoKr module, by PEFT."""
    import torch

    with torch.no_grad():
        layer = _build_layer(module, shape)
        for role in layer.adapter_layer_names:
            slot = getattr(layer, role)
            if _ADAPTER in slot:
                del slot[_ADAPTER]
            if role in factors:
                slot[_ADAPTER] = torch.nn.Parameter(torch.from_numpy(factors[role]), False)
        delta: Array = layer.get_delta_weight(_ADAPTER).detach().numpy()
    return delta


def _build_layer(module: LoraModule, shape: tuple[int, ...]) -> Any:
    """Return PEFT's layer for a module, on a base of a shape, its parameters on the meta device."""
    import torch
    from peft import LoHaConfig, LoKrConfig, inject_adapter_in_model

    rank = module.rank or 1
    # PEFT divides by rank; a LoKr of two whole factors has none, and its difference is not scaled.
    alpha = rank if module.rank is None or module.alpha is None else module.alpha
    config = (LoHaConfig if module.kind == "loha" else LoKrConfig)(
        r=rank, alpha=alpha, target_modules=["layer"], init_weights=False
    )
    holder = torch.nn.Module()
    with torch.device("meta"):
        holder.layer = (
            torch.nn.Linear(shape[1], shape[0], bias=False)
            if len(shape) == 2
            else torch.nn.Conv2d(shape[1], shape[0], shape[2:], bias=False)
        )
        inject_adapter_in_model(config, holder, adapter_name=_ADAPTER, low_cpu_mem_usage=True)
    return holder.layer


def _magnitude(factors: Mapping[str, Array], merged: Array) -> tuple[Array, int]:
    """Return the magnitudes, shaped to multiply the weight, and the axis that they run along."""
    along = [1] * merged.ndim
    if "magnitude" in factors:  # PEFT's runs along the output, also where it is stored as (1, out, 1, 1)
        values, axis = factors["magnitude"], 0
    else:  # LyCORIS's runs along the axis that is not 1: the input in older versions
        values = factors["dora_scale"]
        axis = _dora_axis(values.shape)
    along[axis] = -1
    return values.reshape(along), axis


def _dora_axis(shape: tuple[int, ...]) -> int:
    """Return the axis that a `dora_scale` of this shape runs along: (out, 1, …) or (out,) is 0, (1, in, …) is 1."""
    return 1 if len(shape) > 1 and shape[0] == 1 and math.prod(shape) > 1 else 0


_STAND_INS = {
    "kohya": (".lora_down.weight", ".lora_up.weight"),
    "diffusers_old": ("_lora.down.weight", "_lora.up.weight"),
    "diffusers_mid": (".lora.down.weight", ".lora.up.weight"),
    "peft": (".lora_A.weight", ".lora_B.weight"),
    "peft_native": (".lora_A.weight", ".lora_B.weight"),
}
_TEXT_STAND_INS = (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight")
_TEXT_LEVEL = "text_model."
_LISTED = 5


def match_modules(
    component: str, config: Config, base: Mapping[str, tuple[int, ...]], lora: LoraFile
) -> dict[str, LoraModule]:
    """Return the modules of a component by the parameter that each changes.

    Raises `SourceError` if a module has no layer in the network, or two have the same.

    Args:
        component: `unet`, `text_encoder` or `text_encoder_2`.
        base: parameter → shape.
    """
    flat = _flat_names(base)
    matched: dict[str, LoraModule] = {}
    unmatched: list[str] = []
    for module in lora.modules.values():
        if module.component != component:
            continue
        parameter = _find(module, config, base, flat)
        if parameter is None:
            unmatched.append(module.name)
        elif parameter in matched:
            raise SourceError(
                f"{lora.path}: {matched[parameter].name} and {module.name} both change {parameter} of "
                f"{component}; get another version of the file"
            )
        else:
            matched[parameter] = module
    if unmatched:
        rest = f", and {len(unmatched) - _LISTED} more" if len(unmatched) > _LISTED else ""
        raise SourceError(
            f"{lora.path}: {len(unmatched)} modules have no layer in {component}: "
            f"{', '.join(unmatched[:_LISTED])}{rest}; the LoRA is for another network"
        )
    return matched


def _find(
    module: LoraModule, config: Config, base: Mapping[str, tuple[int, ...]], flat: Mapping[str, str]
) -> str | None:
    # What is spelled as a layer of this network is that layer, and no library is imported to say so; kohya's own
    # definition is a path with its dots as underscores.
    if f"{module.path}.weight" in base:
        return f"{module.path}.weight"
    if module.spelling == "kohya":
        for spelled in (module.path, module.path.removeprefix("text_model_"), f"text_model_{module.path}"):
            if spelled in flat:
                return flat[spelled]
    name = library_name(module, config.get("layers_per_block"))
    if name is not None:
        # transformers 5 has dropped this level in one class of text encoder and kept it in the other.
        for spelled in (name, name.removeprefix(_TEXT_LEVEL), _TEXT_LEVEL + name):
            if f"{spelled}.weight" in base:
                return f"{spelled}.weight"
    return None


def library_name(module: LoraModule, layers_per_block: int | Iterable[int] | None) -> str | None:
    """Return the layer that diffusers' converters make of a module; `None` if they refuse it or make nothing."""
    import torch
    from diffusers.loaders import StableDiffusionXLLoraLoaderMixin
    from diffusers.utils import logging
    from diffusers.utils.state_dict_utils import (
        StateDictType,
        convert_state_dict_to_diffusers,
        convert_state_dict_to_peft,
        convert_unet_state_dict_to_peft,
    )

    one = torch.zeros(1)
    is_text = module.component != "unet"
    down, up = _STAND_INS[module.spelling]
    with quiet(logging):
        if module.spelling == "kohya":
            pair = {f"{module.name}{down}": one, f"{module.name}{up}": one}
            unet_config = SimpleNamespace(layers_per_block=layers_per_block) if layers_per_block else None
            try:
                pair, _ = StableDiffusionXLLoraLoaderMixin.lora_state_dict(pair, unet_config=unet_config)
            except (ValueError, IndexError, KeyError, TypeError):
                return None
            pair = {key.removeprefix(f"{module.component}."): value for key, value in pair.items()}
        else:
            if is_text and module.spelling == "diffusers_mid":
                down, up = _TEXT_STAND_INS
            pair = {f"{module.path}{down}": one, f"{module.path}{up}": one}
        if is_text:
            # Named types: the library would infer them from keys that a single module need not have.
            pair = convert_state_dict_to_diffusers(pair, original_type=StateDictType.DIFFUSERS_OLD)
        else:
            pair = convert_unet_state_dict_to_peft(pair)
        pair = convert_state_dict_to_peft(pair, original_type=StateDictType.DIFFUSERS)
    names = {key.removesuffix(".lora_A.weight") for key in pair if key.endswith(".lora_A.weight")}
    return names.pop() if names else None


def _flat_names(base: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return kohya's name → parameter, for the names that stand for one parameter only."""
    flat: dict[str, str] = {}
    ambiguous: set[str] = set()
    for parameter in base:
        if parameter.endswith(".weight"):
            name = parameter.removesuffix(".weight").replace(".", "_")
            ambiguous |= {name} & flat.keys()
            flat[name] = parameter
    return {name: parameter for name, parameter in flat.items() if name not in ambiguous}

"""Merging LoRAs into one network, tensor by tensor; it runs in a worker.

The law is W + Σ weightᵢ · changeᵢ(W) in float32. Each change is measured against the base W, so neither order nor
company of the files matters; the sum is taken in an order that content decides.

For DoRA the weight scales the whole change, so that 0 is the base and 1 what was trained. diffusers scales the low-rank
difference before normalising: at 1 both agree, at 0 its result still has the trained magnitudes.

A plain LoRA's product is not computed here: whoever reads the merged tensor adds it, block by block, and it is never
stored. All else is computed here, by NumPy: Tucker decompositions, DoRA, and LoHa and LoKr as PEFT's layers do.

Which layer a module of a LoRA file changes is looked up in all spellings of the network's own layers
(`layer_names`). diffusers' converters are not asked: they know plain LoRA alone, drop or refuse what else a file
holds, and judge all keys by the first or by a sample.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from olivelike.errors import SourceError, UsageError
from olivelike.model.tensor_file import Array, Product, add_products, read_tensor
from olivelike.model.weights import ITEM_SIZES, LowRank, Tensor
from olivelike.sources.adapters.layer_names import FUSED, Place, spelled_layers
from olivelike.sources.adapters.lora_file import LoraFile, LoraModule, WeightedLora

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """Rows of a module's difference, and the rows of the parameter that they change."""

    module: LoraModule
    first: int
    place: Place

    @property
    def rows(self) -> slice:
        """Rows of the difference."""
        return slice(self.first, self.first + self.place.count)

    @property
    def changed(self) -> slice:
        """Rows of the parameter."""
        return slice(self.place.first, self.place.first + self.place.count)


@dataclass(frozen=True)
class _Part:
    """One module of one file, on the parameter that it changes."""

    lora: WeightedLora
    share: Share
    whole: bool
    """Whether all rows of the parameter change."""

    @property
    def module(self) -> LoraModule:
        return self.share.module

    def stored(self, role: str, file: str = "") -> Tensor:
        """Return where a factor of a product of two lies, in the file of a digest: of `up` the rows of its share."""
        raw = self.lora.file.tensors[self.module.roles[role]]
        if role != "up":
            return Tensor(raw.dtype, raw.shape, file, raw.offset)
        skipped = self.share.first * math.prod(raw.shape[1:]) * ITEM_SIZES[raw.dtype]
        return Tensor(raw.dtype, (self.share.place.count, *raw.shape[1:]), file, raw.offset + skipped)


@dataclass(frozen=True)
class Change:
    """The change of one parameter by LoRAs of a weight other than 0."""

    component: str
    parameter: str
    parts: tuple[_Part, ...]
    """In an order that content decides."""

    @property
    def is_low_rank(self) -> bool:
        """Tell whether it is a sum of products of two stored factors."""
        return all(
            part.whole and part.module.kind == "lora" and not part.module.decomposed and "mid" not in part.module.roles
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
            up = up[part.share.rows]
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
            rows = part.share.changed
            change = _change_of(part.share, _factors(part.lora.file, part.module), base[rows])
            change *= np.float32(part.lora.weight)
            if total is None and part.whole:
                total = change
                continue
            total = np.zeros_like(base) if total is None else total
            total[rows] += change
        assert total is not None
        whole: Array = np.add(total, base, out=total)
        return whole


def changes(component: str, base: Mapping[str, Shape], loras: Sequence[WeightedLora]) -> dict[str, Change]:
    """Check LoRAs against a network, and return what they do to each parameter that one changes, in order of name.

    Raises `SourceError` if a module has no layer, or does not fit it, or holds NaN or infinity, or makes such, and
    `UsageError` if a weight is no finite number.
    """
    parts: dict[str, list[_Part]] = {}
    for lora in loras:
        if not math.isfinite(lora.weight):
            raise UsageError(f"{lora.file.path}: a LoRA's weight is a finite number, not {lora.weight}")
        if lora.weight != 0:
            lora.file.check_scales({component})
        finite: set[str] = set()
        for parameter, shares in match_modules(component, base, lora.file).items():
            for share in shares:
                if lora.weight != 0 and share.module.name not in finite:
                    _check_numbers(lora, share.module)
                    finite.add(share.module.name)
                if lora.weight != 0:
                    whole = share.place.count == base[parameter][0]
                    parts.setdefault(parameter, []).append(_Part(lora, share, whole))
    ordered = {name: sorted(found, key=_digest) if len(found) > 1 else found for name, found in sorted(parts.items())}
    return {name: Change(component, name, tuple(found)) for name, found in ordered.items()}


def _check_fit(
    component: str, base: Mapping[str, Shape], places: Sequence[Place], file: LoraFile, module: LoraModule
) -> None:
    shape = base[places[0].parameter]
    held = (sum(place.count for place in places), *shape[1:])
    fits = len(shape) in (2, 4) and held[0] == module.rows and math.prod(shape[1:]) == module.columns
    fits = fits and all(base[place.parameter][1:] == shape[1:] for place in places)
    if fits and module.kernel is not None:
        fits = module.kernel == (shape[2:] or (1, 1))
    for role in ("dora_scale", "magnitude"):
        if role in module.roles:
            magnitude = file.tensors[module.roles[role]].shape
            fits = fits and _magnitude_fits(role, magnitude, held)
            if fits and role == "dora_scale" and _dora_axis(magnitude) and held != shape:
                raise SourceError(
                    f"{file.path}: {module.name} has magnitudes of inputs for layers that are one matrix there, and "
                    f"several in {component}, so each one's magnitudes can't be told; use a file with magnitudes of "
                    "outputs"
                )
    if not fits:
        factors = {role: list(file.tensors[stored].shape) for role, stored in sorted(module.roles.items())}
        names = dict.fromkeys(place.parameter for place in places)
        where = f"{', '.join(names)} of {component}, whose {'shape is' if len(names) == 1 else 'joint shape is'}"
        raise SourceError(
            f"{file.path}: the LoRA is for another network; {module.name} does not fit {where} {list(held)}: "
            f"{', '.join(f'{role} {size}' for role, size in factors.items())}"
        )


def _magnitude_fits(role: str, magnitude: Shape, shape: Shape) -> bool:
    axis = _dora_axis(magnitude) if role == "dora_scale" else 0
    return math.prod(magnitude) == shape[axis] == max(magnitude, default=1)


def _check_numbers(lora: WeightedLora, module: LoraModule) -> None:
    """Refuse factors that are not finite, and those whose product might not be in float32."""
    # No form sums more than four times over its rank.
    most = max(1.0, abs(module.scale)) * max(1.0, abs(lora.weight)) * float(module.rank or 1) ** 4
    for role, values in _factors(lora.file, module).items():
        if not np.isfinite(values).all():
            raise SourceError(
                f"{lora.file.path}: {module.roles[role]} holds NaN or infinity, so its training broke; "
                "use another version of the file"
            )
        most *= max(1.0, float(np.max(values)), -float(np.min(values)))
    if most > float(np.finfo(np.float32).max):
        raise SourceError(
            f"{lora.file.path}: {module.name} makes numbers that float32 can't hold, of its factors, alpha / rank "
            f"{module.scale:g} and the weight {lora.weight:g}; use a smaller weight, or another version of the file"
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
    if not part.whole:
        word.update(f"/{part.share.first}/{part.share.place.first}".encode())
    for role, values in sorted(_factors(part.lora.file, part.module).items()):
        word.update(f"/{role}{values.shape}".encode())
        word.update(values.tobytes())
    return word.digest()


def _change_of(share: Share, factors: Mapping[str, Array], base: Array) -> Array:
    """Return what a share of a module adds to its rows of the weight at LoRA weight 1, in float32.

    For DoRA, merged weight minus base: m · (W + Δ) / ‖W + Δ‖ - W (https://arxiv.org/abs/2402.09353, eq. 5).

    Args:
        share: the rows of the module.
        factors: role → values in float32, without alpha.
        base: those rows of the weight W in float32, (out, in) or (out, in, height, width).
    """
    delta = _difference(share, factors, base.shape)
    if not share.module.decomposed:
        return delta
    merged = base + delta
    magnitude, axis = _magnitude(factors, merged, share.rows)
    others = tuple(dimension for dimension in range(merged.ndim) if dimension != axis)
    norm = np.sqrt(np.square(merged, dtype=np.float64).sum(axis=others, keepdims=True)).astype(np.float32)
    norm[norm == 0] = 1  # a row of zeros has no direction, and stays
    change: Array = magnitude / norm * merged - base
    return change


def _difference(share: Share, factors: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    """Return the difference Δ of a share's rows in their shape, alpha / rank included, in float32."""
    module = share.module
    if module.kind == "lora":
        product = _product({**factors, "up": factors["up"][share.rows]})
    else:
        made = (_hadamard if module.kind == "loha" else _kronecker)(factors)
        product = made if len(made) == shape[0] else made[share.rows].copy()
    # PEFT knows no rank-stabilised scale of LoHa and LoKr.
    product *= np.float32(replace(module, rslora=module.rslora and module.kind == "lora").scale)
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


def _hadamard(factors: Mapping[str, Array]) -> Array:
    """Return LoHa's product of two products, element by element (https://arxiv.org/abs/2108.06098)."""
    if "hada_t1" not in factors:
        product: Array = (factors["hada_w1_a"] @ factors["hada_w1_b"]) * (factors["hada_w2_a"] @ factors["hada_w2_b"])
        return product
    first, second = (
        _between(factors[f"hada_t{number}"], factors[f"hada_w{number}_a"], factors[f"hada_w{number}_b"])
        for number in (1, 2)
    )
    first *= second
    return first


def _kronecker(factors: Mapping[str, Array]) -> Array:
    """Return LoKr's Kronecker product of two matrices, or of a matrix and a kernel; each may be a product itself."""
    first, second = (factors.get(name) for name in ("lokr_w1", "lokr_w2"))
    if first is None:
        first = factors["lokr_w1_a"] @ factors["lokr_w1_b"]
    if second is None and "lokr_t2" in factors:
        second = _between(factors["lokr_t2"], factors["lokr_w2_a"], factors["lokr_w2_b"])
    elif second is None:
        second = factors["lokr_w2_a"] @ factors["lokr_w2_b"]
    return np.kron(first.reshape(*first.shape, *[1] * (second.ndim - 2)), second)


def _between(core: Array, a: Array, b: Array) -> Array:
    """Return aᵀ · core · b, a kernel (out, in, height, width), of a core (rank, rank, height, width)."""
    half = np.einsum("ijkl,jr->irkl", core, b, optimize=True)
    whole: Array = np.einsum("irkl,ip->prkl", half, a, optimize=True)
    return whole


def _magnitude(factors: Mapping[str, Array], merged: Array, rows: slice) -> tuple[Array, int]:
    """Return the magnitudes of rows, shaped to multiply them, and the axis that they run along."""
    along = [1] * merged.ndim
    if "magnitude" in factors:  # PEFT's runs along the output, also where it is stored as (1, out, 1, 1)
        values, axis = factors["magnitude"], 0
    else:  # LyCORIS's runs along the axis that is not 1: the input in older versions
        values = factors["dora_scale"]
        axis = _dora_axis(values.shape)
    along[axis] = -1
    flat = values.reshape(-1)
    return (flat if axis else flat[rows]).reshape(along), axis


def _dora_axis(shape: tuple[int, ...]) -> int:
    """Return the axis that a `dora_scale` of this shape runs along: (out, 1, …) or (out,) is 0, (1, in, …) is 1."""
    return 1 if len(shape) > 1 and shape[0] == 1 and math.prod(shape) > 1 else 0


_LISTED = 5


def match_modules(component: str, base: Mapping[str, Shape], lora: LoraFile) -> dict[str, list[Share]]:
    """Return the shares of a component's modules by the parameter that each changes.

    Raises `SourceError` if a module has no layer in the network or does not fit it, or two change the same rows.

    Args:
        component: `unet`, `transformer`, `text_encoder` or `text_encoder_2`.
        base: parameter → shape.
        lora: the file.
    """
    layers = spelled_layers(component, base)
    modules = [module for module in lora.modules.values() if module.component == component]
    if unmatched := [module.name for module in modules if module.layer not in layers]:
        _refuse_unmatched(component, unmatched, len(modules), lora)
    matched: dict[str, list[Share]] = {}
    for module in modules:
        places = layers[module.layer]
        _check_fit(component, base, places, lora, module)
        first = 0
        for place in places:
            share, shares = Share(module, first, place), matched.setdefault(place.parameter, [])
            first += place.count
            if other := next((one for one in shares if _overlap(one.place, place)), None):
                raise SourceError(
                    f"{lora.path}: {other.module.name} and {module.name} both change {place.parameter} of "
                    f"{component}; get another version of the file"
                )
            shares.append(share)
    return matched


def _overlap(one: Place, other: Place) -> bool:
    return one.first < other.first + other.count and other.first < one.first + one.count


def _refuse_unmatched(component: str, unmatched: Sequence[str], count: int, lora: LoraFile) -> None:
    rest = f", and {len(unmatched) - _LISTED} more" if len(unmatched) > _LISTED else ""
    listed = f"{', '.join(unmatched[:_LISTED])}{rest}"
    if all(name.endswith(FUSED) for name in unmatched):
        raise SourceError(
            f"{lora.path}: {len(unmatched)} modules change query, key and value of {component} as one matrix, "
            f"which is three layers here: {listed}; use the file in the names of kohya, diffusers or PEFT"
        )
    raise SourceError(
        f"{lora.path}: {len(unmatched)} modules have no layer in {component}, of {count} for it: {listed}; the LoRA is "
        "for another network"
    )

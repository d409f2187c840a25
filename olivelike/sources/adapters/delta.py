"""The difference that a module makes to its layer's weight.

For LoHa and LoKr, PEFT's own layers compute it, built on a base layer of the meta device that has shape and no
memory. The product of a plain LoRA is computed here, by NumPy: importing torch and PEFT takes longer than merging.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.sources.adapters.lora_file import LoraModule

Array = np.ndarray[Any, Any]

_ADAPTER = "merged"


def change_of(module: LoraModule, factors: Mapping[str, Array], base: Array) -> Array:
    """Return what a module adds to its layer's weight at LoRA weight 1, in float32.

    For DoRA, merged weight minus base: m · (W + Δ) / ‖W + Δ‖ - W (https://arxiv.org/abs/2402.09353, eq. 5).

    Args:
        module: the module.
        factors: role → values in float32, without alpha.
        base: the layer's weight W in float32, (out, in) or (out, in, height, width).
    """
    delta = difference(module, factors, base.shape)
    if not module.decomposed:
        return delta
    merged = base + delta
    magnitude, axis = _magnitude(factors, merged)
    others = tuple(dimension for dimension in range(merged.ndim) if dimension != axis)
    norm = np.sqrt(np.square(merged, dtype=np.float64).sum(axis=others, keepdims=True)).astype(np.float32)
    norm[norm == 0] = 1  # a row of zeros has no direction, and stays
    change: Array = magnitude / norm * merged - base
    return change


def difference(module: LoraModule, factors: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
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

    layer = _build_layer(module, shape)
    for role in layer.adapter_layer_names:
        slot = getattr(layer, role)
        if _ADAPTER in slot:
            del slot[_ADAPTER]
        if role in factors:
            slot[_ADAPTER] = torch.nn.Parameter(torch.from_numpy(factors[role]), False)
    with torch.no_grad():
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
        axis = dora_axis(values.shape)
    along[axis] = -1
    return values.reshape(along), axis


def dora_axis(shape: tuple[int, ...]) -> int:
    """Return the axis that a `dora_scale` of this shape runs along: (out, 1, …) or (out,) is 0, (1, in, …) is 1."""
    return 1 if len(shape) > 1 and shape[0] == 1 and math.prod(shape) > 1 else 0

"""Merging LoRAs into one network, tensor by tensor; it runs in a worker.

The law is W + Σ weightᵢ · changeᵢ(W) in float32. Each change is measured against the base W, so neither order
nor company of the files matters; the sum is taken in an order that content decides.

For DoRA the weight scales the whole change, so that 0 is the base and 1 what was trained. diffusers scales the
low-rank difference before normalising: at 1 both agree, at 0 its result still has the trained magnitudes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError, UsageError
from olivelike.model import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from olivelike.model.architecture import Config
    from olivelike.sources.adapters.lora_file import LoraFile, LoraModule

    Array = np.ndarray[Any, Any]
    Shape = tuple[int, ...]


@dataclass(frozen=True)
class WeightedLora:
    """A LoRA and how much of it."""

    file: LoraFile
    weight: float
    """1 is what was trained; 0 leaves the base as it is; negative weights are allowed."""


@dataclass(frozen=True)
class _Part:
    """One module of one file, on the parameter that it changes."""

    lora: WeightedLora
    module: LoraModule


def merge(
    component: str,
    config: Config,
    base: Mapping[str, Shape],
    loras: Sequence[WeightedLora],
    read_base: Callable[[str], Array],
) -> Iterator[tuple[str, Array]]:
    """Check LoRAs against a network, and return its changed parameters one at a time.

    Args:
        component: `unet`, `text_encoder` or `text_encoder_2`.
        config: the network's config.
        base: parameter → shape.
        loras: the files with their weights, in any order.
        read_base: returns a parameter's values, in any floating dtype.

    Returns:
        An iterator over name and float32 values of each parameter that a LoRA of weight other than 0 changes,
        in order of name. All checks are made before it is returned.

    Raises:
        SourceError: if a module has no layer, or does not fit it, or holds NaN or infinity; on iteration, if the
            layer's values are integers.
        UsageError: if a weight is no finite number.
    """
    from olivelike.sources.adapters.lora_names import match_modules

    parts: dict[str, list[_Part]] = {}
    for lora in loras:
        if not math.isfinite(lora.weight):
            raise UsageError(f"{lora.file.path}: a LoRA's weight is a finite number, not {lora.weight}")
        for parameter, module in match_modules(component, config, base, lora.file).items():
            _check_fit(component, parameter, base[parameter], lora.file, module)
            _check_finite(lora.file, module)
            if lora.weight != 0:
                parts.setdefault(parameter, []).append(_Part(lora, module))
    return _merged(component, parts, read_base)


def _merged(
    component: str, parts: Mapping[str, Sequence[_Part]], read_base: Callable[[str], Array]
) -> Iterator[tuple[str, Array]]:
    import numpy as np

    from olivelike.sources.adapters.delta import change_of

    for parameter in sorted(parts):
        stored = read_base(parameter)
        if stored.dtype.kind in "iub":
            raise SourceError(
                f"{parameter} of {component} is quantised, to {stored.dtype}, so no LoRA can be merged into it; put "
                "`merge_lora` before the step that quantises"
            )
        base = np.require(stored, np.float32, ["C"])
        total: Array | None = None
        for part in sorted(parts[parameter], key=_digest) if len(parts[parameter]) > 1 else parts[parameter]:
            change = change_of(part.module, _factors(part.lora.file, part.module), base)
            change *= np.float32(part.lora.weight)
            total = change if total is None else np.add(total, change, out=total)
        assert total is not None
        yield parameter, np.add(total, base, out=total)


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
            f"{', '.join(f'{role} {size}' for role, size in factors.items())}; the LoRA is for another network",
        )


def _magnitude_fits(role: str, magnitude: Shape, shape: Shape) -> bool:
    from olivelike.sources.adapters.delta import dora_axis

    axis = dora_axis(magnitude) if role == "dora_scale" else 0
    return math.prod(magnitude) == shape[axis] == max(magnitude, default=1)


def _check_finite(file: LoraFile, module: LoraModule) -> None:
    import numpy as np

    for role, values in _factors(file, module).items():
        if not np.isfinite(values).all():
            raise SourceError(
                f"{file.path}: {module.roles[role]} holds NaN or infinity, so its training broke; "
                "use another version of the file",
            )


def _factors(file: LoraFile, module: LoraModule) -> dict[str, Array]:
    """Return role → float32 values of all factors; alpha is known without reading."""
    import numpy as np

    from olivelike.model.tensor_file import read_tensor

    factors: dict[str, Array] = {}
    for role, stored in module.roles.items():
        if role != "alpha":
            raw = file.tensors[stored]
            values = read_tensor(Tensor(raw.dtype, raw.shape, "", raw.offset), file.path)
            factors[role] = np.asarray(values, dtype=np.float32)
    return factors


def _digest(part: _Part) -> bytes:
    """Return what orders the parts of one parameter: weight, scale and factors, and no name or place."""
    word = hashlib.sha256(f"{part.lora.weight!r}/{part.module.scale!r}/{part.module.kind}".encode())
    for role, values in sorted(_factors(part.lora.file, part.module).items()):
        word.update(f"/{role}{values.shape}".encode())
        word.update(values.tobytes())
    return word.digest()

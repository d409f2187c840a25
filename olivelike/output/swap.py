"""Merging LoRAs into an output that is on disk, without writing a file: the changed initializers, ready to be fed.

The record of the output says how each initializer was derived from parameters. Where that only moves values (packing,
transposing, casting), the parameters can be read back from the initializers; the merge then is the same as in a run,
and the changed values go where they came from.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.output.initializers import Initializers
from olivelike.output.record import OutputRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from olivelike.lora import LoraFile, WeightedLora
    from olivelike.output.derivation import Expression

    Array = np.ndarray[Any, Any]


def swap_loras(
    folder: Path, loras: Sequence[WeightedLora], *, only: Collection[str] = ()
) -> dict[str, dict[str, Array]]:
    """Return what an output's initializers become when LoRAs are merged on top of it.

    The base is what the folder holds: in half precision, its parameters are those of the checkpoint rounded to float16,
    and LoRAs that a run has merged already stay merged.

    Args:
        folder: An output folder, as a run left it.
        loras: LoRA files with their weights; 0 changes nothing.
        only: Components to change; by default all that the LoRAs have keys for.

    Returns:
        Per component, the changed initializers by name, in the dtype and shape that `model.onnx` has them. A session
        takes them by `SessionOptions.add_external_initializers`, which copies nothing.

    Raises:
        SourceError: when the folder is no output, a LoRA does not fit it, or an initializer that a LoRA changes was
            derived by arithmetic that can't be undone.
    """
    record = OutputRecord.read(folder)
    if record is None:
        raise SourceError(
            f"{folder}: has no readable olivelike.json; name a folder that `olivelike run` wrote"
        )
    wanted = {name for weighted in loras if weighted.weight for name in weighted.file.components}
    wanted &= set(only) or wanted
    for weighted in loras:
        _check(weighted.file, wanted, folder, record)
    return {
        component: _swap(
            folder / record.model_file(component),
            component,
            record.components[component]["derivations"],
            loras,
        )
        for component in sorted(wanted)
    }


def _check(lora: LoraFile, wanted: set[str], folder: Path, record: OutputRecord) -> None:
    from olivelike.lora import check_family

    if missing := sorted((lora.components & wanted) - record.components.keys()):
        raise SourceError(f"{lora.path}: changes {missing[0]}, which {folder} does not have")
    try:
        config = json.loads((folder / "unet" / "config.json").read_bytes())
    except (OSError, ValueError):
        return  # An output without a UNet tells nothing of the family.
    if isinstance(width := config.get("cross_attention_dim"), int):
        check_family(lora, width, str(folder))


def _swap(
    model: Path, component: str, derivations: Mapping[str, Expression], loras: Iterable[WeightedLora]
) -> dict[str, Array]:
    from olivelike.lora import merge

    initializers = Initializers(model)
    places = _places(derivations)
    config = json.loads((model.parent / "config.json").read_bytes())
    shapes = {name: found[0].shape for name, found in places.items()}
    mine = [weighted for weighted in loras if component in weighted.file.components]
    changed: dict[str, Array] = {}

    def read_base(name: str) -> Array:
        return _read_back(places[name], initializers)

    for name, merged in merge(component, config, shapes, mine, read_base):
        for place in places[name]:
            if place.initializer not in changed:
                changed[place.initializer] = initializers.read(place.initializer).copy()
            _put(changed[place.initializer], place, merged, initializers)
    return changed


@dataclass(frozen=True, eq=False)
class _Place:
    """One occurrence of a parameter in an initializer."""

    initializer: str
    expression: Expression
    shape: tuple[int, ...]
    """Of the parameter."""
    start: int
    """Number of values of the parameters before it in the expression."""


def _places(derivations: Mapping[str, Expression]) -> dict[str, list[_Place]]:
    from olivelike.output.derivation import parameters

    places: dict[str, list[_Place]] = {}
    for initializer, expression in derivations.items():
        start = 0
        for name, shape in parameters(expression):
            places.setdefault(name, []).append(_Place(initializer, expression, shape, start))
            start += math.prod(shape)
    return places


def _read_back(places: Sequence[_Place], initializers: Initializers) -> Array:
    """Return a parameter's values, as far as its initializers keep them."""
    import numpy as np

    flat = np.zeros(math.prod(places[0].shape), np.float32)
    known = np.zeros(flat.shape, bool)
    for place in places:
        there, here = _indices(place, initializers)
        flat[here] = initializers.read(place.initializer).reshape(-1)[there]
        known[here] = True
    if not known.all():
        raise SourceError(
            f"{initializers.folder}: initializer {places[0].initializer!r} keeps a part of its parameter "
            "alone; merge the LoRA in a run"
        )
    return flat.reshape(places[0].shape)


def _put(target: Array, place: _Place, merged: Array, initializers: Initializers) -> None:
    """Put a parameter's new values into an initializer, in its precision."""
    import numpy as np

    from olivelike.half import to_half

    values = to_half(merged)[0] if target.dtype == np.float16 else merged.astype(target.dtype)
    there, here = _indices(place, initializers)
    target.reshape(-1)[there] = values.reshape(-1)[here]


@lru_cache(maxsize=4)
def _indices(place: _Place, initializers: Initializers) -> tuple[Array | slice, Array]:
    """Return where a parameter's values lie in the flattened initializer, and which of its values each is."""
    import numpy as np

    from olivelike.output.derivation import MOVING, operators, parameters, positions

    if foreign := sorted(set(operators(place.expression)) - MOVING):
        raise SourceError(
            f"{initializers.folder}: initializer {place.initializer!r} was derived by {foreign[0]}, which can't be "
            "undone; merge the LoRA in a run"
        )
    flat = positions(place.expression, initializers.opsets, initializers.ir_version).reshape(-1)
    if len(list(parameters(place.expression))) == 1:
        return slice(None), flat
    end = place.start + math.prod(place.shape)
    (there,) = np.nonzero((flat >= place.start) & (flat < end))
    return there, flat[there] - place.start

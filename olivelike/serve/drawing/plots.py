"""Plots of up to three axes: the order of each cell, and the words around the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from pydantic import ValidationError

from olivelike.errors import UsageError
from olivelike.runtime.pictures.sheets import PlotHeads
from olivelike.runtime.pipeline.request import Asked, asked_fields, with_hires
from olivelike.runtime.schedulers.scheduler_names import with_schedule
from olivelike.serve.orders import CONTROL_AXES, CONTROL_AXIS, Axis, Order, axis_label

_SPEAKS_FOR_ITSELF = frozenset({"prompt_sr", "lora", "model", "scheduler", "schedule", "size"})
"""Axes whose values need no label."""


_TURNS = {CONTROL_AXIS: -1, "schedule": 1}
"""Axes that change an order before or after others, which may change the same: one control picture's strength behind
that of all, a schedule type behind its sampler."""


@dataclass(frozen=True)
class Cell:
    """A place of a plot, or a whole order that has none."""

    order: Order
    """Without axes."""
    place: tuple[int, int, int]
    """Number of its layer (`z`), row (`y`) and column (`x`)."""


def cells(order: Order) -> list[Cell]:
    """Return the cells of an order, row by row. Raises `UsageError` for a value that its field can't have."""
    plain = order.model_copy(update=dict.fromkeys(("x", "y", "z")))
    found = []
    sides = [list(enumerate(axis.values if axis else (None,))) for axis in (order.z, order.y, order.x)]
    for (layer, deep), (row, down), (column, across) in product(*sides):
        cell = plain
        chosen = ((order.z, deep), (order.y, down), (order.x, across))
        for axis, value in sorted(chosen, key=lambda one: _TURNS.get(one[0].field, 0) if one[0] else 0):
            cell = _changed(cell, axis, value)
        found.append(Cell(cell, (layer, row, column)))
    return found


def heads(order: Order) -> PlotHeads:
    """Return the words around the cells of a plot."""
    chosen = {axis.field for axis in order.axes}
    told = [
        "" if order.seed is None or "seed" in chosen else f"Seed {order.seed}",
        "" if order.model is None or "model" in chosen else order.model,
    ]
    title = "\n".join([order.prompt.replace("\n", " "), ", ".join(part for part in told if part)])
    return PlotHeads(title, _labels(order.x), _labels(order.y), _labels(order.z))


def _labels(axis: Axis | None) -> Sequence[str]:
    if axis is None:
        return ("",)
    values = [f"{value:g}" if isinstance(value, float) else str(value) for value in axis.values]
    if axis.field in _SPEAKS_FOR_ITSELF:
        return values
    return [f"{axis_label(axis.field)} {value}" for value in values]


@lru_cache(maxsize=1)
def _asked() -> Mapping[str, Asked]:
    return dict(asked_fields())


def _changed(order: Order, axis: Axis | None, value: str | float | None) -> Order:
    if axis is None or value is None:
        return order
    what = f"axis {axis.field}: {value!r}"
    try:
        return Order.model_validate({**order.model_dump(exclude_unset=True), **_changes(order, axis, value)})
    except ValidationError as error:
        raise UsageError(f"{what}: {error.errors()[0]['msg']}") from None
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def _changes(order: Order, axis: Axis, value: str | float) -> Mapping[str, object]:
    """Return the fields that a value of an axis changes. Raises `UsageError` and `ValueError`."""
    controls = [one.model_dump(exclude_unset=True) for one in order.controls]
    match axis.field:
        case "lora":
            name, _, weight = str(value).rpartition(":")
            chosen = {"name": name, "weight": weight} if name else {"name": weight}
            return {"loras": [*(dict(one) for one in order.loras), chosen]}
        case field if field == CONTROL_AXIS:
            if not controls:
                raise UsageError("axis control_strength: no control picture is given, so nothing has a strength")
            return {"controls": [{**one, "strength": value} for one in controls]}
        case field if number := CONTROL_AXES.get(field):
            if number > len(controls):
                raise UsageError(f"axis {field}: of {len(controls)} control pictures none is number {number}")
            controls[number - 1]["strength"] = value
            return {"controls": controls}
        case "prompt_sr":
            searched = str(axis.values[0])
            texts = {"prompt": order.prompt, "negative_prompt": order.negative_prompt}
            if not searched or not any(searched in text for text in texts.values() if text):
                raise UsageError(f"axis prompt_sr: {searched!r} is not in the prompts, so nothing can take its place")
            return {name: text.replace(searched, str(value)) for name, text in texts.items() if text}
        case "schedule":
            if order.scheduler is None:
                raise UsageError("axis schedule: no sampler is named, so nothing has a schedule type; give scheduler")
            return {"scheduler": with_schedule(order.scheduler, str(value))}
        case "size":
            width, height = _asked()["size"].read(str(value))
            return {"width": width, "height": height}
    reader = _asked()[axis.field].read if axis.field in _asked() else str
    # Numbers, words and files are as an order has them; the rest is written as in lines of prompts.
    return {axis.field: value} if isinstance(reader, type) else with_hires({axis.field: reader(str(value))})

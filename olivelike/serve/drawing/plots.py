"""Plots of up to three axes, and prompt matrices: the order of each cell, and the words around the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Final

from pydantic import ValidationError

from olivelike.errors import UsageError
from olivelike.runtime.pictures.sheets import PlotHeads
from olivelike.runtime.pipeline.request import SEEDS, Asked, asked_fields, with_hires
from olivelike.runtime.schedulers.scheduler_names import find_scheduler, with_schedule
from olivelike.serve.orders import CONTROL_AXES, CONTROL_AXIS, Axis, Order, PromptMatrix, axis_label

_SPEAKS_FOR_ITSELF = frozenset({"prompt_sr", "lora", "model", "scheduler", "schedule", "size"})
"""Axes whose values need no label."""


_MOST_PARTS: Final = 10
"""Parts of a prompt matrix that are there or not: more are a thousand pictures."""
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
    """Return the cells of an order, row by row. Raises `UsageError` for a value that its field can't have.

    Of several initial pictures, each is a cell.
    """
    plain = order.model_copy(update=dict.fromkeys(("x", "y", "z")))
    if order.init_images:
        alone = plain.model_copy(update={"init_images": (), "different_seeds": False})
        return [
            Cell(alone.model_copy(update={"init_image": one, **_seeds(order, number)}), (0, 0, 0))
            for number, one in enumerate(order.init_images)
        ]
    if order.prompt_matrix is not None:
        return _matrix_cells(plain.model_copy(update={"prompt_matrix": None}), order.prompt_matrix)
    found = []
    sides = [list(enumerate(axis.values if axis else (None,))) for axis in (order.z, order.y, order.x)]
    for (layer, deep), (row, down), (column, across) in product(*sides):
        cell = plain
        chosen = ((order.x, across), (order.y, down), (order.z, deep))  # As A1111 goes on.
        for axis, value in sorted(chosen, key=lambda one: _TURNS.get(one[0].field, 0) if one[0] else 0):
            cell = _changed(cell, axis, value)
        found.append(Cell(cell, (layer, row, column)))
    return found


def count_cells(order: Order) -> int:
    """Return how many cells an order has. Raises `UsageError` for a prompt matrix that is none."""
    if order.prompt_matrix is not None:
        return 1 << sum(map(len, _halves(order, order.prompt_matrix)))
    return len(order.init_images) or prod(len(axis.values) for axis in order.axes)


def heads(order: Order) -> PlotHeads:
    """Return the words around the cells of a plot."""
    chosen = {axis.field for axis in order.axes}
    told = [
        "" if order.seed is None or "seed" in chosen else f"Seed {order.seed}",
        "" if order.model is None or "model" in chosen else order.model,
    ]
    title = "\n".join([order.prompt.replace("\n", " "), ", ".join(part for part in told if part)])
    if order.prompt_matrix is not None:
        across, down = (
            [", ".join(one) or "\u2013" for one in _choices(half)] for half in _halves(order, order.prompt_matrix)
        )
        return PlotHeads(title, across, down)
    return PlotHeads(title, _labels(order.x), _labels(order.y), _labels(order.z))


def _seeds(order: Order, number: int) -> dict[str, int | None]:
    """Return the seeds of an initial picture by its number, where they differ from the first one's."""
    if order.seed is None or not order.different_seeds:
        return {}
    seed, varied = order.seeds_of(number * order.num_images, order.seed, order.variation_seed)
    return {"seed": seed, "variation_seed": varied}


def _matrix_cells(order: Order, matrix: PromptMatrix) -> list[Cell]:
    """Return a cell for each choice of parts, in the order of A1111's `scripts/prompt_matrix.py`."""
    field = "negative_prompt" if matrix.negative else "prompt"
    first, *_ = _parts(order, matrix)
    across, down = map(_choices, _halves(order, matrix))
    found = []
    for number, ((row, below), (column, beside)) in enumerate(product(enumerate(down), enumerate(across))):
        words = [*beside, *below, first] if matrix.at_start else [first, *beside, *below]
        seed = {} if order.seed is None or not matrix.different_seeds else {"seed": (order.seed + number) % SEEDS}
        text = (", " if matrix.delimiter == "comma" else " ").join(words)
        found.append(Cell(order.model_copy(update={field: text, **seed}), (0, row, column)))
    return found


def _parts(order: Order, matrix: PromptMatrix) -> list[str]:
    """Return the parts of a prompt, which `|` parts outside of brackets. Raises `UsageError` if there is one alone."""
    text = (order.negative_prompt if matrix.negative else order.prompt) or ""
    parts, depth = [""], 0
    for mark in text:
        depth = max(0, depth + (mark in "([{") - (mark in ")]}"))
        if mark == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += mark
    if len(parts) == 1 or len(parts) > _MOST_PARTS + 1:
        raise UsageError(
            f"prompt_matrix: the {'negative prompt' if matrix.negative else 'prompt'} has {len(parts)} parts; write "
            f"2 to {_MOST_PARTS + 1}, with | between them"
        )
    return [parts[0].strip(), *(part.strip().strip(",") for part in parts[1:])]


def _halves(order: Order, matrix: PromptMatrix) -> tuple[list[str], list[str]]:
    """Return the parts that may be there or not: along the columns, and along the rows."""
    _, *parts = _parts(order, matrix)
    half = (len(parts) + 1) // 2
    return parts[:half], parts[half:]


def _choices(parts: Sequence[str]) -> list[list[str]]:
    return [[part for bit, part in enumerate(parts) if number >> bit & 1] for number in range(1 << len(parts))]


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
        raise UsageError(f"{what}: {error.errors()[0]['msg'].replace('Input should be', 'must be')}") from None
    except (ValueError, UsageError) as error:
        said = str(error)
        head = f"axis {axis.field}" if repr(value) in said else what
        raise UsageError(said if said.startswith("axis ") else f"{head}: {said}") from None


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
        case "hires" if str(value) in ("0", "1"):
            return {"hires": None}
        case "upscaler" if value in ("None", "Latent"):
            return {"upscaler": None}
        case "scheduler":
            find_scheduler(str(value))
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

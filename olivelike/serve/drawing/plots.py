"""X/Y plots: the order of each cell."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from olivelike.errors import UsageError
from olivelike.runtime.pipeline.request import parse_size
from olivelike.serve.orders import Axis, Order


@dataclass(frozen=True)
class Cell:
    """A place of a plot, or a whole order that has none."""

    order: Order
    """Without axes."""
    across: str
    """Words for the value of `x` here."""
    down: str


def cells(order: Order) -> list[Cell]:
    """Return the cells of an order, row by row. Raises `UsageError` for a value that its field can't have."""
    plain = order.model_copy(update={"x": None, "y": None})
    return [
        Cell(_changed(_changed(plain, order.y, down), order.x, across), _label(order.x, across), _label(order.y, down))
        for down in (order.y.values if order.y else (None,))
        for across in (order.x.values if order.x else (None,))
    ]


def _label(axis: Axis | None, value: str | float | None) -> str:
    if axis is None:
        return ""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shown if axis.field in ("prompt_sr", "lora", "model", "scheduler") else f"{axis.field} {shown}"


def _changed(order: Order, axis: Axis | None, value: str | float | None) -> Order:
    if axis is None or value is None:
        return order
    what = f"axis {axis.field}: {value!r}"
    changes: dict[str, object]
    if axis.field == "size":
        width, height = parse_size(str(value))
        changes = {"width": width, "height": height}
    elif axis.field == "lora":
        name, _, weight = str(value).rpartition(":")
        chosen = {"name": name, "weight": weight} if name else {"name": weight}
        changes = {"loras": [*(dict(one) for one in order.loras), chosen]}
    elif axis.field == "prompt_sr":
        searched = str(axis.values[0])
        texts = {"prompt": order.prompt, "negative_prompt": order.negative_prompt}
        if not searched or not any(searched in text for text in texts.values() if text):
            raise UsageError(f"axis prompt_sr: {searched!r} is not in the prompts, so nothing can take its place")
        changes = {name: text.replace(searched, str(value)) for name, text in texts.items() if text}
    else:
        changes = {axis.field: value}
    try:
        return Order.model_validate({**order.model_dump(exclude_unset=True), **changes})
    except ValidationError as error:
        raise UsageError(f"{what}: {error.errors()[0]['msg']}") from None

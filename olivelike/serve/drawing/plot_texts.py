"""A1111's text of a grid: which script made it, and with which values; written, and read back."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, Final

from olivelike._untrusted import Json
from olivelike.runtime.pipeline.request import axes
from olivelike.serve.orders import AXES, Axis, Order, axis_label

PLOT: Final = "X/Y/Z plot"
MATRIX: Final = "Prompt matrix"
SCRIPT: Final = "Script"
_THEIRS: Final = {
    "seed": "Seed", "variation_seed": "Var. seed", "variation_strength": "Var. strength", "steps": "Steps",
    "hires_steps": "Hires steps", "guidance_scale": "CFG Scale", "prompt_sr": "Prompt S/R", "scheduler": "Sampler",
    "schedule": "Schedule type", "model": "Checkpoint name", "clip_layer": "Clip skip", "strength": "Denoising",
    "upscaler": "Hires upscaler", "size": "Size", "eta": "Eta",
}  # fmt: skip
"""Axes as `scripts/xyz_grid.py` calls them; others have our own label."""
_SIDES: Final = ("x", "y", "z")


def script_fields(order: Order, other: Mapping[str, str]) -> Json:
    """Return what changes in the record of an order's first picture for that of its grid."""
    if order.prompt_matrix is not None:
        asked = {"negative_prompt" if order.prompt_matrix.negative else "prompt"}
        return {**{name: getattr(order, name) for name in asked}, "other": {**other, SCRIPT: MATRIX}}
    told = {}
    for side in _SIDES:
        axis: Axis | None = getattr(order, side)
        if axis is not None:
            told[f"{side.upper()} Type"] = _THEIRS.get(axis.field) or axis_label(axis.field)
            told[f"{side.upper()} Values"] = _listed(axis.values)
    return {"other": {**other, SCRIPT: PLOT, **told}} if told else {}


def take_script(settings: dict[str, str]) -> Json:
    """Take a script that is done here out of A1111's settings; return its axes, with their values as text.

    A prompt matrix is an axis of columns without values.
    """
    fields: dict[str, Any] = {}
    match settings.get(SCRIPT, "").casefold():
        case "prompt matrix":
            fields["x"] = {"field": "prompt_matrix", "text": ""}
        case "x/y/z plot":
            named = {_label(name): name for name in (*AXES, *axes())}
            named |= {label.casefold(): name for name, label in _THEIRS.items()}
            for side in _SIDES:
                kind, values = settings.get(f"{side.upper()} Type"), settings.get(f"{side.upper()} Values")
                if kind is None or values is None or kind.casefold() == "nothing":
                    continue
                if (name := named.get(kind.casefold())) is None:
                    return {}
                fields[side] = {"field": name, "text": values}
        case _:
            return {}
    if fields:
        for name in [SCRIPT, *(f"{start}{side.upper()} {what}" for side in _SIDES for start, what in _ABOUT)]:
            settings.pop(name, None)
    return fields


_ABOUT: Final = (("", "Type"), ("", "Values"), ("Fixed ", "Values"))


def _label(name: str) -> str:
    return axis_label(name).casefold()


def _listed(values: tuple[str | float, ...]) -> str:
    """Return values as A1111 and the page take them: one with a comma stands in double quotes."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow([f"{one:g}" if isinstance(one, float) else one for one in values])
    return buffer.getvalue().replace(",", ", ") if not any("," in str(one) for one in values) else buffer.getvalue()

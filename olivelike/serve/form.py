"""Facts for the page on a request's fields and on records, from their declarations."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import cache
from typing import Final

from olivelike._untrusted import Json, JsonView
from olivelike.runtime.pictures.picture_record import fields_of_files, label_of, told_of
from olivelike.runtime.pictures.preprocessors import PREPROCESSORS
from olivelike.runtime.pipeline.request import LABELS, Control, Request, axes
from olivelike.serve.languages import compact, words
from olivelike.serve.orders import AXES, CONTROL_AXES, CONTROL_AXIS, MOST_CONTROLS, Order, axis_label


def bounds() -> dict[str, Json]:
    """Return default, bounds, type and words of an order's fields by their names, as its schema has them."""
    return _bounds_of(Order.model_json_schema()["properties"])


def _bounds_of(schemas: Json) -> dict[str, Json]:
    return {name: _bounds(schema) for name, schema in schemas.items()}


def _bounds(schema: Json) -> Json:
    one = next((one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"), schema)
    least = one.get("minimum", one.get("exclusiveMinimum"))
    found = {"min": least, "max": one.get("maximum"), "type": one.get("type"), "enum": one.get("enum")}
    return {"default": schema.get("default"), **{name: value for name, value in found.items() if value is not None}}


def _number(bounds_of: Json) -> str | None:
    """Return the kind of number that a field takes, if it takes one."""
    kind: str | None = bounds_of.get("type")
    return kind if kind in ("integer", "number") else None


@cache
def form(language: str = "en") -> Json:
    """Return what the page makes its form, its plots and its recipes of, as JSON, in a language of the page.

    `fields` are those that the form has: name, label, group, bounds, default, the `value` that the form begins with
    where that is another, the field that it is `about`, and whether a record has it, or has it always. `preprocessors`
    are of control pictures, with names and usual values of thresholds, and `control` the fields of each of these,
    choices first. `axes` are those of plots, with `units` where there is one more for each of so many pictures.
    `record` is how a record is told, as `info` does. What is nothing, no, or the usual is left out.
    """
    told = {one.name: told_of(one) for one in fields_of_files()}
    known, translated = bounds(), words(language)
    entered = {one.name: one.metadata["entered"] for one in fields(Request) if one.metadata.get("entered")}
    about = {one.name: one.metadata["about"] for one in fields(Request) if one.name in entered}

    def t(text: str) -> str:
        return translated.get(text, text)

    chosen = [
        {
            **known.get(name, {}), "name": name, "label": t(one.label or LABELS[name]), "group": one.group,
            "step": one.step if one.step != 1 else None, "value": one.value, "words": [t(word) for word in one.words],
            "hint": t(one.hint), "about": about[name], "recorded": name in told,
            "always": name in told and told[name].always,
        }
        for name, one in entered.items()
    ]  # fmt: skip
    # Those that have a place of their own in the form are the usual ones.
    first, last = ([name for name in axes() if bool(entered[name].group) is more] for more in (False, True))
    record = [
        {
            "name": one.name, "label": t(label), "text": t(told[one.name].text or ""),
            "default": None if one.default is MISSING else one.default,
        }
        for one in fields_of_files()
        if (label := label_of(one)) is not None
    ]  # fmt: skip
    unit = _bounds_of(Order.model_json_schema()["$defs"]["_Control"]["properties"])
    plotted = [
        {
            "name": name, "label": t(axis_label(name)),
            "type": _number(unit["strength"] if name == CONTROL_AXIS else known.get(name, {})),
            "units": MOST_CONTROLS if name == CONTROL_AXIS else None,
        }
        for name in (*first, *AXES, *last) if name not in CONTROL_AXES
    ]  # fmt: skip
    made = [
        {
            "name": name, "label": t(one.label),
            "thresholds": [(t(label), value) for label, value in zip(one.named, one.thresholds, strict=True)],
        }
        for name, one in PREPROCESSORS.items()
    ]  # fmt: skip
    controls = [
        {**unit[one.name], "name": one.name, "label": t(one.metadata["label"]), "step": one.metadata["entered"].step}
        for one in fields(Control) if one.metadata.get("entered")
    ]  # fmt: skip
    controls.sort(key=lambda one: one["type"] != "string")
    rows = {"fields": chosen, "axes": plotted, "preprocessors": made, "control": controls, "record": record}
    return {name: [_brief(one) for one in found] for name, found in rows.items()}


def declared(language: str = "en") -> str:
    """Return the module that gives `form` to the page; there a row that has no label is called as its field."""
    found = form(language)
    called = {one["name"]: one["label"] for one in found["fields"]}
    for part in ("axes", "record"):
        known = [(row, called.get(row["name"])) for row in found[part]]
        found = {**found, part: [{**row, "label": None} if row["label"] == label else row for row, label in known]}
    short = {part: [_brief(row) for row in rows] for part, rows in found.items()}
    plain = _KEY.sub(r"\1:", compact(short))
    return f"export const FORM = {plain};\n{_CALLED}"


_KEY: Final = re.compile(r'(?<!\\)"([a-z_]+)":')
"""A key that JavaScript needs no quotes for; those in texts have a backslash."""
_CALLED: Final = (
    "for (const row of [...FORM.axes, ...FORM.record]) "
    "row.label ??= FORM.fields.find(({ name }) => name === row.name).label;\n"
)


def _brief(row: JsonView) -> Json:
    """Return what a row says beyond the usual."""
    return {name: value for name, value in row.items() if value is not False and value not in (None, "", [], ())}

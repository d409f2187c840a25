"""Writes `docs/request-options.md`, what can be asked for of pictures, from the fields of a request."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.families import FAMILIES
from olivelike.runtime.pictures.picture_record import fields_of_files, label_of
from olivelike.runtime.pipeline.request import CHOICES, Request, asked_fields, axes
from olivelike.serve.form import bounds
from olivelike.serve.orders import AXES

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.request import Asked

PAGE = Path(__file__).parents[1] / "docs" / "request-options.md"
_INTRODUCTION = """# Options of pictures

What can be asked for of a picture, everywhere in the same words: as an option of `olivelike generate`, in lines of
prompts, as a field of a `Request` in Python and of an order at a server, and in the record that a picture carries.
`python tools/request_options.py` writes this page from the fields. What they do is on the pages about
[generating](generate.md) and [pictures](pictures.md). Bounds of whole numbers, and of texts' lengths, are a server's;
those of other numbers hold everywhere.
"""
_PLOTS = """## Sides of a plot
Fields that change along `x`, `y` or `z` of an order at a [server](serve.md): {}.
"""
_USUAL = FAMILIES["sd1"].usual
_TITLES = "| option | in lines also | field | default | bounds | in records | meaning |"


def page() -> str:
    """Return the page as it should be."""
    groups: dict[str, list[str]] = {}
    for name, asked in asked_fields():
        if asked.help:
            groups.setdefault(asked.group, []).append(_row(name, asked))
    tables = ("\n".join([f"## {title}", _TITLES, "| --- " * 7 + "|", *rows]) + "\n" for title, rows in groups.items())
    sides = ", ".join(f"`{name}`" for name in (*axes(), *AXES))
    return "\n".join([_INTRODUCTION, *tables, _PLOTS.format(sides)])


def _row(name: str, asked: Asked) -> str:
    told = {one.name: label_of(one) for one in fields_of_files()}
    default = next(one.default for one in fields(Request) if one.name == name)
    cells = (
        f"`--{asked.name}{f' {asked.metavar}' if asked.metavar else ''}`",
        ", ".join(f"`--{alias}`" for alias in asked.aliases),
        f"`{name}`",
        "" if default is None else f"`{json.dumps(default)}`" + (", or the family's" if name in _USUAL else ""),
        _bounds(bounds()[name]) if name in CHOICES else "",
        told.get(name) or "",
        asked.help,
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _bounds(known: dict[str, Any]) -> str:
    if words := known.get("enum"):
        return ", ".join(f"`{word}`" for word in words)
    least, most = known.get("min"), known.get("max")
    if most is None:
        return "" if least is None else f"from {least}"
    return f"{least} to {most:,}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")

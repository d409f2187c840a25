"""Writes `docs/a1111-fields.md`, what becomes of each field and option of A1111's API, from the list of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from olivelike.serve.api.a1111_fields import BODIES, SITUATIONS, Field

PAGE = Path(__file__).parents[1] / "docs" / "a1111-fields.md"
_INTRODUCTION = """# A1111's fields

What [`olivelike serve`](serve.md#a1111) makes of each field of A1111's bodies, and of each option, which
`override_settings` has too. Names and defaults are those of its version 1.10.1. `python tools/a1111_fields.py` writes
this page from the list that the server reads.

* **done**: as there, within what the note says.
* **no effect**: taken, and named in `warnings` of the answer with another value than the default. So is a field of no
  list.
* **refused**: status 422 with a value that would make another picture there; with `--ignore-unsupported` it is left out
  and named in `warnings`. What acts in some pictures alone is refused for these.
"""


def page() -> str:
    """Return the page as it should be."""
    return "\n".join([_INTRODUCTION, *(_section(route, fields) for route, fields in BODIES.items())])


def _section(route: str, fields: Mapping[str, Field]) -> str:
    lines = [f"## {route}", "| field | default | here | note |", "| --- | --- | --- | --- |"]
    for name, field in sorted(fields.items(), key=lambda one: (one[1].state, one[0].lower())):
        also = "; also " + ", ".join(f"`{json.dumps(value)}`" for value in field.also) if field.also else ""
        notes = [note for note in (SITUATIONS.get(field.acts), field.note) if note]
        cells = (f"`{name}`", f"`{json.dumps(field.default)}`{also}", field.state, "; ".join(notes))
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")

"""Writes `docs/pass-options.md`, the options of the built-in passes, from their classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.workflow.passes import Registry
from olivelike.workflow.passes.pass_description import describe_pass, pass_options

if TYPE_CHECKING:
    from olivelike.workflow.passes import PassEntry

PAGE = Path(__file__).parents[1] / "docs" / "pass-options.md"
_INTRODUCTION = """# Pass options

The built-in passes and what a workflow can tell each. `olivelike passes show NAME` says the same of any pass, plugins
included. `python tools/pass_options.py` writes this page from the classes.
"""


def page() -> str:
    """Return the page as it should be."""
    entries = Registry.built_in().entries()
    return "\n".join([_INTRODUCTION, *(_section(entry) for entry in entries)])


def _section(entry: PassEntry) -> str:
    found, options = describe_pass(entry), pass_options(entry)
    facts = {"reads": found.reads, "writes": found.writes, "components": found.components}
    declared = [f"{name} {', '.join(f'`{value}`' for value in values)}" for name, values in facts.items() if values]
    lines = [f"## {found.name}", found.description, "", "; ".join(declared).capitalize() + ".", ""]
    if options:
        lines += ["| option | type | default | meaning |", "| --- | --- | --- | --- |"]
    for option in options:
        default = "required" if option.required else f"`{json.dumps(option.default)}`"
        cells = (f"`{option.name}`", f"`{option.type}`", default, option.help)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")

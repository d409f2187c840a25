"""Asks whether the plugins of a workflow file may run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from olivelike._untrusted import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.workflow.passes.allowed_plugins import Answer, ListedPlugin

_ANSWERS: dict[str, Answer] = {"y": "yes", "yes": "yes", "a": "always", "always": "always"}


def ask(plugins: Sequence[ListedPlugin]) -> Answer:
    """Ask on the terminal; where there is none, the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "no"
    # A name with a line feed could make the question say something else.
    lines = [f"  {one_line(str(plugin.path))}  ({one_line(plugin.listed_at)})" for plugin in plugins]
    sys.stderr.write(
        "This workflow runs code that you have not allowed, or that changed since:\n"
        + "\n".join(lines)
        + "\n"
        "Such code can do all that you can. Read it first if it is not yours.\n"
        "Run it? [y]es, [a]lways for these folders, changed code too, [N]o: "
    )
    sys.stderr.flush()
    return _ANSWERS.get(sys.stdin.readline().strip().lower(), "no")

"""Asks whether the plugins of a workflow file may run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.registry.allowed_plugins import Answer, ListedPlugin

_ANSWERS: dict[str, Answer] = {"y": "yes", "yes": "yes", "a": "always", "always": "always"}


def ask(plugins: Sequence[ListedPlugin]) -> Answer:
    """Ask on the terminal; where there is none, the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "no"
    lines = [f"  {_shown(str(plugin.path))}  ({_shown(plugin.listed_at)})" for plugin in plugins]
    sys.stderr.write(
        "This workflow runs code that you have not allowed, or that changed since:\n"
        + "\n".join(lines)
        + "\n"
        "Such code can do all that you can. Read it first if it is not yours.\n"
        "Run it? [y]es, [a]lways for these folders, changed code too, [N]o: "
    )
    sys.stderr.flush()
    return _ANSWERS.get(sys.stdin.readline().strip().lower(), "no")


def _shown(text: str) -> str:
    """Return text without control characters, which could make the question say something else."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)

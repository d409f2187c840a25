"""Writing a workflow file for one source, as a person would."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z./~_][\w./~@+-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})
"""Read as something else than text, by this or another YAML reader."""


@dataclass(frozen=True)
class Draft:
    """What goes into a new workflow file; places are as the file will say them."""

    name: str
    source: str
    target: str
    components: Mapping[str, Sequence[str]]
    """The chain of passes of each component."""
    output: str
    precision: str | None = None
    prediction: str | None = None
    vae: str | None = None
    loras: Sequence[tuple[str, float]] = ()
    """File and weight of each."""
    embeddings: Sequence[str] = ()
    layout: str | None = None


def workflow_text(draft: Draft) -> str:
    """Return a workflow file, YAML, that says what the draft does."""
    source: Any = draft.source
    if draft.prediction is not None:
        source = {"path": draft.source, "prediction": draft.prediction}
    target: Any = draft.target
    if draft.precision is not None:
        target = {"provider": draft.target, "precision": draft.precision}
    lines = [f"name: {_flow(draft.name)}", f"source: {_flow(source)}"]
    if draft.vae is not None:
        lines.append(f"vae: {_flow(draft.vae)}")
    if draft.loras:
        lines.append("loras:")
        lines += [f"  - {_flow({'file': file, 'weight': weight})}" for file, weight in draft.loras]
    if draft.embeddings:
        lines.append("embeddings:")
        lines += [f"  - {_flow(file)}" for file in draft.embeddings]
    lines += [f"target: {_flow(target)}", "components:"]
    width = max(map(len, draft.components))
    for component, chain in draft.components.items():
        key = f"{component}:"
        lines.append(f"  {key:<{width + 1}} [{', '.join(chain)}]")
    if draft.layout is not None:
        lines.append(f"layout: {_flow(draft.layout)}")
    return "\n".join([*lines, f"output: {_flow(draft.output)}"]) + "\n"


def _flow(value: Any) -> str:
    """Return a value in flow style; text in quotes where it needs them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else json.dumps(value, ensure_ascii=False)
    return f"{value:g}"

"""Writing a workflow file as a person would."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z./~_][\w./~@+-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})
"""Read as something else than text, by this or another YAML reader."""


def workflow_text(content: Mapping[str, Any]) -> str:
    """Return a workflow file, YAML, with these keys in their order; what is `None` or an empty list is left out."""
    lines: list[str] = []
    for key, value in content.items():
        if key == "components":
            width = max(map(len, value)) + 1
            chains = (f"  {f'{component}:':<{width}} {_flow(chain)}" for component, chain in value.items())
            lines += [f"{key}:", *chains]
        elif key in ("loras", "embeddings"):
            lines += [f"{key}:", *(f"  - {_flow(item)}" for item in value)] if value else []
        elif value is not None:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Return a value on one line; text in quotes where it needs them."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
        case list():
            return f"[{', '.join(map(_flow, value))}]"
        case str() if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        case str() | bool():
            return json.dumps(value, ensure_ascii=False)
    return f"{value:g}"

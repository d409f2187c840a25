"""`<lora:NAME:WEIGHT>` in a prompt, as A1111's `modules/extra_networks.py` reads it.

Positional or named: `<lora:style:0.8>`, `<lora:style:0.5:0.8>` and `<lora:style:te=0.5:unet=0.8>`; `lyco` is the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from olivelike.errors import UsageError

_TAG: Final = re.compile(r"(\\)?<(?:lora|lyco):([^<>]+)>")
_NAMES: Final = ("te", "unet", "dyn")


@dataclass(frozen=True)
class LoraTag:
    """A LoRA that a prompt asks for."""

    name: str
    """Of its file, without suffix."""
    text_weight: float
    """For the text encoders."""
    unet_weight: float
    written: str


def take_lora_tags(prompt: str) -> tuple[str, tuple[LoraTag, ...]]:
    """Return a prompt without its tags, and the tags.

    Raises:
        UsageError: for a tag that says something else than a name and weights.
    """
    tags = tuple(_read(match[0], match[2]) for match in _TAG.finditer(prompt) if not match[1])
    return _TAG.sub(lambda match: match[0][1:] if match[1] else "", prompt), tags


def _read(written: str, content: str) -> LoraTag:
    name, *parts = (part.strip() for part in content.split(":"))
    if not name:
        raise UsageError(f"{written}: names no LoRA; write <lora:NAME:WEIGHT>")
    numbers: dict[str, float] = {}
    for place, part in enumerate(parts):
        key, equals, text = part.rpartition("=")
        key = key if equals else _NAMES[min(place, len(_NAMES) - 1)]
        if key not in _NAMES:
            raise UsageError(f"{written}: {key} is nothing that a LoRA has here; give weights, te= and unet=")
        if key == "dyn":
            raise UsageError(
                f"{written}: a rank of its own (dyn) can't be set here; leave the last number out"
            )
        numbers[key] = _number(written, text)
    text_weight = numbers.get("te", 1.0)
    return LoraTag(name, text_weight, numbers.get("unet", text_weight), written)


def _number(written: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{written}: {text or 'nothing'} is no weight; write a number such as 0.8")
    return value

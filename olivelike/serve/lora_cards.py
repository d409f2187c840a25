"""Cards of LoRAs for people: title, base model, words that wake it, strength.

Metadata of safetensors files: https://github.com/Stability-AI/ModelSpec and kohya's `ss_…` keys. `NAME.json` beside a
file is what A1111 and Forge keep of it for their users: `description`, `sd version`, `activation text`, `preferred
weight`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from olivelike._untrusted import object_or_empty, parse_json

_MOST_NOTES: Final = 1 << 20
_MOST_TAGS: Final = 8 << 20
_MOST_WORDS: Final = 12
_MOST_LETTERS: Final = 100_000
_LONGEST: Final = 300


class LoraCard(BaseModel):
    """Facts for people; empty where nobody wrote them down."""

    model_config = ConfigDict(frozen=True)
    title: str = ""
    base_model: str = ""
    trigger_words: tuple[str, ...] = ()
    """Words that it was trained with: those that its author named, or else the most frequent ones."""
    weight: float | None = None
    """Strength that its user prefers."""
    description: str = ""


def card_of(path: Path, metadata: Mapping[str, str]) -> LoraCard:
    """Return the card of a file, of its metadata and what lies beside it."""
    notes = object_or_empty(path.with_suffix(".json"), _MOST_NOTES)
    told = {key: value for key, value in metadata.items() if value not in ("", "None")}
    words = notes.get("activation text") or told.get("modelspec.trigger_phrase") or ""
    return LoraCard(
        title=_text(told.get("modelspec.title") or told.get("ss_output_name")),
        base_model=_text(
            notes.get("sd version") or told.get("ss_base_model_version") or told.get("modelspec.architecture")
        ),
        trigger_words=tuple(_words(words) if isinstance(words, str) and words else _frequent(told)),
        weight=_weight(notes.get("preferred weight")),
        description=_text(notes.get("description") or told.get("modelspec.description")),
    )


def _weight(value: object) -> float | None:
    """Return a strength; `None` for 0, which A1111 writes where its user has none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        weight = float(value)
    except OverflowError:  # An integer of hundreds of digits.
        return None
    return weight if weight and math.isfinite(weight) else None


def _text(value: object) -> str:
    return " ".join(value.split())[:_LONGEST] if isinstance(value, str) and value != "Unknown" else ""


def _words(text: str) -> list[str]:
    parts = [_text(part) for part in text[:_MOST_LETTERS].split(",")]
    return list(dict.fromkeys(part for part in parts if part))[:_MOST_WORDS]


def _frequent(metadata: Mapping[str, str]) -> list[str]:
    """Return the tags that most pictures of the training have, of kohya's counts by folder."""
    text = metadata.get("ss_tag_frequency", "")
    if not text or len(text) > _MOST_TAGS:
        return []
    counts = Counter[str]()
    try:
        for tags in parse_json(text).values():
            counts.update({_text(tag): int(count) for tag, count in tags.items()})
    except (ValueError, TypeError, AttributeError, OverflowError, json.JSONDecodeError):
        return []
    del counts[""]
    return [tag for tag, _ in counts.most_common(_MOST_WORDS // 2)]

"""What trainers leave in a LoRA's header: trigger words, names, the base that it was trained on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 20


@dataclass(frozen=True)
class TrainingNotes:
    """Notes for people; nothing in the merge depends on them."""

    name: str | None
    """Title or output name."""
    network: str | None
    """The trainer's module, with the algorithm if it names one, such as `lycoris.kohya (loha)`."""
    base_model: str | None
    """The checkpoint that it was trained on."""
    trigger_words: tuple[str, ...]
    """Stated trigger phrases first, then the most frequent tags of the training pictures."""


def training_notes(metadata: Mapping[str, str]) -> TrainingNotes:
    """Return what a header's metadata says, by kohya's `ss_*` keys and Stability's `modelspec.*`.

    Sources: https://github.com/kohya-ss/sd-scripts (`train_network.py`) and
    https://github.com/Stability-AI/ModelSpec. Keys that are damaged are left out.
    """
    network = metadata.get("ss_network_module")
    arguments = _object(metadata.get("ss_network_args"))
    if network and isinstance(arguments.get("algo"), str):
        network = f"{network} ({arguments['algo']})"
    phrases = (metadata.get("modelspec.trigger_phrase"), metadata.get("ss_trigger_words"))
    stated = [word.strip() for phrase in phrases if phrase for word in phrase.split(",")]
    words = dict.fromkeys([*filter(None, stated), *_frequent_tags(metadata.get("ss_tag_frequency"))])
    return TrainingNotes(
        _first(metadata, "modelspec.title", "ss_output_name"),
        network,
        _first(metadata, "ss_sd_model_name", "ss_base_model_version", "modelspec.architecture"),
        tuple(words),
    )


def _first(metadata: Mapping[str, str], *keys: str) -> str | None:
    return next((metadata[key] for key in keys if metadata.get(key, "None") not in ("", "None")), None)


def _frequent_tags(text: str | None) -> list[str]:
    """Return the most frequent tags over all folders of training pictures, the most frequent first."""
    counts: Counter[str] = Counter()
    for folder in _object(text).values():
        if isinstance(folder, dict):
            counts.update({tag.strip(): n for tag, n in folder.items() if isinstance(n, int)})
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [tag for tag, _ in ranked if tag][:_MOST]


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = parse_json(text) if text else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

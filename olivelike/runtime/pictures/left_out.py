"""Parts of a recipe that are not taken over, in one sentence, for page, commands and API."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from olivelike._untrusted import one_line
from olivelike.runtime.pictures.picture_record import PictureRecord, told_in_words, unnamed_loras

_LONGEST: Final = 60
"""Characters of a name or value that are shown; `olivelike info` has all."""
_MOST: Final = 40
"""Settings that are named."""
_SAME_ANYWAY: Final = frozenset(
    {
        "template", "negative template", "batch size", "batch pos", "created date", "user", "created_by", "hashes",
        "vae hash", "generation time", "date", "civitai metadata", "clip skip: 1", "rng: cpu", "emphasis: original",
        "app_version", "creator",
    }
)  # fmt: skip
"""Settings, some with a value, in small letters, that change no picture here: what was before choices, and labels."""
_OFF: Final = frozenset({"false", "none", "disable", "disabled", "off", ""})
"""Values of what was not used."""


def left_out(record: PictureRecord, *, unable: Collection[str] = (), started: bool = False) -> str | None:
    """Return a sentence that names every setting of a recipe that is not taken over; `None` if all are.

    Args:
        record: what a picture says of itself.
        unable: fields of the record that whoever acts on it can't take.
        started: whether a picture to start from is given.
    """
    found = list(_settings(record, unable, started=started))
    if not found:
        return None
    more = f", and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"not taken over, so that the picture may be another: {', '.join(found[:_MOST])}{more}"


def _settings(record: PictureRecord, unable: Collection[str], *, started: bool) -> Iterator[str]:
    for name, value in record.other.items():
        plain = " ".join(name.casefold().split())
        same = plain in _SAME_ANYWAY or f"{plain}: {value.casefold()}" in _SAME_ANYWAY
        if not same and value.strip().casefold() not in _OFF:
            yield f"{_shown(name)} {_shown(value)}"
    if record.strength is not None and record.init_image is None and record.hires is None and not started:
        yield f"Denoising strength {record.strength:g} of a picture that is not named"
    for lora in unnamed_loras(record):
        if lora.weight is None:
            yield f"strength of LoRA {_shown(lora.name)}, which is not told"
    for name, label, text in told_in_words(record):
        if name in unable:
            yield f"{label} {_shown(text)}"


def _shown(value: object) -> str:
    text = " ".join(one_line(str(value).replace("\n", " ")).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

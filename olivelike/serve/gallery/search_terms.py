"""Reading of what is typed into the gallery's search: words, and terms such as `seed:7` or `-lora:NAME`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from olivelike._text import did_you_mean
from olivelike.errors import UsageError
from olivelike.serve.gallery.gallery import Filter

_NAMES: Final = {"sampler": ", sampler", "schedule": ", schedule type", "upscaler": " upscaler"}
"""Terms whose value is a name or its beginning → what stands before it in A1111's text of a picture."""
_NUMBERS: Final = {
    "steps": "\nsteps", "cfg": ", cfg scale", "denoising": ", denoising strength", "hires": ", hires upscale",
}  # fmt: skip
"""Terms whose value is a number → likewise."""
_ANSWERS: Final = {"yes": True, "no": False}
_KINDS: Final = {"sheet": True, "picture": False}
_TERMS: Final = (
    "seed", "size", "model", "lora", *_NAMES, *_NUMBERS, "negative", "flagged", "favourite", "date", "kind", "job"
)  # fmt: skip
_PART: Final = re.compile(r'(-?)(?:([a-z_]+):(?:"([^"]*)"|([^\s"]*))|"([^"]+)"|([^\s"]+))')
"""Whether it is to be absent; a term, and its value in quotes or without; words in quotes, or one word."""
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_SIZE: Final = re.compile(r"(\d{1,6})x(\d{1,6})")
_NUMBER: Final = re.compile(r"-?\d{1,9}(\.\d{1,9})?")


def searched(text: str = "", model: str | None = None) -> Filter:
    """Return what a text of words and terms asks for: all of them, but none of those with a `-` in front.

    What stands in quotes is one word, or one value. Raises `UsageError` for a term that is none, or says nothing.
    """
    having, lacking, sheets = [Filter(exact={"model": model})] if model else [], list[Filter](), False
    for sign, name, quoted, bare, phrase, word in _PART.findall(text):
        if name == "kind":
            sheets = _one_of(name, quoted or bare, _KINDS) != bool(sign)
            continue
        one = _asked_by(name, quoted or bare) if name else Filter(words=(phrase or word,))
        (lacking if sign else having).append(one)
    return Filter(having=tuple(having), lacking=tuple(lacking), sheets=sheets)


def _asked_by(name: str, value: str) -> Filter:
    if name not in _TERMS:
        raise UsageError(
            f'{name}: is no term of the search; words stand in quotes if they have a colon, "{name}:{value}"; '
            + did_you_mean(name, _TERMS, "terms")
        )
    if not value:
        raise UsageError(f"{name}: has no value; write {name}:VALUE")
    if name in _NAMES:
        return Filter(words=(f"{_NAMES[name]}: {value}",))
    if name in _NUMBERS:
        if not _NUMBER.fullmatch(value):
            raise UsageError(f"{name}:{value} is no number; write one such as {name}:2")
        return Filter(words=(f"{_NUMBERS[name]}: {float(value):.12g},",))
    if name == "size":
        if not (size := _SIZE.fullmatch(value)):
            raise UsageError(f"size:{value} is no size; write one such as size:512x768")
        return Filter(exact={"width": int(size[1]), "height": int(size[2])})
    if name == "date":
        if not _DAY.fullmatch(value):
            raise UsageError(f"date:{value} is no day; write one such as date:2026-11-26")
        return Filter(day=value)
    if name in ("flagged", "favourite"):
        answer = _one_of(name, value, _ANSWERS)
        return Filter(flagged=answer) if name == "flagged" else Filter(favourite=answer)
    if name == "lora":
        return Filter(lora=value)
    if name == "negative":
        return Filter(negative=value)
    if name == "seed" and value.isdecimal() and int(value) >= 2**64:
        raise UsageError(f"seed:{value} is none; seeds have 64 bits")
    return Filter(exact={name: value})


def _one_of(name: str, value: str, words: Mapping[str, bool]) -> bool:
    if value not in words:
        raise UsageError(f"{name}:{value} says nothing; write {' or '.join(f'{name}:{word}' for word in words)}")
    return words[value]

r"""A1111's prompt syntax: `(more)`, `[less]`, `(as much:1.3)`, `BREAK`, `\(` for a bracket that is text, LoRA tags.

The rules are those of `parse_prompt_attention` in A1111's `modules/prompt_parser.py`
(https://github.com/AUTOMATIC1111/stable-diffusion-webui), with two differences: `BREAK` inside brackets is a break
there too, and a weight that is no number is text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from olivelike.errors import UsageError

_STRONGER = 1.1
_WEAKER = 1 / 1.1

_PIECE = re.compile(
    r"""
    \\[()\[\]\\]?  |                                     # an escaped bracket; a lone backslash vanishes
    :\s*(?P<weight>[+-]?(?:\d+\.?\d*|\.\d+))\s*\)  |
    [()\[\]]  |
    [^\\()\[\]:]+  |
    :
    """,
    re.VERBOSE,
)
_BREAK_WORD = re.compile(r"\bBREAK\b")
_LONGEST = 20_000
"""Characters of a prompt: 260 chunks of a text encoder."""
_LARGEST_WEIGHT = 10_000.0


@dataclass(frozen=True)
class Fragment:
    """A stretch of text with one weight."""

    text: str
    weight: float


class Break(Enum):
    """The end of a chunk, written as `BREAK`."""

    BREAK = "BREAK"


BREAK: Final = Break.BREAK
PromptPart = Fragment | Literal[Break.BREAK]


def parse_prompt(text: str, *, prompt_weights: bool = True) -> tuple[PromptPart, ...]:
    """Split a prompt into stretches of equal weight; brackets without a partner reach to the end, or are text.

    Raises `UsageError` if it is very long, or a weight very large.

    Args:
        prompt_weights: `False` takes brackets, backslashes and `BREAK` literally.

    Returns:
        Fragments and breaks in order; one empty fragment for an empty prompt. Neighbours of equal weight are one
        fragment, so that a prompt without weights is tokenized in one piece."""
    if len(text) > _LONGEST:
        raise UsageError(f"prompt: it has {len(text):,} characters, and at most {_LONGEST:,} are read")
    if not prompt_weights:
        return (Fragment(text, 1.0),)
    pieces = _Pieces()
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece.startswith("\\"):
            pieces.add(piece[1:])
        elif piece in "([":
            pieces.open(piece)
        elif match["weight"] is not None and pieces.is_open("("):
            pieces.close("(", float(match["weight"]))
        elif piece == ")" and pieces.is_open("("):
            pieces.close("(", _STRONGER)
        elif piece == "]" and pieces.is_open("["):
            pieces.close("[", _WEAKER)
        else:
            pieces.add_words(piece)
    return tuple(pieces.finish())


class _Pieces:
    """Texts with their weights so far, and where each open bracket stands."""

    def __init__(self) -> None:
        self._texts: list[str | None] = []  # None stands for a break.
        self._weights: list[float] = []
        self._opened: dict[str, list[int]] = {"(": [], "[": []}

    def add(self, text: str | None) -> None:
        self._texts.append(text)
        self._weights.append(1.0)

    def add_words(self, text: str) -> None:
        parts = _BREAK_WORD.split(text)
        for number, part in enumerate(parts):
            if number > 0:
                self.add(None)
                part = part.lstrip()  # noqa: PLW2901  (blanks around a break belong to it)
            self.add(part.rstrip() if number + 1 < len(parts) else part)

    def open(self, bracket: str) -> None:
        self._opened[bracket].append(len(self._texts))

    def is_open(self, bracket: str) -> bool:
        return bool(self._opened[bracket])

    def close(self, bracket: str, factor: float) -> None:
        for position in range(self._opened[bracket].pop(), len(self._weights)):
            self._weights[position] *= factor

    def finish(self) -> Iterator[PromptPart]:
        for bracket, factor in (("(", _STRONGER), ("[", _WEAKER)):
            while self.is_open(bracket):
                self.close(bracket, factor)
        for piece, own in zip(self._texts, self._weights, strict=True):
            if not abs(own) <= _LARGEST_WEIGHT:  # NaN is not, either
                raise UsageError(
                    f"prompt: the weight of {(piece or '')[:40]!r} is {own:g}, beyond ±{_LARGEST_WEIGHT:,.0f}; "
                    "use a smaller one"
                )
        text, weight = "", 1.0
        yielded = False
        for piece, own in zip(self._texts, self._weights, strict=True):
            # An empty piece would part two words that are tokenized as one.
            if piece == "" or (piece is not None and text and own == weight):
                text += piece
                continue
            if text:
                yield Fragment(text, weight)
            if piece is None:
                yield BREAK
            text, weight = piece or "", own
            yielded = True
        if text or not yielded:
            yield Fragment(text, weight if text else 1.0)


def shortened(prompt: str, longest: int = 60) -> str:
    """Return a prompt on one line of so many characters at most."""
    line = " ".join(prompt.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


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
    """Return a prompt without `<lora:NAME:WEIGHT>`, and these tags, as A1111's `modules/extra_networks.py` reads them.

    Positional or named: `<lora:style:0.8>`, `<lora:style:0.5:0.8>` and `<lora:style:te=0.5:unet=0.8>`; `lyco` is the
    same. Raises `UsageError` for a tag that says something else than a name and weights."""
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
            raise UsageError(f"{written}: a rank of its own (dyn) can't be set here; leave the last number out")
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

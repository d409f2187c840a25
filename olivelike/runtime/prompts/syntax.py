r"""A1111's prompt syntax: `(more)`, `[less]`, `(as much:1.3)`, `BREAK`, `\(` for a bracket that is text, LoRA tags.

The rules are those of `parse_prompt_attention` in A1111's `modules/prompt_parser.py`
(https://github.com/AUTOMATIC1111/stable-diffusion-webui), with two differences: `BREAK` inside brackets is a break
there too, and a weight that is no number is text.

Prompts that change from step to step, as A1111 writes them: `[from:to:when]`, `[to:when]`, `[from::when]`, `[a|b]`.

The grammar is that of `schedule_parser` in A1111's `modules/prompt_parser.py`, with one difference: what is no editing
stays text by itself, where A1111 takes the whole prompt as text for a `|` outside brackets.

Prompts of several parts, `a castle AND a storm :0.6`, are parted as `get_multicond_prompt_list` in the same module
does, after Composable Diffusion (https://arxiv.org/abs/2206.01714). A weight needs an `AND`: without one, `16:9` at a
prompt's end is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Final, Literal

from olivelike.errors import UsageError

_STRONGER = 1.1
_WEAKER = 1 / 1.1

_PIECE = re.compile(
    r"""
    \\[()\[\]\\]?  |                                     # an escaped bracket; a lone backslash vanishes
    :\s*(?P<weight>[+-]?(?:\d{1,500}\.?\d{0,500}|\.\d{1,500}))\s*\)  |
    [()\[\]]  |
    [^\\()\[\]:]+  |
    :
    """,
    re.VERBOSE,
)
_BREAK_WORD = re.compile(r"\bBREAK\b")
_LONGEST = 20_000
"""Characters of a prompt; `prompt_cost` bounds what they mean."""
_LARGEST_WEIGHT = 10_000.0
_MOST_OPEN = 200
"""Brackets of a kind that are open at once; within 97 the weight is beyond the largest."""


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

    Returns fragments and breaks in order; one empty fragment for an empty prompt. Neighbours of equal weight are one
    fragment, so that a prompt without weights is tokenized in one piece. Raises `UsageError` if it is very long, or a
    weight very large. `prompt_weights=False` takes brackets, backslashes and `BREAK` literally.
    """
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
        if len(self._opened[bracket]) == _MOST_OPEN:
            raise UsageError(
                f"prompt: more than {_MOST_OPEN} brackets {bracket!r} are open at once; a backslash before one leaves "
                "it as text"
            )
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
    """Name of its file, without suffix."""
    text_weight: float
    """For the text encoders."""
    unet_weight: float
    written: str


def take_lora_tags(prompt: str) -> tuple[str, tuple[LoraTag, ...]]:
    """Return a prompt without `<lora:NAME:WEIGHT>`, and these tags, as A1111's `modules/extra_networks.py` reads them.

    Positional or named: `<lora:style:0.8>`, `<lora:style:0.5:0.8>` and `<lora:style:te=0.5:unet=0.8>`; `lyco` is the
    same. Raises `UsageError` for a tag that says something else than a name and weights.
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


_TOKEN: Final = re.compile(r"\\.|[\[\]():|]|[^\\\[\]():|]+|\\", re.DOTALL)
_WHEN: Final = re.compile(r"\s*([+-]?(?:\d{1,500}\.?\d{0,500}|\.\d{1,500})(?:[eE][+-]?\d{1,5})?)\s*")
_PARTNER: Final = {"]": "[", ")": "("}


def texts_of_steps(text: str, steps: int) -> tuple[str, ...]:
    """Return what a prompt says at each step, the first one being step 1.

    `[from:to:when]` is `from` up to and with step `when`, and `to` after it; a `when` with a point is a share of the
    steps. `[a|b]` is `a` at step 1, `b` at step 2, `a` at step 3. `text` is one prompt, without `AND`; brackets of
    emphasis and escapes stay in it.
    """
    nodes = _parse(text)
    if all(isinstance(node, str) for node in nodes):
        return (text,) * steps
    return tuple("".join(_say(nodes, step, steps)) for step in range(1, steps + 1))


@dataclass(frozen=True)
class _Edited:
    before: list[_Node]
    after: list[_Node]
    when: str

    def at(self, step: int, steps: int) -> list[_Node]:
        number = float(self.when) * (steps if "." in self.when else 1)
        return self.before if step <= int(max(0.0, min(number, steps))) else self.after


@dataclass(frozen=True)
class _Alternating:
    choices: list[list[_Node]]

    def at(self, step: int, steps: int) -> list[_Node]:  # noqa: ARG002  (as `_Edited` has it)
        return self.choices[(step - 1) % len(self.choices)]


_Node = str | _Edited | _Alternating


@dataclass
class _Frame:
    """A bracket that is open, with what is in it so far, parted at its own `:` and `|`."""

    bracket: str
    parts: list[list[_Node]] = field(default_factory=lambda: [[]])
    marks: list[str] = field(default_factory=list)

    def part(self, mark: str) -> None:
        self.marks.append(mark)
        self.parts.append([])

    def flat(self) -> list[_Node]:
        """Return the bracket and what is in it as it was written."""
        nodes: list[_Node] = [self.bracket, *self.parts[0]]
        for mark, part in zip(self.marks, self.parts[1:], strict=True):
            nodes += [mark, *part]
        return nodes

    def closed(self, bracket: str) -> list[_Node]:
        """Return what the bracket means with its partner."""
        marks = "".join(self.marks)
        if self.bracket == "[" and marks and set(marks) == {"|"}:
            return [_Alternating(self.parts)]
        last = self.parts[-1]
        texts = [node for node in last if isinstance(node, str)]
        when = _WHEN.fullmatch("".join(texts)) if len(texts) == len(last) else None
        if self.bracket == "[" and when is not None and marks.endswith(":"):
            inner = _joined(self.parts[:-1], self.marks[:-1])
            if len(inner) <= 2:
                return [_Edited(inner[0] if len(inner) == 2 else [], inner[-1], when[1])]
        # Texts side by side are one, so that brackets in brackets do not carry all of their pieces along.
        together: list[_Node] = []
        for text, nodes in groupby([*self.flat(), bracket], lambda node: isinstance(node, str)):
            alike = list(nodes)
            together += ["".join(map(str, alike))] if text else alike
        return together


def _joined(parts: list[list[_Node]], marks: list[str]) -> list[list[_Node]]:
    """Put parts together that `|` stands between: within `[a:b:3]` it is text."""
    found = [list(parts[0])]
    for mark, part in zip(marks, parts[1:], strict=True):
        if mark == ":":
            found.append(list(part))
        else:
            found[-1] += [mark, *part]
    return found


def _parse(text: str) -> list[_Node]:
    frames = [_Frame("")]

    def flatten() -> None:
        for frame in frames[1:]:
            frames[0].parts[-1] += frame.flat()
        del frames[1:]

    for match in _TOKEN.finditer(text):
        mark, top = match[0], frames[-1]
        if mark in "[(":
            frames.append(_Frame(mark))
        elif mark in _PARTNER and top.bracket == _PARTNER[mark]:
            frames.pop()
            frames[-1].parts[-1] += top.closed(mark)
        elif mark in _PARTNER:
            # A bracket without its partner can't stand in one that has a meaning.
            flatten()
            frames[0].parts[-1].append(mark)
        elif mark in ":|" and top.bracket:
            top.part(mark)
        else:
            top.parts[-1].append(mark)
    flatten()
    return frames[0].parts[0]


def _say(nodes: list[_Node], step: int, steps: int) -> Iterator[str]:
    todo = nodes[::-1]
    while todo:
        node = todo.pop()
        if isinstance(node, str):
            yield node
        else:
            todo += node.at(step, steps)[::-1]


_AND: Final = re.compile(r"\bAND\b")
_WEIGHT: Final = re.compile(r"[-+]?(?:\d{1,9}\.?\d{0,9}|\.\d{1,9})")


@dataclass(frozen=True)
class PromptTerm:
    """One part of a prompt."""

    weight: float
    """Factor of its guidance."""
    texts: tuple[str, ...]
    """Its text at each step."""


def read_terms(prompt: str, steps: int, *, prompt_weights: bool = True) -> tuple[PromptTerm, ...]:
    """Part a prompt at each `AND`, and lay out what each part says at each step.

    `prompt_weights=False` takes all of it literally.
    """
    if not prompt_weights:
        return (PromptTerm(1.0, (prompt,) * steps),)
    texts = _AND.split(prompt)
    if len(texts) == 1:
        return (PromptTerm(1.0, texts_of_steps(prompt, steps)),)
    terms = []
    for text in texts:
        written, _, number = text.rpartition(":")
        written, weight = (written, float(number)) if _WEIGHT.fullmatch(number.strip()) and written else (text, 1.0)
        terms.append(PromptTerm(weight, texts_of_steps(written, steps)))
    return tuple(terms)

r"""Prompts that change from step to step, as A1111 writes them: `[from:to:when]`, `[to:when]`, `[from::when]`, `[a|b]`.

The grammar is that of `schedule_parser` in A1111's `modules/prompt_parser.py`, with one difference: what is no editing
stays text by itself, where A1111 takes the whole prompt as text for a `|` outside brackets.

Prompts of several parts, `a castle AND a storm :0.6`, are parted as `get_multicond_prompt_list` in the same module
does, after Composable Diffusion (https://arxiv.org/abs/2206.01714). A weight needs an `AND`: without one, `16:9` at a
prompt's end is text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_TOKEN: Final = re.compile(r"\\.|[\[\]():|]|[^\\\[\]():|]+|\\", re.DOTALL)
_WHEN: Final = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*")
_PARTNER: Final = {"]": "[", ")": "("}


def texts_of_steps(text: str, steps: int) -> tuple[str, ...]:
    """Return what a prompt says at each step, the first one being step 1.

    `[from:to:when]` is `from` up to and with step `when`, and `to` after it; a `when` with a point is a share of the
    steps. `[a|b]` is `a` at step 1, `b` at step 2, `a` at step 3.

    Args:
        text: one prompt, without `AND`; brackets of emphasis and escapes stay in it."""
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
        return [*self.flat(), bracket]


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
    """What its guidance is multiplied by."""
    texts: tuple[str, ...]
    """What it says at each step."""


def read_terms(prompt: str, steps: int, *, prompt_weights: bool = True) -> tuple[PromptTerm, ...]:
    """Part a prompt at each `AND`, and lay out what each part says at each step.

    Args:
        prompt_weights: `False` takes all of it literally."""
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

"""Spans of syntax in a prompt, for those who colour it, and its count of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from olivelike._untrusted import Json
from olivelike.runtime.jobs.job_notes import unread_words
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.prompt_cost import BatchTexts, check_cost
from olivelike.runtime.prompts.syntax import read_terms, shortened, take_lora_tags
from olivelike.runtime.prompts.text_kinds import open_text
from olivelike.runtime.prompts.wildcards import Wildcards

_SYNTAX: Final = re.compile(
    r"""
    (?P<escape>\\.)  |
    (?P<lora><(?:lora|lyco):[^<>]+>)  |
    (?P<break>\bBREAK\b)  |
    (?P<and>\bAND\b)  |
    (?P<wildcard>__[\w*./-]{0,200}?[\w*]__(?!\w))  |
    (?P<mark>[()\[\]{}|]|:)
    """,
    re.VERBOSE | re.DOTALL,
)
_PARTNERS: Final = {")": "(", "]": "[", "}": "{"}
_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d{1,9}\.?\d{0,9}|\.\d{1,9}))\s*")
_STRONGER: Final = 1.1
_SHOWN: Final = 12
"""Characters of a bracket that is never closed."""
_MOST_LEFT: Final = 3
_WEIGHTS: Final = re.compile(r"[()\[\]]")
_ALWAYS: Final = frozenset({"lora", "choice", "wildcard"})
"""Kinds that are no matter of emphasis."""
_ABSENT: Final = "there is no such wildcard"

Span = Json
"""`start`, `end` in characters, `kind`, and `weight` of a bracket."""


def read_tokens(
    folder: Path, text: str, *, wildcards: Sequence[Path], negative: bool = False, prompt_weights: bool = True
) -> Json:
    """Return what a prompt is to the text encoders of a folder, its syntax, and what in it is taken as words.

    Without `prompt_weights`, and with a family that has none, LoRAs and choices are all syntax.

    Raises `UsageError` for a prompt that can't be read, and `SourceError` for a folder that can't.
    """
    opened = open_folder(folder)
    words, _ = take_lora_tags(text)
    weights = prompt_weights and opened.family.prompt_syntax
    texts = BatchTexts((read_terms(words, 1, prompt_weights=weights),), (), guided=False)
    check_cost(texts, opened, prompt_weights=weights)
    encoders, names = [], set[str]()
    for part in opened.texts:
        reader = open_text(folder, part)
        read = [reader.read(term.texts[0], prompt_weights=weights) for term in texts.parts[0]]
        longest = max(one.chunks for one in read)
        encoders.append({"count": max(one.tokens for one in read), "limit": longest * reader.room, "chunks": longest})
        names |= set(reader.words)
    files = Wildcards(wildcards or [Path("wildcards")])
    words_alone = unread_words(text, files, negative=negative, plain=not weights, no_file=_ABSENT)
    refused = wildcards and not negative  # Where folders are named, a name that none has is a mistake.
    notes = [
        f"{word}: {why}, so nothing is drawn." if refused and why == _ABSENT else f"{word} is taken as words: {why}."
        for word, why in words_alone
    ]
    unread = [
        {"start": match.start(), "end": match.end(), "kind": "unread"}
        for word, _ in words_alone
        for match in re.finditer(re.escape(word), text)
    ]
    spans, open_brackets = _spans(text if weights else _WEIGHTS.sub(" ", text))
    if not weights:
        spans = [span for span in spans if span["kind"] in _ALWAYS]
    elif open_brackets:
        first, count = open_brackets[0], len(open_brackets)
        notes.append(f"{'A bracket is' if count == 1 else f'{count} brackets are'} never closed: {first}")
    placed = {(span["start"], -span["end"]): span for span in (*spans, *_embeddings(text, names), *unread)}
    return {"encoders": encoders, "spans": [placed[place] for place in sorted(placed)], "notes": notes}


def _embeddings(text: str, names: set[str]) -> Iterator[Span]:
    for name in names:
        for match in re.finditer(re.escape(name), text):
            yield {"start": match.start(), "end": match.end(), "kind": "embedding"}


def _spans(text: str) -> tuple[list[Span], list[str]]:
    """Return the spans of syntax, and the brackets that nothing closes, with the words behind them."""
    opened: list[tuple[str, int, list[tuple[str, int]]]] = []
    found: list[Span] = []
    for match in _SYNTAX.finditer(text):
        kind, mark = str(match.lastgroup), match[0]
        if kind != "mark":
            found.append({"start": match.start(), "end": match.end(), "kind": kind})
        elif mark in "([{":
            opened.append((mark, match.start(), []))
        elif mark in _PARTNERS:
            if opened and opened[-1][0] == _PARTNERS[mark]:
                bracket, start, marks = opened.pop()
                if (meant := _meaning(text, bracket, start, match.start(), marks)) is not None:
                    found.append({"start": start, "end": match.end(), **meant})
        elif opened:
            opened[-1][2].append((mark, match.start()))
    return found, [
        shortened(text[start : start + 2 * _SHOWN], _SHOWN) for bracket, start, _ in opened if bracket != "{"
    ][:3]


def _meaning(text: str, bracket: str, start: int, end: int, marks: list[tuple[str, int]]) -> Span | None:
    """Return what a pair of brackets means, given the `:` and `|` that stand in it alone; `None` if it is text."""
    number = _NUMBER.fullmatch(text[marks[-1][1] + 1 : end]) if marks and marks[-1][0] == ":" else None
    alternatives = any(mark == "|" for mark, _ in marks)
    if bracket == "{":
        return {"kind": "choice"} if alternatives or "$$" in text[start:end] else None
    if bracket == "[":
        if number is not None or (alternatives and not any(mark == ":" for mark, _ in marks)):
            return {"kind": "edit"}
        return {"kind": "weight", "weight": round(1 / _STRONGER, 4)}
    return {"kind": "weight", "weight": float(number[1]) if number is not None else _STRONGER}

"""Modules and styles of the page as browsers get them: without what is for who reads the files."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from olivelike.serve.marked_texts import expression_end

_COMMENT: Final = r"/\*(?P<block>(?:(?!\*/).)*)\*/[ \t]*(?=\n)|//[^\n]*"
_PARTS: Final = re.compile(
    rf"""
    (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|/\*(?:(?!\*/).)*\*/(?![ \t]*\n))  |
    (?P<template>`)  |
    (?:^[ \t]+|[ \t]+)?(?:{_COMMENT})  |
    (?P<pattern>(?:(?<=[(,=:[!&|?>;\n])|(?<=[(,=:[!&|?>;]\ ))/(?:[^/\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/)  |
    [ \t]*(?P<mark>[=!<>&|?:,;(){{}}[\]*]+)[ \t]*  |
    ^[ \t]+
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
"""Texts, templates and regular expressions, which stay; comments; marks that need no space beside them; and indents."""
_STYLES: Final = re.compile(r"^[ \t]*/\*(?P<block>(?:(?!\*/).)*)\*/[ \t]*$|^[ \t]+", re.MULTILINE | re.DOTALL)
_IDLE: Final = re.compile(r"(?<=[\w-]:) (?=\S)|(?<=\S) (?=[{>])|(?<=[,>]) |;(?=\s*\})")
"""What means nothing in CSS: spaces at colons, commas, braces and `>`, and the last semicolon of a rule."""


@lru_cache(maxsize=64)
def as_sent(code: str, kind: str = "js") -> str:
    """Return JavaScript or CSS (`kind`) without comments, indents, and spaces and semicolons that mean nothing.

    Each line keeps its number, by which browsers tell of errors, and texts and templates of JavaScript are as they are.
    """
    if kind == "css":
        return _IDLE.sub("", _STYLES.sub(lambda found: "\n" * (found["block"] or "").count("\n"), code))
    parts, place = [], 0
    while found := _PARTS.search(code, place):
        parts.append(code[place : found.start()])
        place = found.end()
        if found["template"]:
            place = _template_end(code, place)
            parts.append(code[found.start() : place])
        else:
            kept = found["text"] or found["pattern"] or found["mark"]
            parts.append(kept or "\n" * (found["block"] or "").count("\n"))
    return "".join((*parts, code[place:]))


def _template_end(code: str, place: int) -> int:
    while code[place] != "`":
        if code.startswith("${", place):
            place = expression_end(code, place + 2)
        else:
            place += 2 if code[place] == "\\" else 1
    return place + 1

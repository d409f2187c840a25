"""Modules and styles of the page as browsers get them: without what is for who reads the files."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_PARTS: Final = re.compile(
    r"(?P<template>`(?:[^`\\]|\\.)*`)"
    r"|^[ \t]*(?://[^\n]*|(?P<block>/\*(?:(?!\*/).)*\*/)[ \t]*)$"
    r"|^[ \t]+",
    re.MULTILINE | re.DOTALL,
)


_IDLE: Final = re.compile(r"(?<=[\w-]:) (?=\S)|(?<=\S) (?=[{>])|(?<=[,>]) |;(?=\s*\})")
"""What means nothing in CSS: spaces at colons, commas, braces and `>`, and the last semicolon of a rule."""


@lru_cache(maxsize=64)
def as_sent(code: str, kind: str = "js") -> str:
    """Return JavaScript or CSS without indents and without comments that have their lines to themselves.

    Each line keeps its number, by which browsers tell of errors, and a template of JavaScript its lines. CSS, by the
    `kind` `css`, is without what means nothing.
    """
    sent = _PARTS.sub(lambda found: found["template"] or "\n" * (found["block"] or "").count("\n"), code)
    return _IDLE.sub("", sent) if kind == "css" else sent

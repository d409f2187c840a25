"""Texts that a module of the page marks for translation, t`Step ${step}` and t("Seed"): found, and replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from olivelike.serve.languages import words

_MARK: Final = re.compile(r"(?<![\w.$])t(?:`|\(\"((?:[^\"\\]|\\.)*)\")")
_VALUE: Final = re.compile(r"\{(\d)\}")


@lru_cache(maxsize=512)
def module_in(code: str, module: str) -> str:
    """Return a module whose texts are those of a language; a text that the table has not stays English."""
    known = words(code)
    return translated_module(module, lambda text: known.get(text, text)) if known else module


def translated_module(module: str, translate: Callable[[str], str]) -> str:
    """Return a module with its marked texts replaced; values of a template are {0}, {1}, each once in any order."""
    parts, place = [], 0
    while found := _MARK.search(module, place):
        parts.append(module[place : found.start()])
        if found[1] is None:
            text, values, place = _template(module, found.end())
            translated = _escaped(translate(text))
            parts.append(f"t`{_filled(translated, [translated_module(value, translate) for value in values])}`")
        else:
            text, place = json.loads(f'"{found[1]}"'), found.end()
            parts.append(f"t({json.dumps(translate(text), ensure_ascii=False)}")
    return "".join((*parts, module[place:]))


def _filled(text: str, values: list[str]) -> str:
    return _VALUE.sub(lambda found: f"${{{values[int(found[1])]}}}", text)


def _escaped(text: str) -> str:
    return re.sub(r"[\\`]|\$(?=\{)", r"\\\g<0>", text)


def _template(module: str, start: int) -> tuple[str, list[str], int]:
    """Return text and values of the template that begins at `start`, and where it is over."""
    text, values, place = "", list[str](), start
    while module[place] != "`":
        if module.startswith("${", place):
            behind = expression_end(module, place + 2)
            text += f"{{{len(values)}}}"
            values.append(module[place + 2 : behind - 1])
            place = behind
        else:
            text += module[place]
            place += 1
    return text, values, place + 1


def expression_end(module: str, place: int) -> int:
    """Return where an expression of a template is over, behind its brace; those of templates in it are passed by."""
    depth = 1
    while depth:
        letter = module[place]
        if letter == "`":
            place += 1
            while module[place] != "`":
                place = expression_end(module, place + 2) if module.startswith("${", place) else place + 1
        elif letter == '"':
            place = module.index('"', place + 1)
        depth += {"{": 1, "}": -1}.get(letter, 0)
        place += 1
    return place

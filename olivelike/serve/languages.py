"""The languages of the page: one table of its texts, the labels of a request among them."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final

COOKIE: Final = "olivelike_language"
"""What a browser keeps the choice in, so that the first answer is in its language already."""
TAGS: Final = {"zh": "zh-Hans"}
"""Languages whose tag says more than their name in the table."""


@cache
def table() -> dict[str, Any]:
    """Return the table: `languages`, what each calls itself by its code, English first, and `texts`, rows by English.

    A row has a text for each other language, in their order; null where English stands in for it.
    """
    found: dict[str, Any] = json.loads(
        files("olivelike.data").joinpath("serve", "words.json").read_text(encoding="utf-8")
    )
    return found


def language_of(kept: str | None, accepted: str | None) -> str:
    """Return the code of the language that was kept, else of the first that a browser accepts, else English."""
    known = table()["languages"]
    wished = []
    for place, part in enumerate((accepted or "")[:500].split(",")):
        tag, _, quality = part.strip().partition(";q=")
        try:
            wished.append((-float(quality or 1), place, tag.lower().split("-")[0]))
        except ValueError:
            continue
    for code in (kept, *(code for _, _, code in sorted(wished))):
        if code in known:
            return str(code)
    return "en"


def words_module(code: str) -> str:
    """Return the module of a language for the page: its tag, all languages, and its texts by the English ones."""
    found = table()
    column = list(found["languages"]).index(code) - 1
    rows = found["texts"].items() if column >= 0 else ()
    texts = {text: row[column] for text, row in rows if row[column] not in (None, text)}
    given = {"LANGUAGE": TAGS.get(code, code), "LANGUAGES": found["languages"], "WORDS": texts}
    return "".join(f"export const {name} = {compact(one)};\n" for name, one in given.items())


def compact(value: object) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

"""The languages of the page: one table of its texts, the labels of a request among them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from html import escape, unescape
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any, Final

COOKIE: Final = "olivelike_language"
"""What a browser keeps the choice in, so that the first answer is in its language already."""
PLACES: Final = ("modules", "document", "static")
"""Places of the table: a text stands in the first that it is said at."""
TAGS: Final = {"zh": "zh-Hans"}
"""Languages whose tag says more than their name in the table."""
_QUALITY: Final = re.compile(r"(?:[01](?:\.\d{0,3})?)?")
_SPOKEN: Final = re.compile(r'(\s(?:aria-label|title|placeholder|alt)=")([^"]+)"')
"""Attributes that people read or hear."""
_TAG: Final = re.compile(r"<[a-z][^<>]*>")
_QUOTED: Final = re.compile(r'(\s(?!(?:aria-label|title|placeholder|alt)=)[a-z-]+)="([\w.-]+)"(?=[\s>])')
"""An attribute that nobody reads or hears, of one word."""
_VOID: Final = frozenset({"meta", "link", "img", "input", "br"})
_UNTRANSLATED: Final = frozenset({"script", "title", "code"})


@cache
def table() -> dict[str, Any]:
    """Return the table: `languages`, what each calls itself by its code, English first, and texts by where they stand.

    `modules` are those of modules of the page, `document` others of its document and of what a request declares, and
    `static` others of the page that is a file. A row by its English text has one for each other language, in their
    order; null where English stands in for it.
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
        # RFC 9110, 12.4.2: 0 is what is not wanted.
        if (wanted := float(quality or 1) if _QUALITY.fullmatch(quality) else 0.0) > 0:
            wished.append((-wanted, place, tag.lower().split("-")[0]))
    for code in (kept, *(code for _, _, code in sorted(wished))):
        if code in known:
            return str(code)
    return "en"


@cache
def words(code: str) -> Mapping[str, str]:
    """Return texts of a language by the English ones, where they differ."""
    found = table()
    column = list(found["languages"]).index(code) - 1
    rows = {text: row for place in PLACES for text, row in found[place].items()}
    return {text: row[column] for text, row in rows.items() if column >= 0 and row[column] not in (None, text)}


def words_module(code: str, texts: Mapping[str, str]) -> str:
    """Return the module of a language for a page: its tag, all languages, and texts by the numbers of English ones.

    The server's has no texts: its modules are sent in the language.
    """
    numbered = {number_of(text): found for text, found in texts.items()}
    given = {"LANGUAGE": tag(code), "LANGUAGES": table()["languages"], "WORDS": numbered}
    return "".join(f"export const {name} = {compact(one)};\n" for name, one in given.items())


def number_of(text: str) -> str:
    """Return the number of an English text, as `language.js` makes it: half of a table are its keys otherwise."""
    number = 0
    for letter in text:
        number = (number * 31 + ord(letter)) & 0xFFFFFF
    return f"{number:x}"


def tag(code: str) -> str:
    """Return a language as documents name it."""
    return TAGS.get(code, code)


@lru_cache(maxsize=16)
def document_in(code: str, document: str) -> str:
    """Return an English document in a language, without its indents and without quotes that HTML needs none of."""
    known = words(code)
    document = document.replace('lang="en"', f'lang="{tag(code)}"', 1)
    return _TAG.sub(
        lambda found: _QUOTED.sub(r"\1=\2", found[0]), translated(document, lambda text: known.get(text, text))
    )


def translated(document: str, translate: Callable[[str], str]) -> str:
    """Return a document with its texts and spoken attributes replaced, but for what is marked `translate="no"`."""
    parser = _Translated(translate)
    parser.feed(document)
    parser.close()
    return "".join(parser.parts)


class _Translated(HTMLParser):
    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._translate = translate
        self._kept = [True]

    def handle_decl(self, decl: str) -> None:
        self.parts.append(f"<!{decl}>")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        text = self.get_starttag_text() or ""
        self.parts.append(_SPOKEN.sub(lambda found: f'{found[1]}{escape(self._translate(unescape(found[2])))}"', text))
        if tag not in _VOID:
            self._kept.append(self._kept[-1] and tag not in _UNTRANSLATED and ("translate", "no") not in attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"</{tag}>")
        self._kept.pop()

    def handle_data(self, data: str) -> None:
        text = data.strip()
        if text and self._kept[-1]:
            data = data.replace(text, self._translate(" ".join(text.split())))
        elif not text and "\n" in data:
            data = "\n"
        self.parts.append(escape(data, quote=False))


def compact(value: object) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

"""Keeps the table of the page's texts, `olivelike/data/serve/words.json`, at what the page and the static one say.

    python -m tools.page_words            # what is missing, unused or not translated
    python -m tools.page_words --write    # with a row for each text, and no other

A text is what the document shows, what a module marks as t`Step ${step}` or t("Seed"), and each label, hint and choice
that a request declares. A new row has null for each language: English stands in until somebody translates it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from olivelike.serve.form import form

_ROOT = Path(__file__).parents[1] / "olivelike"
FOLDER = _ROOT / "data" / "serve"
STATIC = _ROOT / "extras" / "deploy" / "web"
TABLE = FOLDER / "words.json"
SPOKEN: Final = ("aria-label", "title", "placeholder", "alt")
"""Attributes that people read or hear."""
_VOID: Final = {"meta", "link", "img", "input", "br"}
_UNTRANSLATED: Final = {"script", "title", "code", "kbd"}


def texts() -> set[str]:
    """Return every text of the page, in English."""
    found: set[str] = set()
    for folder in (FOLDER, STATIC):
        found.update(document_texts((folder / "index.html").read_text(encoding="utf-8")))
    for path in (*FOLDER.glob("*.js"), *STATIC.glob("*.js")):
        found.update(module_texts(re.sub(r"(?m)^\s*(//|/?\*).*", "", path.read_text(encoding="utf-8"))))
    return {text for text in found | set(declared_texts()) if re.search(r"[^\W\d_]{2}", text)}


def declared_texts() -> Iterator[str]:
    """Yield what a request, its plots and its records declare."""
    known = form()
    for one in (*known["fields"], *known["axes"], *known["record"], *known["preprocessors"]):
        yield one["label"]
    for one in known["fields"]:
        yield from (one["hint"] or "", *one["words"])
    for one in known["record"]:
        if one["text"] and re.search(r"[^\W\d_]{2}", re.sub(r"\{.*?\}", "", one["text"])):
            yield one["text"]


class _Document(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._kept: list[bool] = [True]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [text for name in SPOKEN if (text := given.get(name))]
        if tag not in _VOID:
            self._kept.append(self._kept[-1] and tag not in _UNTRANSLATED and given.get("translate") != "no")

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self._kept.pop()

    def handle_data(self, data: str) -> None:
        if self._kept[-1]:
            self.found.append(" ".join(data.split()))


def document_texts(document: str) -> list[str]:
    """Return texts and spoken attributes of a document, but for what is marked `translate="no"`."""
    parser = _Document()
    parser.feed(document)
    return parser.found


def module_texts(module: str) -> Iterator[str]:
    """Yield what a module gives to `t`, values as {0}, {1}."""
    for found in re.finditer(r"(?<![\w.$])t(?:`|\(\"((?:[^\"\\]|\\.)*)\")", module):
        yield json.loads(f'"{found[1]}"') if found[1] is not None else _template(module, found.end())


def _template(module: str, start: int) -> str:
    """Return the key of the template that begins at `start`."""
    key, place, count = "", start, 0
    while module[place] != "`":
        if module.startswith("${", place):
            place = _behind(module, place + 2)
            key += f"{{{count}}}"
            count += 1
        else:
            key += module[place]
            place += 1
    return key


def _behind(module: str, place: int) -> int:
    """Return where an expression of a template is over, those of templates in it passed by."""
    depth = 1
    while depth:
        letter = module[place]
        if letter == "`":
            place += 1
            while module[place] != "`":
                place = _behind(module, place + 2) if module.startswith("${", place) else place + 1
        elif letter == '"':
            place = module.index('"', place + 1)
        depth += {"{": 1, "}": -1}.get(letter, 0)
        place += 1
    return place


def write(table: dict[str, Any]) -> str:
    """Return the table's file: a row on each line, in alphabetical order, so that two who add rows rarely meet."""
    ordered = sorted(table["texts"].items(), key=lambda one: (one[0].casefold(), one[0]))
    rows = ",\n".join(f"    {_line(text)}: {_line(row)}" for text, row in ordered)
    return f'{{\n  "languages": {_line(table["languages"])},\n  "texts": {{\n{rows}\n  }}\n}}\n'


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    wanted, rows = texts(), table["texts"]
    codes = list(table["languages"])[1:]
    if parser.parse_args().write:
        kept = {text: rows.get(text, [None] * len(codes)) for text in wanted}
        TABLE.write_text(write({**table, "texts": kept}), encoding="utf-8")
    for text in sorted(wanted - rows.keys()):
        print(f"missing: {text}")
    for text in sorted(rows.keys() - wanted):
        print(f"unused: {text}")
    for text in sorted(wanted & rows.keys()):
        if lacking := [code for code, one in zip(codes, rows[text], strict=True) if not one]:
            print(f"no {', '.join(lacking)}: {text}")
    return int(wanted != rows.keys())


if __name__ == "__main__":
    raise SystemExit(main())

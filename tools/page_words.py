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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from olivelike.serve.form import form
from olivelike.serve.languages import PLACES, translated
from olivelike.serve.marked_texts import translated_module
from olivelike.serve.sent_code import as_sent

_ROOT = Path(__file__).parents[1] / "olivelike"
FOLDER = _ROOT / "data" / "serve"
STATIC = _ROOT / "extras" / "deploy" / "web"
TABLE = FOLDER / "words.json"


def texts() -> dict[str, set[str]]:
    """Return every text of the pages, in English, by the first place of the table that it belongs to."""
    modules, static = (
        {text for path in folder.glob("*.js") for text in module_texts(as_sent(path.read_text(encoding="utf-8")))}
        for folder in (FOLDER, STATIC)
    )
    document, other = (
        document_texts((folder / "index.html").read_text(encoding="utf-8")) for folder in (FOLDER, STATIC)
    )
    found: dict[str, set[str]] = {}
    for place, said in zip(PLACES, (modules, {*document, *declared_texts()}, {*other, *static}), strict=True):
        found[place] = {text for text in said if re.search(r"[^\W\d_]{2}", text)}.difference(*found.values())
    return found


def declared_texts() -> Iterator[str]:
    """Yield what a request, its plots and its records declare."""
    known = form()
    for one in (*known["fields"], *known["axes"], *known["record"], *known["preprocessors"], *known["control"]):
        yield one["label"]
    for one in known["preprocessors"]:
        yield from (label for label, _ in one.get("thresholds", ()))
    for one in known["fields"]:
        yield from (one.get("hint", ""), *one.get("words", ()))
    for one in known["record"]:
        text = one.get("text", "")
        if re.search(r"[^\W\d_]{2}", re.sub(r"\{.*?\}", "", text)):
            yield text


def document_texts(document: str) -> list[str]:
    """Return texts and spoken attributes of a document, but for what is marked `translate="no"`."""
    return _noted(translated, document)


def module_texts(module: str) -> list[str]:
    """Return what a module gives to `t`, values as {0}, {1}."""
    return _noted(translated_module, module)


def _noted(translate: Callable[[str, Callable[[str], str]], object], source: str) -> list[str]:
    """Return the texts that are looked up for a translation, in their order."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    translate(source, note)
    return found


def write(table: dict[str, Any]) -> str:
    """Return the table's file: a row on each line, in alphabetical order, so that two who add rows rarely meet."""
    parts = [f'  "languages": {_line(table["languages"])}']
    for place in PLACES:
        ordered = sorted(table[place].items(), key=lambda one: (one[0].casefold(), one[0]))
        rows = ",\n".join(f"    {_line(text)}: {_line(row)}" for text, row in ordered)
        parts.append(f'  "{place}": {{\n{rows}\n  }}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    wanted, rows = texts(), {text: row for place in PLACES for text, row in table.get(place, {}).items()}
    codes = list(table["languages"])[1:]
    if parser.parse_args().write:
        kept = {place: {text: rows.get(text, [None] * len(codes)) for text in wanted[place]} for place in PLACES}
        TABLE.write_text(write({"languages": table["languages"], **kept}), encoding="utf-8")
    every = set[str]().union(*wanted.values())
    for text in sorted(every - rows.keys()):
        print(f"missing: {text}")
    for text in sorted(rows.keys() - every):
        print(f"unused: {text}")
    for text in sorted(every & rows.keys()):
        if lacking := [code for code, one in zip(codes, rows[text], strict=True) if not one]:
            print(f"no {', '.join(lacking)}: {text}")
    moved = [place for place in PLACES if table.get(place, {}).keys() != wanted[place]]
    for place in moved:
        print(f"not in its place: {place}; run this with --write")
    return int(bool(moved))


if __name__ == "__main__":
    raise SystemExit(main())

"""The page's languages: a table with a row for each text that the page has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from olivelike.serve.languages import language_of, table, words_module
from tools.page_words import TABLE, module_texts, texts, write

REMEDY = "python -m tools.page_words --write"


def test_the_table_has_each_text_of_the_page_and_no_other() -> None:
    rows, wanted = table()["texts"], texts()
    assert sorted(wanted - rows.keys()) == [], REMEDY
    assert sorted(rows.keys() - wanted) == [], REMEDY
    assert TABLE.read_text(encoding="utf-8") == write(table()), REMEDY


def test_a_row_has_each_language_with_the_same_values() -> None:
    count = len(table()["languages"]) - 1
    values = re.compile(r"\{[^{}]*\}")
    for text, row in table()["texts"].items():
        assert len(row) == count
        for translated in filter(None, row):
            assert sorted(values.findall(translated)) == sorted(values.findall(text)), text
            assert translated.strip() == translated or text.strip() != text


def test_texts_of_a_module_are_those_that_it_marks() -> None:
    module = 'say(t`Step ${a.b({c: "}"})} of ${t`Inner ${1}`}`); t("Seed"); make(`not ${this}`); object.t`no`;'
    assert list(module_texts(module)) == ["Step {0} of {1}", "Inner {0}", "Seed"]


@pytest.mark.parametrize("path", sorted(TABLE.parent.glob("*.js")), ids=lambda path: path.name)
def test_no_sentence_of_a_module_is_left_unmarked(path: Path) -> None:
    code = re.sub(r"(?m)^\s*(//|/?\*).*", "", path.read_text(encoding="utf-8"))
    assert re.findall(r'(?<!t\()"[A-Z][\w\u2019]* [^"\n]+"|(?<!t)`[A-Z][a-z]+ [^`\n]*`', code) == []


@pytest.mark.parametrize(("kept", "accepted", "code"), [
    (None, None, "en"), ("fr", "de", "fr"), ("xx", "de", "de"), (None, "pt,ja;q=0.8,es;q=0.9", "es"),
    (None, "zh-Hant-TW, en;q=0.5", "zh"), (None, "de;q=x, fr", "fr"), (None, "nl, sv", "en"),
    (None, "en-GB,en;q=0.9,de;q=0.8", "en"),
])  # fmt: skip
def test_a_language_is_the_one_kept_else_the_browsers_else_english(
    kept: str | None, accepted: str | None, code: str
) -> None:
    assert language_of(kept, accepted) == code


def test_a_browser_is_answered_in_its_language(client) -> None:
    german = client.get("/page/words.js", headers={"Accept-Language": "de-AT"})
    assert 'LANGUAGE = "de"' in german.text
    assert german.headers["vary"] == "Cookie, Accept-Language"
    kept = {"Accept-Language": "de", "Cookie": "olivelike_language=zh"}
    assert 'LANGUAGE = "zh-Hans"' in client.get("/page/words.js", headers=kept).text
    assert words_module("en").endswith("WORDS = {};\n")

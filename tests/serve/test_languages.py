"""The page's languages: a table with a row for each text that the page has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from olivelike.serve.form import form
from olivelike.serve.languages import PLACES, document_in, language_of, number_of, table, words, words_module
from olivelike.serve.marked_texts import translated_module
from olivelike.serve.sent_code import as_sent
from tools.page_words import TABLE, document_texts, module_texts, texts, write

REMEDY = "python -m tools.page_words --write"


def test_the_table_has_each_text_of_the_pages_at_its_place_and_no_other() -> None:
    wanted = texts()
    for place in PLACES:
        assert sorted(table()[place]) == sorted(wanted[place]), REMEDY
    assert TABLE.read_text(encoding="utf-8") == write(table()), REMEDY


def test_a_row_has_each_language_with_the_same_values() -> None:
    count = len(table()["languages"]) - 1
    values = re.compile(r"\{[^{}]*\}")
    for text, row in _rows().items():
        assert len(row) == count
        for translated in filter(None, row):
            assert sorted(values.findall(translated)) == sorted(values.findall(text)), text
            assert translated.strip() == translated or text.strip() != text


def test_each_text_has_a_number_of_its_own() -> None:
    assert len({number_of(text) for text in _rows()}) == len(_rows())
    assert number_of("Schritt größer „a“ 🙂 {0}") == "25af5"  # As `language.js` has it.


def test_a_document_is_translated_but_for_what_is_no_languages() -> None:
    text = """<!doctype html>
<html lang="en"><body>
  <p title="Gallery" data-kept>Gallery &amp; all, <code>Gallery</code> <i translate="no">Gallery</i>
    <img alt="Gallery" /> Older
    pictures</p></body></html>"""
    german = document_in("de", text)
    assert '<html lang=de><body>\n<p title="Galerie" data-kept>' in german
    assert "<code>Gallery</code> <i translate=no>Gallery</i>" in german
    assert '<img alt="Galerie" /> Ältere Bilder</p></body></html>' in german
    assert "Gallery &amp; all, <code>" in german
    plain = re.sub(r"\n +(?=<)", "", text).replace("\n", "").replace("Older    pictures", "Older pictures")
    assert document_in("en", text).replace("\n", "") == plain.replace('"en"', "en").replace('"no"', "no")


def test_the_page_is_sent_in_its_language_with_what_a_request_declares() -> None:
    page = (TABLE.parent / "index.html").read_text(encoding="utf-8")
    for code in table()["languages"]:
        known = words(code)
        assert document_texts(document_in(code, page)) == [known.get(text, text) for text in document_texts(page)]
    assert [one["label"] for one in form("de")["fields"]] == [
        words("de").get(one["label"], one["label"]) for one in form()["fields"]
    ]


def test_texts_of_a_module_are_those_that_it_marks() -> None:
    module = 'say(t`Step ${a.b({c: "}"})} of ${t`Inner ${1}`}`); t("Seed"); make(`not ${this}`); object.t`no`;'
    assert module_texts(module) == ["Step {0} of {1}", "Inner {0}", "Seed"]
    german = {"Step {0} of {1}": "{1} \\` {{0}", "Inner {0}": "${0}", "Seed": '"K"'}
    assert translated_module(module, german.__getitem__) == (
        r'say(t`${t`\$${1}`} \\\` {${a.b({c: "}"})}`); t("\"K\""); make(`not ${this}`); object.t`no`;'
    )


@pytest.mark.parametrize("path", sorted(TABLE.parent.glob("*.js")), ids=lambda path: path.name)
def test_no_module_translates_what_it_has_in_a_variable(path: Path) -> None:
    """Modules are sent translated, and without a table to look in."""
    assert re.findall(r'(?<![\w.$])(?<!function )t\((?!")', as_sent(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", sorted(TABLE.parent.glob("*.js")), ids=lambda path: path.name)
def test_no_sentence_of_a_module_is_left_unmarked(path: Path) -> None:
    code = as_sent(path.read_text(encoding="utf-8"))
    assert re.findall(r'(?<!t\()"[A-Z][\w\u2019]* [^"\n]+"|(?<!t)`[A-Z][a-z]+ [^`\n]*`', code) == []


@pytest.mark.parametrize(("kept", "accepted", "code"), [
    (None, None, "en"), ("fr", "de", "fr"), ("xx", "de", "de"), (None, "pt,ja;q=0.8,es;q=0.9", "es"),
    (None, "zh-Hant-TW, en;q=0.5", "zh"), (None, "de;q=x, fr", "fr"), (None, "nl, sv", "en"),
    (None, "en-GB,en;q=0.9,de;q=0.8", "en"), (None, "de;q=0", "en"), (None, "de;q=nan,fr;q=1e9,es;q=0.1", "es"),
    ("../de", "fr;q=1.000,de;q=1.0", "fr"),
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
    assert words_module("en", words("en")).endswith("WORDS = {};\n")
    module = client.get("/page/theme.js", headers=kept)
    assert words("zh")["Theme: dark"] in module.text
    assert module.headers["vary"] == "Cookie, Accept-Language"
    unchanged = {**kept, "If-None-Match": module.headers["etag"]}
    assert client.get("/page/theme.js", headers=unchanged).status_code == 304
    assert client.get("/page/theme.js", headers={**unchanged, "Cookie": "olivelike_language=ja"}).status_code == 200
    document = client.get("/", headers={"Accept-Language": "fr"})
    assert "<html lang=fr" in document.text
    assert ">Galerie</a>" in document.text
    assert document.headers["vary"] == "Cookie, Accept-Language"
    assert (
        client.get("/page/declared.js", headers={"Accept-Language": "de"}).text != client.get("/page/declared.js").text
    )


def _rows() -> dict[str, list[str | None]]:
    return {text: row for place in PLACES for text, row in table()[place].items()}

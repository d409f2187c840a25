"""The page's files as they lie: small, ours alone, fit for a strict content security policy, and parsed by Node.js."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from olivelike.serve.form import declared, form
from olivelike.serve.languages import document_in, table, words, words_module
from olivelike.serve.marked_texts import module_in
from olivelike.serve.sent_code import as_sent

PAGE = Path(__file__).parents[3] / "olivelike" / "data" / "serve"
FILES = sorted(path for path in PAGE.iterdir() if path.suffix != ".json")
MODULES = [path for path in FILES if path.suffix == ".js"]
NAMED = {"input", "select", "textarea"}
VOID = {"meta", "link", "img", "input"}
MADE = {"./declared.js", "./words.js"}
"""Modules that the server makes: of a request's declaration, and of the table of texts in one language."""


class Elements(HTMLParser):
    """Start tags of a document, with the text that is in each and the tags around it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str], tuple[int, ...]]] = []
        self._open: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), [], tuple(self._open)))
        if tag not in VOID:
            self._open.append(len(self.found) - 1)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self.found[self._open[-1]][0] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for place in self._open:
            self.found[place][2].append(data)


@pytest.fixture(scope="module")
def elements() -> Elements:
    return Elements((PAGE / "index.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("language", table()["languages"])
def test_the_page_in_a_language_is_small(language: str) -> None:
    """A browser fetches code, the document and what is declared in one language, styles and icon."""
    document = document_in(language, (PAGE / "index.html").read_text(encoding="utf-8"))
    code = [module_in(language, as_sent(path.read_text(encoding="utf-8"))) for path in MODULES]
    styles = as_sent((PAGE / "style.css").read_text(encoding="utf-8"), "css")
    sent = [document, declared(language), words_module(language, {}), styles, *code]
    assert (PAGE / "icon.svg").stat().st_size + sum(len(one.encode()) for one in sent) < 260_000
    assert {path.suffix for path in FILES} == {".html", ".css", ".js", ".svg"}


def test_code_is_sent_with_its_texts_as_they_are() -> None:
    written = """\
/**
 * Words, and `one of them.
 */
  const a = `1
    // 2 \\` ${ f(`3, ${ 4 }`) }
    ${3}`;
\t// None`
  const b = /[/*]`, /; // "c"
  /* d */ e("//", '; "', x / 2, y ) / 2;
    /* f */
"""
    sent = """\



const a=`1
    // 2 \\` ${ f(`3, ${ 4 }`) }
    ${3}`;

const b=/[/*]`, /;
/* d */ e("//",'; "',x / 2,y)/ 2;

"""
    assert as_sent(written) == sent
    styles = (PAGE / "style.css").read_text(encoding="utf-8")
    bare, whole = (
        re.sub(r"/\*.*?\*/|\s|;(?=\s*\})", "", code, flags=re.DOTALL) for code in (as_sent(styles, "css"), styles)
    )
    assert bare == whole


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_asked_of_another_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"\bhttps?:|[\"'(]//\w|@import|\bsrcdoc\b", text)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_module_makes_markup_or_code_of_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(
        r"(?:inner|outer)HTML\s*[=+]|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text
    )
    imported = re.findall(r"\bfrom \"(.+?)\"|\bimport\(\"(.+?)\"\)", text)
    assert {name for pair in imported for name in pair if name} <= {*(f"./{other.name}" for other in MODULES), *MADE}


def test_a_policy_without_inline_code_or_styles_holds(elements: Elements) -> None:
    for tag, attributes, text, _ in elements.found:
        assert tag != "style"
        assert not (tag == "script" and ("".join(text).strip() or "src" not in attributes))
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        for name in ("src", "href"):
            address = attributes.get(name)
            assert address is None or address.startswith(("/page/", "#")), address


def test_what_the_document_names_is_there(elements: Elements) -> None:
    ids = [attributes["id"] for _, attributes, _, _ in elements.found if "id" in attributes]
    assert len(set(ids)) == len(ids)
    files = {path.name for path in FILES} | {name.removeprefix("./") for name in MADE}
    for _, attributes, _, _ in elements.found:
        for name in ("src", "href"):
            address = attributes.get(name) or ""
            assert not address.startswith("/page/") or address.removeprefix("/page/") in files
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert set((attributes.get(name) or "").split()) <= set(ids)
    names = re.compile(r'(?:\$\("([a-z_-]+)"\)|\bon(?:Files)?\("([a-z_-]+)",)')
    used = {found[1] or found[2] for path in MODULES for found in names.finditer(path.read_text(encoding="utf-8"))}
    made = {"side", "upscale-problem", "viewer-like", "viewer-delete"}
    assert used - made <= {*ids, *(field["name"] for field in form()["fields"])}


def test_every_field_has_a_label_with_words(elements: Elements) -> None:
    labels = {
        attributes["for"]: "".join(text)
        for tag, attributes, text, _ in elements.found
        if tag == "label" and "for" in attributes
    }
    declared = {field["name"]: field["label"] for field in form()["fields"]}
    for tag, attributes, text, around in elements.found:
        if twin := attributes.get("data-twin"):  # A module gives it the field's own label.
            assert declared[twin]
        elif tag in NAMED and attributes.get("type") != "hidden":
            own = [elements.found[place] for place in around if elements.found[place][0] == "label"]
            if attributes.get("data-part") in ("a", "b"):  # The words of a preprocessor come there.
                assert any(label[0] == "label" for label in own)
                continue
            name = labels.get(attributes.get("id") or "") or "".join("".join(label[2]) for label in own)
            name = name or attributes.get("aria-label") or ""
            assert re.search(r"\w", name), attributes
        if tag == "button" and not re.search(r"\w", "".join(text)):
            # These get their words from a module, the others have them.
            assert attributes.get("aria-label") or attributes["id"] == "model-button", attributes
        if tag == "img":
            assert "alt" in attributes


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node.js is not installed (`apt-get install nodejs`)")
    return found


def test_node_reads_of_what_is_sent_what_was_written(node: str) -> None:
    """Its own parser makes the same tree of both, on the same lines, but for texts, which are those of the language."""
    written = [path.read_text(encoding="utf-8") for path in MODULES]
    sent = {code: [module_in(code, as_sent(module)) for module in written] for code in table()["languages"]}
    given = {"written": written, "sent": sent, "words": {code: dict(words(code)) for code in sent}}
    script = f"""
        const acorn = require("internal/deps/acorn/acorn/dist/acorn");
        const options = {{ ecmaVersion: "latest", sourceType: "module", locations: true }};
        const placed = (name, value) => typeof value === "number" && ["start", "end", "column"].includes(name);
        const read = (code, words) =>
          JSON.stringify(acorn.parse(code, options), (name, value) => {{
            if (value?.tag?.name === "t") {{
              const texts = value.quasi.quasis.map((one) => one.value.cooked);
              const key = texts.reduce((text, part, place) => `${{text}}{{${{place - 1}}}}${{part}}`);
              const parts = (words[key] ?? key).split(/\\{{(\\d)\\}}/);
              return ["t", ...parts.map((part, place) => (place % 2 ? value.quasi.expressions[part] : part))];
            }}
            if (value?.callee?.name === "t") return ["t", words[value.arguments[0].value] ?? value.arguments[0].value];
            return placed(name, value) ? undefined : value;
          }});
        const given = {json.dumps(given)};
        const same = ([code, modules]) => given.written.map((one, place) =>
          one !== modules[place] && read(one, given.words[code]) === read(modules[place], {{}}));
        console.log(JSON.stringify(Object.fromEntries(Object.entries(given.sent).map((one) => [one[0], same(one)]))));
    """
    answer = subprocess.run([node, "--expose-internals"], input=script, capture_output=True, check=False, text=True)
    assert answer.stdout, answer.stderr
    assert json.loads(answer.stdout) == {code: [True] * len(MODULES) for code in sent}


def test_values_of_a_plot_are_read_as_a1111_reads_them(node: str, tmp_path: Path) -> None:
    page = shutil.copytree(PAGE, tmp_path / "page")
    (page / "declared.js").write_text(declared())
    (page / "words.js").write_text(words_module("en", {}))
    cases = {
        "steps": {
            "5, 10": [5, 10], "1-5": [1, 2, 3, 4, 5], "5-3": [5, 4, 3], "10-50 (+20)": [10, 30, 50],
            "1-10 [4]": [1, 4, 7, 10],
        },
        "guidance_scale": {"1.5-3 (0.5)": [1.5, 2, 2.5, 3], "-1": [-1], "0-1 [3]": [0, 0.5, 1]},
        "prompt_sr": {'cat, dog, "a, b", ""': ["cat", "dog", "a, b", ""]},
        "size": {"64x64, 128x64": ["64x64", "128x64"]},
    }  # fmt: skip
    script = f"""
        import {{ axisOf }} from {json.dumps((page / "plot.js").as_uri())};
        const cases = {json.dumps(cases)};
        for (const [field, texts] of Object.entries(cases)) for (const text of Object.keys(texts)) {{
          texts[text] = axisOf(field, text).values;
        }}
        const refused = ["", "a", "1-", "1-5 (-1)", "0-1000"].filter((text) => {{
          try {{ axisOf("steps", text); }} catch {{ return true; }}
        }});
        console.log(JSON.stringify([cases, refused.length, axisOf("", "1")]));
    """
    command = [node, "--no-warnings", "--experimental-default-type=module", "--input-type=module"]
    answer = subprocess.run(command, input=script.encode(), capture_output=True, check=True)
    assert json.loads(answer.stdout) == [cases, 5, None]

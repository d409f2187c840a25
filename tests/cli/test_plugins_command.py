"""`olivelike plugins`: what installed distributions say of themselves, without a line of theirs run."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from olivelike._installed import entry_points, installed_version, packages_distributions
from olivelike.workflow.installed_plugins import installed_plugins

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put the metadata of a distribution on the import path, and none of its code."""

    def install(name: str, metadata: str, points: str, version: str = "0.1.0") -> None:
        info = tmp_path / f"site-{name}" / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(head + metadata, encoding="utf-8")
        (info / "entry_points.txt").write_text(points, encoding="utf-8")
        monkeypatch.syspath_prepend(info.parent)

    return install


@pytest.fixture
def examples(install):
    """The worked examples of the docs, as pip would install them."""
    for folder in ("plugin-example", "target-example"):
        project = tomllib.loads((DOCS / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        fields = {
            "Summary": project["description"],
            "License-Expression": project["license"],
            "Keywords": ",".join(project["keywords"]),
            **{f"Project-URL: {label}, {url}": None for label, url in project["urls"].items()},
            **{f"Requires-Dist: {one}": None for one in project["dependencies"]},
        }
        metadata = "".join(f"{key}\n" if value is None else f"{key}: {value}\n" for key, value in fields.items())
        points = "".join(
            f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in named.items())
            for group, named in project["entry-points"].items()
        )
        install(project["name"], metadata, points, project["version"])


def test_the_examples_are_listed_and_lack_nothing(examples, cli):
    found = {one["name"]: one for one in json.loads(cli("plugins", "--json").out)}
    shown = found["olivelike-pass-shorten-names"]
    assert shown["gives"] == {"passes": ["shorten_names"]}
    assert shown["needs"] == ["olivelike>=0.2"]
    assert found["olivelike-target-cpu-1-18"]["gives"] == {"targets": ["cpu_1_18"]}
    assert [one["lacks"] for name, one in found.items() if name.startswith("olivelike-")] == [[], []]
    assert "a catalogue would want" not in cli("plugins", "olivelike-target-cpu-1-18").out
    assert "did you mean 'olivelike-pass-shorten-names'?" in cli("plugins", "olivelike-pass-shorten-name").err


def test_the_page_of_the_docs_has_the_catalogue_of_the_examples(examples, cli):
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    for line in cli("plugins", "--markdown").out.splitlines():
        assert not line.startswith("| olivelike-") or f"{line}\n" in page


def test_the_metadata_of_the_page_is_the_examples(examples):
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    written = tomllib.loads(block)["project"]
    project = tomllib.loads((DOCS / "plugin-example" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {**written, "description": ""} == {key: project[key] for key in written} | {"description": ""}


def test_one_that_says_little_is_told_what_to_add_and_one_that_is_broken_is_listed(install, cli):
    install("sharpener", "", "[olivelike.passes]\nsharpen = no_such_module\n[olivelike.extras]\nx = y\n")
    (found,) = [one for one in installed_plugins() if one.name == "sharpener"]
    assert found.gives == {"passes": ("sharpen",), "extras": ("x",)}
    assert [*found.lacks()] == [
        "a name that begins with olivelike-pass- or olivelike-extra-", "a description", "a license",
        "the keyword olivelike", "a URL", "olivelike or olivelike-runtime among its dependencies",
    ]  # fmt: skip
    assert "a catalogue would want: a name that begins with" in cli("plugins", "sharpener").out


@pytest.mark.parametrize("metadata", [None, b"", b"Name: odd\n", b"Name: odd\nKeywords: \xff\n"])
def test_one_whose_metadata_is_gone_or_no_text_hides_no_other(examples, tmp_path, monkeypatch, cli, metadata):
    info = tmp_path / "odd-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[olivelike.passes]\na = odd\n")
    if metadata is not None:
        (info / "METADATA").write_bytes(metadata)
    monkeypatch.syspath_prepend(tmp_path)
    told = cli("plugins", "--json")
    assert told.status == 0, told.err
    found = {one["name"]: one["gives"] for one in json.loads(told.out)}
    assert found["odd"] == {"passes": ["a"]}
    assert "olivelike-pass-shorten-names" in found
    listed = cli("passes", "list")
    owner = "distribution odd" if metadata == b"Name: odd\n" else "the distribution of odd"
    assert (listed.status, f"or fix or uninstall {owner}" in listed.err) == (3, True), listed.err


@pytest.mark.parametrize("points", [b"[olivelike.passes]\na = \xff\n", b"[olivelike.passes]\nno pair\n"])
def test_a_damaged_list_of_entry_points_hides_no_other(install, tmp_path, cli, points):
    install("odd", "", "")
    (info,) = tmp_path.glob("site-odd/*.dist-info")
    (info / "METADATA").write_bytes(b"Name: odd\nVersion: 1\nKeywords: \xff\n")
    (info / "entry_points.txt").write_bytes(points)
    install("extra", "", "[olivelike.extras]\nextra = platform\n")
    assert installed_version("odd") is None
    assert packages_distributions()["numpy"] == ["numpy"]
    assert [point.value for point in entry_points("olivelike.extras")] == ["platform"]
    for command in (("passes", "list"), ("targets",), ("plugins",), ("doctor", "--json")):
        assert cli(*command).status in {0, 3}, command


def test_texts_of_strangers_stay_in_their_cells(install, cli):
    metadata = (
        "Summary: a | b <script> `x` \x1b[2J\nLicense: UNKNOWN\nKeywords: olivelike onnx\n"
        "Classifier: License :: OSI Approved :: MIT License\nRequires-Dist: olivelike-pass-other\n"
        "Project-URL: Bad, javascript:alert(1)\nHome-page: https://example.org/a)b\nProject-URL: Good, https://a.org\n"
    )
    install("olivelike-pass-odd", metadata, "[olivelike.passes]\na = b\n")
    (line,) = [line for line in cli("plugins", "--markdown").out.splitlines() if "odd" in line]
    told = r"a \| b &lt;script&gt; \`x\` �\[2J"
    assert line == f"| olivelike-pass-odd 0.1.0 | passes a | {told} | MIT License | [Good](https://a.org) |"
    assert json.loads(cli("plugins", "olivelike-pass-odd", "--json").out)["needs"] == []
    assert cli("plugins", "--json", "--markdown").status == 2

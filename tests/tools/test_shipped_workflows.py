"""The index of shipped workflows and their page are what the files and the docs' tables say."""

from __future__ import annotations

import json

import pytest

from olivelike.families import FAMILIES
from olivelike.workflow import shipped_names
from tools import shipped_workflows
from tools.shipped_workflows import FIGURES, INDEX, PAGE, index, index_text, page

AGAIN = "python -m tools.shipped_workflows writes it anew"


def test_the_index_and_the_page_are_what_the_workflows_say() -> None:
    assert INDEX.read_text(encoding="utf-8") == index_text(), AGAIN
    assert PAGE.read_text(encoding="utf-8") == page(), AGAIN


def test_every_workflow_has_chains_of_its_familys_networks() -> None:
    found = json.loads(INDEX.read_bytes())
    assert [one["name"] for one in found] == shipped_names()
    for one in found:
        family = FAMILIES[one["family"]]
        assert {text.component for text in family.texts} | {family.denoiser, "vae_decoder"} <= set(one["components"])


def test_a_figure_is_a_cell_of_the_docs_as_it_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    (spine, *_) = next(one["figures"] for one in index() if one["name"] == "sd15_cuda")
    assert spine["values"].keys() == {"seconds", "peak resident GB"}
    assert spine["command"] == "python benchmarks/spine.py"
    gone = {"demo": (shipped_workflows.Figure("A whole run", "no such row", ("seconds",), "python"),)}
    monkeypatch.setattr(shipped_workflows, "FIGURES", gone)
    with pytest.raises(ValueError, match="not enough values"):
        index()
    assert FIGURES.keys() <= set(shipped_names())

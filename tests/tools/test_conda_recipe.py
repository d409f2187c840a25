"""The conda recipe says what `pyproject.toml` says, in conda-forge's names."""

from __future__ import annotations

import re
import tomllib

import yaml

from tools.conda_recipe import BY_PIP, NAMES, RECIPE, ROOT, recipe, text
from tools.wheels import requirement_name


def test_the_recipe_is_what_the_project_says() -> None:
    written = RECIPE.read_text(encoding="utf-8")
    assert written == text(), "python -m tools.conda_recipe writes it anew"
    assert yaml.safe_load(written) == recipe()


def test_each_requirement_is_in_the_recipe_or_is_for_pip() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for name, texts in project["optional-dependencies"].items() if name != "dev" for text in texts]
    asked = {requirement_name(text) for text in [*project["dependencies"], *extras]}
    assert {*NAMES, *BY_PIP} <= asked, "what nothing asks for any more"
    runtime, whole = (output["requirements"] for output in recipe()["outputs"])
    listed = {text.split()[0] for text in whole["run"] + whole["run_constraints"]}
    assert {NAMES.get(name, name) for name in asked - BY_PIP} <= listed
    assert {text.split()[0] for text in runtime["run"]} <= listed
    page = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")
    plugins = {name for name in BY_PIP if name.startswith("onnxruntime-ep-")}
    assert [name for name in BY_PIP - plugins - {"onnxruntime-gpu"} if f"`{name}`" not in page] == []


def test_ranges_are_conda_s_without_markers_and_extras() -> None:
    for output in recipe()["outputs"]:
        needs = output["requirements"]
        for line in [*needs["run"], *needs["run_constraints"], *needs["host"]]:
            assert re.fullmatch(r"\$\{\{.*\}\}|[\w.-]+( [<>=][\w.<>=,]+)?", line), line

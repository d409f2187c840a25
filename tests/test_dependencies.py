"""What the code imports is declared in `pyproject.toml`, and known by the name under which it is declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from olivelike._installed import DISTRIBUTIONS
from tests.fixtures.own_code import nodes_of, own_files

ROOT = Path(__file__).parents[1]


@cache
def imported() -> dict[str, Path]:
    """Top-level modules of other distributions, each with a file that imports it."""
    found: dict[str, Path] = {}
    for path in own_files():
        for node in nodes_of(path):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found |= {name.partition(".")[0]: path for name in names}
    ours = {"olivelike", *sys.stdlib_module_names}
    return {top: path for top, path in found.items() if top not in ours}


def declared() -> set[str]:
    """Names of all distributions that an installation may bring, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for name in extras if name != "dev" for text in extras[name])]
    return {normal(re.match(r"[\w.-]+", text)[0]) for text in texts}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_imported_module_has_a_known_distribution() -> None:
    assert {top: str(path) for top, path in imported().items() if top not in DISTRIBUTIONS} == {}


def test_every_imported_distribution_is_declared() -> None:
    assert {normal(DISTRIBUTIONS[top]) for top in imported()} <= declared()


def test_every_declared_range_holds_what_is_installed_here() -> None:
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:  # ONNX Runtime comes under several names.
            assert requirement.name.startswith("onnxruntime"), text
        else:
            assert requirement.specifier.contains(installed, prereleases=True), (text, installed)

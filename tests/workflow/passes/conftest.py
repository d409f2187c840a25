"""Writes plugins to disk for the tests of the registry."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PASS = """\
from olivelike.pass_api import Pass
{imports}

class {name}(Pass):
    reads = ("graph",)
    writes = ("graph",)

    def run(self, model, context):
        return {value}
"""


@pytest.fixture
def write(tmp_path):
    """Write a file below the test's folder and return its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def write_pass(write):
    """Write a file with one pass."""

    def write_pass(file: str, name: str, imports: str = "", value: str = "model") -> Path:
        return write(file, PASS.format(name=name, imports=imports, value=value))

    return write_pass


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with entry points on the import path, as pip leaves it on disk."""

    def install(distribution: str, entry_points: dict[str, str]) -> Path:
        site = tmp_path / "site-packages"
        info = site / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[olivelike.passes]\n{lines}")
        monkeypatch.syspath_prepend(site)
        return site

    return install

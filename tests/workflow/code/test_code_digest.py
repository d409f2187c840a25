"""The digest of a pass's code changes when the code does, and only then."""

from __future__ import annotations

import shutil
import sys

import pytest

from olivelike.digest import digest_json
from olivelike.workflow.code.code_digest import code_digest, module_code_digest
from olivelike.workflow.passes import Registry


def digest_of(plugin, name="sharpen"):
    return code_digest(Registry.load([str(plugin)]).get(name))


def own_modules(plugin):
    """The modules that are not olivelike's."""
    return [name for name in digest_of(plugin).modules if name.partition(".")[0] != "olivelike"]


@pytest.fixture
def plugin(write, write_pass):
    write("p/tint.py", "import shade\nVALUE = 1\n")
    write("p/shade.py", "def late():\n    import deep\n")
    write("p/deep.py", "DEEP = 1\n")
    write("p/unrelated.py", "x = 1\n")
    return write_pass("p/sharpen.py", "Sharpen", "import json\nimport yaml\nfrom tint import VALUE")


def test_it_covers_the_module_and_all_local_modules_that_it_reaches(plugin):
    assert own_modules(plugin) == [".sharpen", "deep", "shade", "tint"]


@pytest.mark.parametrize("changed", ["sharpen", "tint", "shade", "deep"])
def test_a_change_in_any_of_them_changes_it_and_names_the_module(plugin, changed):
    before = digest_of(plugin)
    file = plugin.with_name(f"{changed}.py")
    file.write_text(file.read_text() + "# changed\n")
    after = digest_of(plugin)
    assert before.digest != after.digest
    different = {name.strip(".") for name in before.modules if before.modules[name] != after.modules[name]}
    assert different == {changed}


def test_moving_the_folder_touching_files_and_other_line_ends_change_nothing(plugin, tmp_path):
    before = digest_of(plugin)
    unrelated = plugin.with_name("unrelated.py")
    unrelated.write_text("y = 2\n")
    moved = shutil.move(plugin.parent, tmp_path / "elsewhere")
    for file in moved.iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert digest_of(moved / "sharpen.py") == before


def test_a_package_counts_with_its_relative_imports_and_its_init(write, write_pass, tmp_path):
    write("filters/__init__.py", "from . import setup\n")
    write("filters/setup.py", "")
    write("filters/sub/__init__.py", "def unused():\n    from ..never import x\n")
    write("filters/sub/tint.py", "from ..base import x\n")
    write("filters/base.py", "x = 1\n")
    write("filters/never.py", "x = 1\n")
    write_pass("filters/sharpen.py", "Sharpen", "from .sub import tint")
    modules = own_modules(tmp_path / "filters")
    # `sub` is imported by name, so its functions may be called.
    assert modules == [".", ".base", ".never", ".setup", ".sharpen", ".sub", ".sub.tint"]


def test_a_parent_package_counts_whole_since_it_may_call_its_own_functions(write, write_pass):
    write("lazy/__init__.py", "def used():\n    import big\nused()\n")
    write("lazy/tint.py", "x = 1\n")
    write("big.py", "x = 1\n")
    plugin = write_pass("sharpen.py", "Sharpen", "import lazy.tint")
    assert own_modules(plugin) == [".sharpen", "big", "lazy", "lazy.tint"]


def test_imports_for_type_checkers_do_not_count(write, write_pass):
    write("tint.py", "x = 1\n")
    imports = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tint"
    assert own_modules(write_pass("sharpen.py", "Sharpen", imports)) == [".sharpen"]


def test_an_optional_module_counts_as_absent_until_it_appears(write, write_pass):
    imports = "try:\n    import maybe\nexcept ImportError:\n    maybe = None"
    plugin = write_pass("sharpen.py", "Sharpen", imports)
    before = digest_of(plugin)
    assert before.modules["maybe"] == "absent"
    write("maybe.py", "x = 1\n")
    assert digest_of(plugin).digest != before.digest


def test_a_file_with_the_name_of_a_module_that_python_lacks_here_counts(write, write_pass):
    lacking = "winreg" if sys.platform != "win32" else "fcntl"
    plugin = write_pass("sharpen.py", "Sharpen", f"try:\n    import {lacking}\nexcept ImportError:\n    pass")
    before = digest_of(plugin).digest
    write(f"{lacking}.py", "VALUE = 1\n")
    first = digest_of(plugin).digest
    write(f"{lacking}.py", "VALUE = 2\n")
    assert len({before, first, digest_of(plugin).digest}) == 3


def test_nothing_is_imported_to_compute_it(write, write_pass):
    write("danger.py", "raise SystemExit('imported')\n")
    plugin = write_pass("sharpen.py", "Sharpen", value="__import__('danger')")
    assert "danger" in digest_of(plugin).modules
    assert "danger" not in sys.modules


def test_import_module_with_a_literal_name_is_an_import(write, write_pass):
    write("tint.py", "x = 1\n")
    plugin = write_pass("sharpen.py", "Sharpen", "import importlib\ntint = importlib.import_module('tint')")
    assert own_modules(plugin) == [".sharpen", "tint"]


def test_a_class_without_a_source_file_is_uncacheable(write_pass):
    plugin = write_pass("sharpen.py", "Sharpen")
    entry = Registry.load([str(plugin)]).get("sharpen")
    plugin.unlink()
    assert "can't be found" in code_digest(entry).uncacheable


def test_a_module_that_is_not_python_is_uncacheable(write, write_pass):
    plugin = write_pass("sharpen.py", "Sharpen", value="__import__('tint')")
    write("tint.py", "x = (\n")
    assert "tint.py is not valid Python" in digest_of(plugin).uncacheable


def test_every_built_in_pass_is_cacheable_and_made_of_olivelike_alone():
    for entry in Registry.built_in().entries():
        found = code_digest(entry)
        assert found.digest is not None, found.uncacheable
        assert entry.cls.__module__ in found.modules
        assert all(name.partition(".")[0] == "olivelike" for name in found.modules)
        assert "absent" not in found.modules.values()
        assert not {"olivelike.engine", "olivelike.cli", "olivelike.workflow.passes"} & set(found.modules)


def test_a_module_of_the_engine_can_be_digested_alone():
    found = module_code_digest("olivelike.errors")
    assert list(found.modules) == ["olivelike.errors"]


def test_the_form_of_the_digest_is_pinned(write):
    head = "import q\nfrom olivelike.pass_api import Pass\n\n\nclass P(Pass):\n"
    plugin = write("p.py", head + "    def run(self, m, c):\n        ...\n")
    write("q.py", "")
    found = digest_of(plugin, "p")
    assert {name: found.modules[name] for name in (".p", "q")} == {
        ".p": "775bfa53e2d488b903518c03167c0e1ab7132a83ed58369bb940bd0294c43341",
        "q": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }
    assert found.digest == digest_json(["code/1", dict(found.modules)])


def test_the_modules_of_olivelike_that_a_plugin_uses_count_by_their_code(write_pass):
    """An engine that is worked on keeps its version while its code changes."""
    plugin = write_pass("sharpen.py", "Sharpen", "from olivelike.model import Graph")
    found = digest_of(plugin)
    assert {"olivelike.pass_api.pass_class", "olivelike.model.graph"} <= set(found.modules)
    assert "olivelike.model.weights" not in found.modules
    assert {"onnx", "onnx-ir"} <= set(found.tools)


def test_the_distributions_that_code_imports_are_found_and_those_that_only_check_options_are_not(write_pass):
    imports = "import numpy as np\nfrom pydantic import Field\nimport json\n\ndef late():\n    import onnx.helper"
    assert {"numpy", "onnx"} == set(digest_of(write_pass("sharpen.py", "Sharpen", imports)).tools)


def test_a_module_in_site_packages_that_no_distribution_installed_counts_by_its_code(
    write, write_pass, tmp_path, monkeypatch
):
    write("site-packages/stray.py", "x = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    assert own_modules(write_pass("sharpen.py", "Sharpen", "import stray")) == [".sharpen", "stray"]

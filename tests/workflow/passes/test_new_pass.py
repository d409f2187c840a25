"""The beginning of a new pass."""

from __future__ import annotations

import runpy

import pytest

from olivelike.errors import UsageError
from olivelike.workflow.code.code_digest import code_digest
from olivelike.workflow.passes import Registry, new_pass


def test_the_written_pass_loads_under_its_name_and_has_at_most_fifteen_lines_of_code(tmp_path):
    module, test = new_pass("prune_heads", tmp_path / "passes")
    entry = Registry.load([str(module)]).get("prune_heads")
    assert entry.cls().label == "prune_heads"
    assert len([line for line in module.read_text().splitlines() if line.strip()]) <= 15
    assert test.name == "test_prune_heads.py"


def test_a_folder_with_the_pass_and_its_test_is_a_plugin(tmp_path):
    new_pass("prune_heads", tmp_path)
    assert "prune_heads" in Registry.load([str(tmp_path)]).names()


@pytest.mark.parametrize(
    "name", ["Prune", "prune-heads", "2d", "prune_2d", "class", "", "a__b", "../x", "con", "lpt1", "test_x"]
)
def test_a_name_that_no_pass_can_have_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="can't be the name of a pass"):
        new_pass(name, tmp_path)


def test_the_name_of_a_built_in_pass_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'fuse' is the name of a built-in pass; choose another"):
        new_pass("fuse", tmp_path)
    assert not [*tmp_path.iterdir()]


def test_existing_files_are_left_alone(tmp_path):
    (tmp_path / "test_prune.py").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        new_pass("prune", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_prune.py"]


@pytest.mark.parametrize("writes", ["graph", "weights"])
def test_the_written_test_passes_and_the_pass_is_cached(tmp_path, monkeypatch, writes):
    module, test = new_pass(f"my_{writes}", tmp_path, writes)
    entry = Registry.load([str(module)]).get(f"my_{writes}")
    assert entry.cls.writes == (writes,)
    assert code_digest(entry).uncacheable is None
    monkeypatch.syspath_prepend(tmp_path)
    functions = runpy.run_path(str(test))
    tests = [value for name, value in functions.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()

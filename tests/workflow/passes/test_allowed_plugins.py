"""The user's record of plugins that workflow files may run."""

from __future__ import annotations

import json
import os
import stat

import pytest

from olivelike.errors import PluginError
from olivelike.workflow.passes.allowed_plugins import AllowedPlugins, ListedPlugin


@pytest.fixture
def record(tmp_path):
    return tmp_path / "state" / "allowed-plugins.json"


@pytest.fixture
def plugin(write, write_pass):
    write("p/tint.py", "VALUE = 1\n")
    return ListedPlugin(write_pass("p/sharpen.py", "Sharpen", "from tint import VALUE"), "w.yaml:1:1")


def test_nothing_is_allowed_at_first(record, plugin):
    assert not AllowedPlugins(record).allows(plugin)
    assert not record.exists()


@pytest.mark.parametrize("changed", ["sharpen", "tint"])
def test_a_yes_holds_until_the_code_or_a_helper_changes(record, plugin, changed):
    AllowedPlugins(record).allow([plugin])
    assert AllowedPlugins(record).allows(plugin)
    file = plugin.path.with_name(f"{changed}.py")
    file.write_text(file.read_text() + "x = 1\n")
    assert not AllowedPlugins(record).allows(plugin)


def test_a_yes_is_for_one_path(record, plugin, write_pass, write):
    AllowedPlugins(record).allow([plugin])
    write("q/tint.py", "VALUE = 1\n")
    copied = ListedPlugin(write_pass("q/sharpen.py", "Sharpen", "from tint import VALUE"), "w.yaml:1:1")
    assert not AllowedPlugins(record).allows(copied)


def test_an_allowed_folder_stays_allowed_when_its_code_changes_and_its_neighbours_are_not(record, plugin, tmp_path):
    AllowedPlugins(record).allow_folders([tmp_path / "p"])
    plugin.path.write_text("x = 1\n")
    assert AllowedPlugins(record).allows(plugin)
    assert not AllowedPlugins(record).allows(ListedPlugin(tmp_path / "p2" / "sharpen.py", "w.yaml:1:1"))


def test_asking_about_code_does_not_run_it(record, write):
    plugin = ListedPlugin(write("p/danger.py", "raise SystemExit('ran')\n"), "w.yaml:1:1")
    AllowedPlugins(record).allow([plugin])
    assert AllowedPlugins(record).allows(plugin)


def test_code_that_is_not_python_can_be_asked_about(record, write):
    plugin = ListedPlugin(write("p/broken.py", "x = (\n"), "w.yaml:1:1")
    AllowedPlugins(record).allow([plugin])
    assert AllowedPlugins(record).allows(plugin)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_record_belongs_to_its_user_alone(record, plugin):
    AllowedPlugins(record).allow([plugin])
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    record.chmod(0o666)
    with pytest.raises(PluginError, match="other users can write to it; remove it"):
        AllowedPlugins(record).allows(plugin)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"folders": 1, "code": {}}', '{"folders": [1], "code": {}}', "[" * 10**5, "\0"]
)
def test_a_damaged_record_allows_nothing_and_is_written_anew(record, plugin, text):
    record.parent.mkdir()
    record.write_text(text)
    record.chmod(0o600)
    assert not AllowedPlugins(record).allows(plugin)
    AllowedPlugins(record).allow([plugin])
    assert AllowedPlugins(record).allows(plugin)
    assert list(json.loads(record.read_text())["code"]) == [str(plugin.path)]
    assert [path.name for path in record.parent.iterdir()] == [record.name]


def test_a_record_that_cannot_be_written_is_an_error_with_the_way_round(record, plugin):
    record.parent.write_text("a file where the folder should be")
    with pytest.raises(PluginError, match="--allow-plugins"):
        AllowedPlugins(record).allow([plugin])

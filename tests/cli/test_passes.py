from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.little_project import PLUGIN


@pytest.fixture
def plugin(empty_folder):
    (empty_folder / "mine.py").write_text(PLUGIN)
    return "mine.py"


def test_the_list_has_built_in_passes_and_those_of_a_plugin(cli, plugin):
    out = cli("passes", "list", "--plugin", plugin).out
    for line in ("convert built-in", "label plugin"):
        assert any(" ".join(shown.split()).startswith(line) for shown in out.splitlines())
    assert "Name the graph." in out


def test_the_list_as_json_has_what_each_pass_declares(cli, plugin):
    entries = {entry["name"]: entry for entry in json.loads(cli("passes", "list", "--plugin", plugin, "--json").out)}
    assert entries["label"]["reads"] == entries["label"]["writes"] == ["graph"]
    assert entries["label"]["purpose"] == "Name the graph."


def test_show_describes_a_pass_and_its_options(cli, plugin):
    out = cli("passes", "show", "label", "--plugin", plugin).out
    assert "Name the graph." in out
    assert "reads:      graph" in out
    assert '  text: str, default "labelled"\n      Name that the graph gets.' in out


def test_show_writes_types_as_people_read_them(cli, empty_folder):
    (empty_folder / "typed.py").write_text(
        "from typing import Literal, Optional, Union\n"
        "from olivelike.pass_api import Pass\n"
        "class Typed(Pass):\n"
        '    """Have options of many types."""\n'
        "    mode: Literal['fast', 'small'] | None = None\n"
        "    old: Optional[int] = 3\n"
        "    names: tuple[str, ...] = ()\n"
        "    sizes: dict[str, int]\n"
        "    def run(self, model, context):\n"
        "        return model\n"
    )
    out = cli("passes", "show", "typed", "--plugin", "typed.py").out
    assert [line.strip() for line in out.splitlines() if line.startswith("  ")] == [
        "mode: 'fast' | 'small' | none, default null",
        "old: int | none, default 3",
        "names: tuple[str, ...], default []",
        "sizes: dict[str, int], required",
    ]


def test_show_as_json_has_the_options_with_type_default_and_help(cli, plugin):
    shown = json.loads(cli("passes", "show", "label", "--plugin", plugin, "--json").out)
    assert shown["options"] == [
        {"name": "text", "type": "str", "required": False, "default": "labelled", "help": "Name that the graph gets."}
    ]


def test_an_unknown_pass_gets_the_nearest_name(cli):
    result = cli("passes", "show", "convrt")
    assert result.status == 2
    assert "did you mean 'convert'?" in result.err


def test_a_new_pass_can_be_used_and_is_never_written_over(cli, empty_folder):
    result = cli("passes", "new", "sharpen")
    assert result.status == 0
    assert result.out.startswith("wrote plugins/sharpen.py and plugins/test_sharpen.py\n")
    assert "sharpen" in cli("passes", "list", "--plugin", "plugins/sharpen.py").out
    assert cli("passes", "new", "sharpen").status == 2


def test_a_new_pass_goes_into_the_folder_that_is_named(cli, empty_folder):
    cli("passes", "new", "sharpen", "--folder", "deep/inside")
    assert (empty_folder / "deep" / "inside" / "test_sharpen.py").is_file()


def test_the_command_line_lists_passes_without_heavy_libraries(empty_folder):
    code = (
        "import sys; from olivelike.cli.app import run_command_line as run; run(['passes', 'list']); "
        "sys.exit(sum(name in sys.modules for name in ('torch', 'onnx', 'diffusers', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0

"""A workflow that came from elsewhere runs no code before the user said yes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from olivelike.cli.app import COMMANDS
from tests.cli.little_project import PLUGIN, WORKFLOW

MARK = "\nfrom pathlib import Path\nPath(__file__).with_name('RAN').touch()\n"


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """A stranger's project as the current folder, and a user who has allowed nothing yet."""
    folder = tmp_path / "downloaded"
    (folder / "workflows").mkdir(parents=True)
    (folder / "workflows" / "little.yaml").write_text(WORKFLOW)
    (folder / "plugins").mkdir()
    (folder / "plugins" / "passes_for_tests.py").write_text(PLUGIN + MARK)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def has_run(folder):
    return (folder / "plugins" / "RAN").exists()


def clear(folder):
    (folder / "plugins" / "RAN").unlink()


HERE = [name for name in ("ablate",) if name in COMMANDS]
"""Commands of extras whose folders are here."""


@pytest.mark.parametrize(
    "command", ["run", "plan", "graph", "explain", "validate", "cache pin", "run --dry-run", "run --json", *HERE]
)
def test_no_command_runs_the_code_of_a_workflow_that_was_not_allowed(downloaded, cli, command):
    result = cli(*command.split(), "workflows/little.yaml")
    assert result.status == 2
    assert not has_run(downloaded)
    assert "workflows/little.yaml:4:11: it would run the code of " in result.err
    assert f"{downloaded}/plugins" in result.err
    assert "read that code, then give --allow-plugins" in result.err


def test_a_workflow_that_extends_a_downloaded_one_runs_no_code_either(downloaded, cli, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: downloaded/workflows/little.yaml\nname: mine\n")
    result = cli("validate", mine)
    assert result.status == 2
    assert not has_run(downloaded)
    assert "little.yaml:4:11: it would run the code of " in result.err


def test_a_yes_on_the_command_line_is_for_one_command(downloaded, cli):
    assert cli("validate", "workflows/little.yaml", "--allow-plugins").status == 0
    assert has_run(downloaded)
    clear(downloaded)
    assert cli("validate", "workflows/little.yaml").status == 2
    assert not has_run(downloaded)


@pytest.mark.parametrize("arguments", [["--plugin", "plugins"], ["--set", "plugins=[plugins]"]])
def test_code_that_is_named_on_the_command_line_runs(downloaded, cli, arguments):
    text = (downloaded / "workflows" / "little.yaml").read_text().replace("plugins: [../plugins]\n", "")
    (downloaded / "little.yaml").write_text(text)
    assert cli("validate", "little.yaml", *arguments).status == 0
    assert has_run(downloaded)


def test_a_new_project_may_run_the_code_that_it_was_given(downloaded, cli):
    cli("init", "mine")
    assert cli("validate", "mine/workflows/mine.yaml").status == 0


@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_on_a_terminal_the_user_is_asked_once_and_again_when_the_code_changes(downloaded, cli):
    first = on_a_terminal("y")
    assert "This workflow runs code that you have not allowed" in first
    assert f"{downloaded}/plugins" in first
    assert "valid (1 component, 2 steps)" in first
    assert cli("validate", "workflows/little.yaml").status == 0
    (downloaded / "plugins" / "passes_for_tests.py").write_text(PLUGIN + MARK + "x = 1\n")
    clear(downloaded)
    assert "which you have not allowed; read that code" in on_a_terminal("n")
    assert not has_run(downloaded)
    on_a_terminal("a")
    (downloaded / "plugins" / "passes_for_tests.py").write_text(PLUGIN + MARK + "x = 2\n")
    assert cli("validate", "workflows/little.yaml").status == 0


def on_a_terminal(answer):
    """Validate on a terminal of its own, and return what it showed."""
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "olivelike", "validate", "workflows/little.yaml"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # Linux tells the end of a terminal so.
        pass
    os.close(ours)
    process.wait()
    return shown.decode()


def test_names_with_control_characters_cannot_change_the_question(downloaded, monkeypatch, capsys):
    from pathlib import Path

    from olivelike.cli.options import ask_plugins
    from olivelike.workflow.passes.allowed_plugins import ListedPlugin

    monkeypatch.setattr("sys.stdin", terminal("n\n"))
    monkeypatch.setattr("sys.stderr", shown := terminal())
    assert ask_plugins([ListedPlugin(Path("/p/\x1b[2Kgood\n.py"), "w\x1b.yaml:1:1")]) == "no"
    assert "\x1b" not in shown.getvalue()
    assert "good\n" not in shown.getvalue()


def terminal(text=""):
    import io

    stream = io.StringIO(text)
    stream.isatty = lambda: True
    return stream

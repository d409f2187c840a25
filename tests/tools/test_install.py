"""Installation by uv from where pip is set up to take packages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools import install

SETTINGS = """[global]
index-url = https://mirror.example/simple
extra-index-url =
    file:///first/simple
    file:///second/simple
find-links =
    /wheels
    /others
constraint = /not/this.txt
timeout = 30
"""


def test_uv_takes_packages_from_where_pip_would(tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text(SETTINGS)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CONSTRAINT", "/constraints.txt")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    found = install.settings()
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert found["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert found["UV_INDEX"] == "file:///first/simple file:///second/simple"
    assert found["UV_FIND_LINKS"] == "/wheels,/others"
    assert found["UV_CONSTRAINT"] == "/constraints.txt"
    assert "30" not in found.values()


def test_pip_does_it_where_uv_does_not(monkeypatch, capfd):
    commands = []

    def run(command, **options):
        commands.append(command[2:])
        return subprocess.CompletedProcess(command, returncode=int("uv" in command), stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    assert install.main() == 0
    assert [command[0] for command in commands] == ["pip", "pip", "pip"]
    assert commands[-1][1] == "install" and commands[-1][-2:] == list(install.WHAT)
    assert capfd.readouterr().err == "uv did not install olivelike; pip does it now\n"


def test_a_new_environment_is_lent_the_pip_that_comes_with_python(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "before")
    install.lend_pip(tmp_path)
    assert os.environ["PYTHONPATH"] == str(tmp_path)
    assert (tmp_path / "pip" / "__main__.py").is_file()
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match="this Python comes without pip; install"):
        install.lend_pip(tmp_path)

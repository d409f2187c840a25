"""`olivelike export-web`: what it says, and the status it ends with."""

from __future__ import annotations

import json

import pytest

from tests.cli import conftest as commands
from tests.extras.deploy.web_outputs import TARBALL, files_of_an_output, take_as_release, write_output

cli, empty_folder = commands.cli, commands.empty_folder
_jobs_in_this_process, _no_store_of_the_user = commands._jobs_in_this_process, commands._no_store_of_the_user


@pytest.fixture
def folder(empty_folder, monkeypatch):
    take_as_release(monkeypatch)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setattr("olivelike.extras.deploy.web_runtime._cache", lambda: empty_folder / "user cache")
    write_output(empty_folder / "painter", files_of_an_output())
    (empty_folder / "runtime.tgz").write_bytes(TARBALL)
    return empty_folder


def test_a_page_is_written_and_the_next_command_told(cli, folder):
    result = cli("export-web", "painter", "my site", "--onnxruntime-web", "runtime.tgz")
    assert result.status == 0
    assert "wrote my site: " in result.out
    assert "python -m http.server --directory 'my site'" in result.out
    assert (folder / "my site" / "index.html").is_file()


def test_json_has_the_figures(cli, folder):
    result = cli("export-web", "painter", "site", "--onnxruntime-web", "runtime.tgz", "--json")
    found = json.loads(result.out)
    assert found["onnxruntime_web"] == "1.30.0"
    assert found["files"] == sum(path.is_file() for path in (folder / "site").rglob("*")) - 1


def test_errors_have_their_status(cli, folder):
    assert cli("export-web", "nowhere", "site").status == 3
    offline = cli("export-web", "painter", "site")
    assert offline.status == 3
    assert "fetching http://127.0.0.1:9/" in offline.err
    assert "npm pack onnxruntime-web@1.30.0" in offline.err
    (folder / "site").mkdir()
    (folder / "site" / "mine.txt").write_text("mine")
    assert cli("export-web", "painter", "site", "--onnxruntime-web", "runtime.tgz").status == 2

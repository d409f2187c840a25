"""A project whose results are stored already, and the command line as a function."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

import pytest

from olivelike.cli import stdout
from olivelike.cli.app import run_command_line
from tests.cli.little_project import PLUGIN, WORKFLOW
from tests.fixtures.little_pipeline import flagging_pipeline, little_pipeline
from tests.fixtures.made_folders import WHOLE

if WHOLE:
    from olivelike.engine.execute import process_executor
    from tests.fixtures.inline_executor import InlineExecutor


@dataclass
class Result:
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def warm_project(tmp_path_factory):
    """A project that was run once; tests get copies."""
    from olivelike.testing import load_model
    from olivelike.testing.checkpoints import make_checkpoint
    from olivelike.testing.models import lend_graphs

    folder = tmp_path_factory.mktemp("warm") / "project"
    make_checkpoint(folder / "checkpoint")
    lend_graphs(folder / "cache", [load_model(folder / "checkpoint", "text_encoder").architecture])
    (folder / "workflows").mkdir()
    (folder / "workflows" / "little.yaml").write_text(WORKFLOW)
    (folder / "plugins").mkdir()
    (folder / "plugins" / "passes_for_tests.py").write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        forget_the_user(patched)
        patched.setattr(process_executor, "ProcessExecutor", InlineExecutor)
        assert run_command_line(["run", "workflows/little.yaml"]) == 0
    gc.collect()  # A store that is still in memory is claimed, and its copies with it.
    assert not list((folder / "cache" / "locks" / "live").iterdir())
    return folder


@pytest.fixture
def project(warm_project, tmp_path, monkeypatch):
    """A copy of the warm project, as the current folder."""
    folder = tmp_path / "project"
    shutil.copytree(warm_project, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """An empty current folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def _no_store_of_the_user(monkeypatch):
    forget_the_user(monkeypatch)


@pytest.fixture(autouse=True)
def _jobs_in_this_process(request, monkeypatch):
    """Spare runs in this process their worker processes; commands that `start` starts have them, and tests of them."""
    if WHOLE and "worker_processes" not in request.fixturenames:
        monkeypatch.setattr(process_executor, "ProcessExecutor", InlineExecutor)


@pytest.fixture
def worker_processes():
    """Let runs in this process start worker processes."""


@pytest.fixture
def cli(capsys, monkeypatch):
    """Run one command in this process."""
    monkeypatch.setattr(stdout, "reader_left", False)

    def cli(*arguments: object) -> Result:
        capsys.readouterr()
        status = run_command_line([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return Result(status, found.out, found.err)

    return cli


@pytest.fixture
def start():
    """Start a command as a real process; what is still alive at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, python: tuple[str, ...] = (), **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, *python, "-m", "olivelike", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(command, text=True, env=environment(), **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def forget_the_user(monkeypatch):
    """Leave out what the user says of the store."""
    for name in ("OLIVELIKE_CACHE_DIR", "OLIVELIKE_CACHE_SIZE"):
        monkeypatch.delenv(name, raising=False)


def environment() -> dict[str, str]:
    """Return the environment of child processes: nothing of the user's store."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OLIVELIKE_")}
    return {**kept}


@pytest.fixture(scope="session")
def little(one_torch_thread):
    """The optimised folder of the little pipeline; not to be changed."""
    return little_pipeline()


@pytest.fixture(scope="session")
def flagging(tmp_path_factory):
    """The same folder with a checker that flags everything."""
    return flagging_pipeline(tmp_path_factory.mktemp("flagging") / "little")


@pytest.fixture
def generate(cli, empty_folder, little):
    """Run `olivelike generate` on the little pipeline with two steps, in an empty folder."""

    def generate(*arguments, folder=little, steps=("--steps", 2)):
        return cli("generate", folder, *arguments, *steps, "--threads", 1)

    return generate

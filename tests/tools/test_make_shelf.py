"""The shelf that ships is what the exporter makes, with each supported torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELVES = (ROOT / "olivelike" / "data" / "shelf", ROOT / "tests" / "fixtures" / "shelf")
QUICK = "vae_decoder"


def check(shelf: Path, python: str = sys.executable, **environment: str) -> str:
    """Trace every graph of a shelf again; return what differs."""
    code = "import sys; from olivelike.cli.app import run_command_line as run; sys.exit(run(sys.argv[1:]))"
    command = [python, "-c", code, "shelf", "verify", "--fresh", "--shelf", str(shelf)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow  # `test_a_fresh_trace_gives_the_same_bytes_in_another_node` holds the exporter to a shelf, too.
def test_a_quick_graph_is_what_the_exporter_makes(one_torch_thread):
    """The demo's VAE decoder, traced anew, as `tests/engine/test_shelf.py` does with its text encoder.

    The slow tests trace all.
    """
    import logging

    from olivelike.graphs.shelf import BUILT_IN, ShelfFolder
    from olivelike.graphs.shelf.filling import differs

    entries = [entry for _, entry in ShelfFolder(BUILT_IN).entries() if entry.about == "the demo"]
    (chosen,) = (entry for entry in entries if entry.kind == "graph" and entry.component == QUICK)
    assert not differs(chosen, logging.getLogger("test"))


@pytest.mark.slow
@pytest.mark.parametrize("shelf", SHELVES, ids=["shipped", "tests"])
def test_every_graph_is_what_the_exporter_makes(shelf):
    assert check(shelf) == ""


@pytest.mark.slow
def test_the_tool_makes_the_shelf_that_ships():
    """Names and defaults too; graphs are taken as they are, since the test above traces them."""
    command = [sys.executable, str(ROOT / "tools" / "make_shelf.py"), "--check", "--only", "demo,sd15"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_oldest_supported_torch_makes_the_same_graphs(tmp_path):
    """Installs torch 2.11 beside the other libraries, from the registry; skipped without it."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "torch"),
        "torch==2.11.*",
    ]
    if subprocess.run([*install, "torch==2.11.*"], capture_output=True, check=False).returncode != 0:
        pytest.skip("torch 2.11 can't be installed from here")
    importing = [sys.executable, "-c", "import torch"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "torch")}
    if subprocess.run(importing, env=environment, capture_output=True, check=False).returncode != 0:
        pytest.skip("the torch 2.11 of the registry needs libraries that are not here, such as CUDA's")
    for shelf in SHELVES:
        assert check(shelf, PYTHONPATH=str(tmp_path / "torch")) == ""

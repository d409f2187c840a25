"""Graphs that are traced once on a machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from olivelike.model import Architecture
from olivelike.store import Store
from olivelike.testing import tiny_model
from olivelike.testing.models import SHELF_VARIABLE, shared_folder, traced_graph

CHILD = """
import sys
from olivelike.model import Architecture
from olivelike.testing.models import traced_graph
graph = traced_graph(Architecture.from_bytes(sys.stdin.buffer.read()))
print(graph.digest, "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A user's cache folder, for all tests of the file: tracing takes seconds."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.delenv(SHELF_VARIABLE)
        yield folder


@pytest.fixture(scope="module")
def architecture(one_torch_thread):
    """An architecture that is traced in a second: a text encoder with one layer."""
    config = tiny_model("text_encoder").architecture.config
    return Architecture("text_encoder", "transformers", "CLIPTextModel", {**config, "num_hidden_layers": 1})


def digest_in_another_process(architecture: Architecture) -> tuple[str, str]:
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, input=architecture.to_bytes(), capture_output=True, check=True)
    digest, torch_is_imported = done.stdout.decode().split()
    return digest, torch_is_imported


@pytest.mark.skipif(sys.platform != "linux", reason="names its folder by $XDG_CACHE_HOME")
def test_a_graph_is_traced_once_and_then_read_by_any_process(architecture, home):
    graph = traced_graph(architecture)
    assert shared_folder().is_relative_to(home)
    assert digest_in_another_process(architecture) == (graph.digest, "False")


@pytest.mark.skipif(sys.platform != "linux", reason="names its folder by $XDG_CACHE_HOME")
def test_a_damaged_graph_is_traced_again(architecture, home, monkeypatch):
    graph = traced_graph(architecture)
    traced = []
    monkeypatch.setattr("olivelike.graphs.export.export_component", lambda *asked: traced.append(asked) or graph)
    Store.open(shared_folder()).object_path(graph.digest).chmod(0o600)
    Store.open(shared_folder()).object_path(graph.digest).write_bytes(b"\0" * len(graph.to_bytes()))
    assert traced_graph(architecture) == graph
    assert len(traced) == 1
    assert traced_graph(architecture) == graph
    assert len(traced) == 1

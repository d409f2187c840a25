"""`olivelike shelf`: what is there, whether it is right, and adding to it."""

from __future__ import annotations

import json

import pytest

from olivelike.cli.app import run_command_line
from olivelike.graphs.shelf import BUILT_IN, ShelfFolder
from olivelike.testing.models import traced_graph
from tests.fixtures.little_pipeline import little_checkpoint


def shelf(capsys, *arguments: str) -> tuple[int, str]:
    status = run_command_line(["shelf", *arguments])
    return status, capsys.readouterr().out


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("OLIVELIKE_SHELF", str(tmp_path / "own"))
    return tmp_path / "own"


def test_the_list_names_what_ships(capsys):
    status, told = shelf(capsys, "list")
    assert status == 0
    assert "Stable Diffusion 1.4 and 1.5" in told
    _, told = shelf(capsys, "list", "--json")
    assert len(json.loads(told)) == len(list(ShelfFolder(BUILT_IN).entries()))


def test_a_private_architecture_is_added_listed_verified_and_used(own, capsys, tmp_path, monkeypatch):
    """That a second trace gives the same is what `tests/tools/test_make_shelf.py` sees; here it is asked for."""
    asked = []

    def traced_before(architecture, _logger):
        asked.append(architecture.component)
        return traced_graph(architecture)

    monkeypatch.setattr("olivelike.graphs.export.export_component", traced_before)
    source = str(little_checkpoint())
    status, told = shelf(capsys, "add", source, "--component", "text_encoder", "--about", "our little one")
    assert (status, told.splitlines()[-1]) == (0, f"1 network is on the shelf {own}")
    _, told = shelf(capsys, "list", "--shelf", str(own))
    assert told.count("our little one") == 2
    assert len(asked) == 1
    assert shelf(capsys, "verify", "--fresh", "--shelf", str(own))[0] == 0
    assert len(asked) == 2
    workflow = tmp_path / "a.yaml"
    workflow.write_text(f"source: {source}\ntarget: cpu\ncomponents: {{text_encoder: [convert]}}\noutput: out\n")
    run_command_line(["plan", str(workflow), "--json"])
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [node["status"] for node in nodes if node["component"] == "text_encoder"] == ["shelf", "shelf", "miss"]


def test_a_damaged_file_is_named_and_the_status_is_3(own, capsys):
    own.mkdir()
    one = next(iter(BUILT_IN.glob("graph-*")))
    (own / one.name).write_bytes(one.read_bytes()[:-5])
    status, told = shelf(capsys, "verify", "--shelf", str(own))
    assert status == 3
    assert str(own / one.name) in told
    assert shelf(capsys, "verify", "--shelf", str(BUILT_IN))[0] == 0


def test_a_component_that_is_not_there_is_refused_with_the_nearest(own, capsys):
    assert run_command_line(["shelf", "add", "demo", "--component", "unett"]) == 2
    assert "did you mean unet" in capsys.readouterr().err.lower().replace("`", "").replace("'", "")


def test_without_a_shelf_of_ones_own_adding_says_what_to_name(monkeypatch, capsys):
    monkeypatch.setenv("OLIVELIKE_SHELF", "")
    assert run_command_line(["shelf", "add", "demo"]) == 2
    assert "--shelf" in capsys.readouterr().err

"""Single files and copies in other precisions, through a whole run."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from olivelike.cli.app import run_command_line
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.errors import SourceError
from olivelike.sources.files import pickled
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.lora_files import make_lora
from olivelike.testing.single_file_writer import make_single_file
from tests.fixtures.pickle_tables import read_pickle_here

from .conftest import Project, run_project

WORKFLOW = """
name: small
source: ./checkpoint
target: cuda
components:
  text_encoder: [merge_lora, convert, fuse, float16]
  vae_decoder: [convert, fuse, float16]
output: models/small
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project on a checkpoint whose widths obey its family's rules, after its first run."""
    folder = tmp_path_factory.mktemp("small") / "project"
    make_checkpoint(folder / "checkpoint", "sd15", size="small", dtype="F16")
    return run_project(folder, WORKFLOW, folder / "checkpoint", "text_encoder", "vae_decoder")


def test_folder_and_single_file_give_identical_bytes_and_rerun_nothing_but_the_form(small: Project) -> None:
    make_single_file(small.folder / "checkpoint", small.folder / "one.safetensors")
    before = small.files()
    shutil.rmtree(small.output)
    small.run("source=one.safetensors")
    assert small.files() == before
    assert not [node for node in small.executed() if "convert" in node or "fuse" in node]
    record = json.loads((small.output / "olivelike.json").read_bytes())
    assert record["source"]["name"] == "one.safetensors"


def test_copies_in_float32_and_float16_give_identical_bytes(small: Project) -> None:
    make_single_file(small.folder / "checkpoint", small.folder / "wide.safetensors", dtype="F32")
    make_single_file(small.folder / "checkpoint", small.folder / "half.safetensors", dtype="F16")
    small.run("source=half.safetensors", overwrite=True)
    before = small.files()
    shutil.rmtree(small.output)
    small.run("source=wide.safetensors", overwrite=True)
    assert small.files() == before


def test_a_pickled_file_gives_identical_bytes_and_a_compressed_one_is_refused(
    small: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The child that reads tables otherwise has tests of its own.
    monkeypatch.setattr(pickled, "read_pickle_table", read_pickle_here)
    path = make_single_file(small.folder / "checkpoint", small.folder / "old.ckpt", dtype="F16", pickled=True)
    small.run("source=./checkpoint", overwrite=True)
    before = small.files()
    shutil.rmtree(small.output)
    small.run("source=old.ckpt", allow_pickle=True, overwrite=True)
    assert small.files() == before

    assert run_command_line(["info", "--allow-pickle", str(path)]) == 0
    assert "Stable Diffusion 1" in capsys.readouterr().out

    with zipfile.ZipFile(path) as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in entries.items():
            new.writestr(name, data)
    with pytest.raises(SourceError, match=r"old\.ckpt: \S+ is compressed in it .*save it as safetensors"):
        small.run("source=old.ckpt", allow_pickle=True, overwrite=True)
    assert small.files() == before
    assert run_command_line(["info", "--allow-pickle", str(path)]) == 3
    assert "is compressed in it" in capsys.readouterr().err


def test_a_network_that_is_not_supported_is_refused_by_the_plan(small: Project, tmp_path: Path) -> None:
    source = tmp_path / "checkpoint"
    shutil.copytree(small.folder / "checkpoint", source)
    config = json.loads((source / "unet" / "config.json").read_bytes())
    (source / "unet" / "config.json").write_text(json.dumps({**config, "num_class_embeds": 256}))
    overrides = (f"source={source}", "components.unet=[convert]")
    with pytest.raises(SourceError, match="`num_class_embeds: 256` is not supported: it takes the number"):
        plan(str(small.workflow), Options(overrides=overrides))


def test_a_lora_as_source_is_refused(small: Project) -> None:
    path = make_lora(small.folder / "l.safetensors", "kohya", base=small.folder / "checkpoint")
    with pytest.raises(SourceError, match="LoRA"):
        small.run(f"source={path}")

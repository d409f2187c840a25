"""Broken sources and disks: status 3 with place and remedy, store and outputs as they were."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from olivelike.errors import MissingError, SourceError, StoreError

from .conftest import Project


def test_a_truncated_weights_file_stops_the_run_at_once(project: Project) -> None:
    before = project.files()
    weights = project.folder / "checkpoint" / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(SourceError, match="diffusion_pytorch_model.safetensors"):
        project.run()
    assert project.files() == before


def test_a_config_that_does_not_match_its_weights_is_named(project: Project) -> None:
    before = project.files()
    path = project.folder / "checkpoint" / "text_encoder" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["intermediate_size"] *= 2
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SourceError, match="does not match the weights") as caught:
        project.run()
    assert f"{path.with_name('model.safetensors')}: text_encoder: config.json" in str(caught.value)
    assert "mlp.fc1.weight" in str(caught.value)
    assert caught.value.exit_code == 3
    assert project.files() == before


def test_a_missing_folder_is_named(project: Project) -> None:
    shutil.rmtree(project.folder / "checkpoint")
    with pytest.raises(SourceError, match="checkpoint"):
        project.run()


def test_a_hub_id_without_network_says_what_to_do(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(project.folder / "hub"))
    with pytest.raises(SourceError, match="someone/something"):
        project.run("source=someone/something")


@pytest.mark.parametrize("place", ["output", "cache_dir"])
def test_a_place_that_can_not_be_written_is_named(project: Project, place: str) -> None:
    before = project.files()
    blocked = project.folder / "a file"
    blocked.write_text("not a folder", encoding="utf-8")
    with pytest.raises(MissingError, match="a file"):
        project.run(**{place: blocked / "inside"})
    assert project.files() == before
    assert project.leftovers() == []


@pytest.mark.skipif(os.name != "posix", reason="has no limit on the size of files")
def test_a_full_disk_leaves_store_and_output_as_they_were(project: Project) -> None:
    """A limit on file size makes every write beyond it fail, as a full disk does."""
    import resource

    before = project.files()
    asked = ("target=cpu", "components.text_encoder.1.float16.keep_io=true")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(StoreError, match="free") as caught:
            project.run(*asked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 3
    assert project.files() == before
    assert project.leftovers() == []
    assert project.run(*asked[1:]).status == "ok"


def test_an_unwritable_store_is_a_store_error(project: Project) -> None:
    with pytest.raises(StoreError):
        project.run(cache_dir=Path("/proc/olivelike-cache"))

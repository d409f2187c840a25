"""Checkpoints for the tests of sources: one folder per layout, and copies that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from olivelike.testing.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def saved_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("saved") / "pipeline")


@pytest.fixture(scope="session")
def hub_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "pipeline"
    return make_checkpoint(folder, layout="hub", variant="fp16")


@pytest.fixture
def saved_copy(saved_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_checkpoint, tmp_path / "copy"))


@pytest.fixture
def hub_copy(hub_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(hub_checkpoint, tmp_path / "copy"))

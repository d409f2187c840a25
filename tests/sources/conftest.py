"""Checkpoints for the tests of sources: one folder per layout, and copies that a test may damage."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from olivelike.sources import SourceSpec
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.single_file_writer import make_single_file

if TYPE_CHECKING:
    from collections.abc import Callable


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


FAMILIES = ("sd15", "sd15_inpainting", "sd21", "sd21_base", "sdxl", "sdxl_refiner")


@dataclass(frozen=True)
class BothForms:
    """The same weights as a diffusers folder and as one file."""

    family: str
    folder: Path
    file: Path

    @property
    def components(self) -> list[str]:
        networks = [path.parent.name for path in self.folder.glob("*/config.json")]
        return sorted([*(name for name in networks if name != "vae"), "vae_encoder", "vae_decoder"])

    @property
    def prediction(self) -> str | None:
        """What has to be told: nothing in the header of SD 2.1 base says that it predicts noise."""
        return "epsilon" if self.family == "sd21_base" else None

    @property
    def spec(self) -> SourceSpec:
        return SourceSpec(path=self.file, prediction=self.prediction)


@pytest.fixture(scope="session")
def both_forms_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], BothForms]:
    """Return a function that makes a family's small checkpoint in both forms, once."""

    @cache
    def make(family: str) -> BothForms:
        root = tmp_path_factory.mktemp(family)
        folder = make_checkpoint(root / "pipeline", family, size="small")
        return BothForms(family, folder, make_single_file(folder, root / "model.safetensors"))

    return make


@pytest.fixture(params=FAMILIES)
def both_forms(request: pytest.FixtureRequest, both_forms_of: Callable[[str], BothForms]) -> BothForms:
    return both_forms_of(request.param)

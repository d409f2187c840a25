"""`verify` knows LCM's input, and compares pictures of few-step models in their own steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from olivelike.measure.verify.folder_verification import verify_folder
from tests.fixtures.little_pipeline import little_checkpoint, little_pipeline


@pytest.fixture
def lcm(one_torch_thread, tmp_path):
    """Return checkpoint and folder of a little LCM whose scheduler is LCM's."""
    copies = []
    for name, original in (("checkpoint", little_checkpoint("lcm")), ("folder", little_pipeline("lcm"))):
        copies.append(Path(shutil.copytree(original, tmp_path / name)))
        path = copies[-1] / "scheduler" / "scheduler_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "LCMScheduler"}))
    path = copies[0] / "model_index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "scheduler": ["diffusers", "LCMScheduler"]}))
    return copies


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_an_lcm_is_compared_by_its_input_and_its_pictures_with_its_guidance(lcm):
    checkpoint, folder = lcm
    verified = verify_folder(folder, against=str(checkpoint), components=["unet"], pictures=1, samples=1, steps=20)
    (unet,) = verified.components
    assert unet.passed  # Random embeddings of the guidance are among its inputs.
    (picture,) = verified.pictures
    assert picture.psnr >= 50

"""`verify` knows LCM's input, and compares pictures of few-step models in their own steps."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import onnx
import pytest

from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.model.components import SHALLOW_FILE
from olivelike.testing import run_pass
from olivelike.testing.parity import materialize_model
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_checkpoint, little_model, little_pipeline


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


def test_the_shallow_part_of_a_unet_is_compared_too(one_torch_thread, tmp_path):
    folder = Path(shutil.copytree(little_pipeline(), tmp_path / "folder"))
    deepcache, fuse = (Registry.built_in().get(name).cls for name in ("deepcache", "fuse"))
    model = run_pass(deepcache, run_pass(fuse, little_model("sd", "unet"), target="cpu"))
    materialize_model(model, folder / "unet")
    ask = partial(verify_folder, folder, against=str(little_checkpoint()), components=["unet"], pictures=0, samples=1)
    (unet,) = ask().components
    (sample,) = unet.verification.samples
    assert sample.outputs.keys() == {"out_sample", f"out_sample of {SHALLOW_FILE}"}
    assert unet.passed

    path = folder / "unet" / SHALLOW_FILE
    shallow = onnx.load(path, load_external_data=False)
    next(node for node in shallow.graph.node if node.op_type == "Sigmoid").op_type = "Tanh"
    path.write_bytes(shallow.SerializeToString())
    (unet,) = ask().components
    assert [name for name, figures in unet.verification.samples[0].outputs.items() if not figures.within(1e-4)] == [
        f"out_sample of {SHALLOW_FILE}"
    ]

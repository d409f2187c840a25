"""The demo's ControlNet: the script that trains it, with a few steps, and the network that is shipped."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel

from olivelike.data import demo_edges
from tools.train_demo import controlnet
from tools.train_demo.captions.drawing import shape_coverage
from tools.train_demo.captions.scenes import SHAPES
from tools.train_demo.few_steps import load_demo


@pytest.fixture(scope="module")
def demo(one_torch_thread):
    return load_demo()


@pytest.fixture(scope="module")
def shipped():
    return ControlNetModel.from_pretrained(demo_edges(), torch_dtype=torch.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_outlines_are_thin_lines_around_the_shape(shape, width):
    lines = controlnet.outline(shape, 30.0, 34.0, 18.0, width)
    covered = shape_coverage(shape, 30.0, 34.0, 18.0) > 0.5
    assert lines.shape == (64, 64)
    assert set(np.unique(lines)) == {0, 255}
    rows, columns = (np.flatnonzero(covered.any(axis=axis)) for axis in (1, 0))
    drawn_rows, drawn_columns = (np.flatnonzero(lines.any(axis=axis)) for axis in (1, 0))
    for drawn, kept in ((drawn_rows, rows), (drawn_columns, columns)):
        assert abs(int(drawn[0]) - int(kept[0])) <= 2
        assert abs(int(drawn[-1]) - int(kept[-1])) <= 2


def test_training_is_resumed_and_begins_where_the_unet_is(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(controlnet, "_BATCH", 4)
    drawings = controlnet.make_drawings(demo, tmp_path, 8, seed=0)
    assert torch.equal(controlnet.make_drawings(demo, tmp_path, 8, seed=0).mean, drawings.mean)
    network = controlnet.train_controlnet(demo, drawings, tmp_path, steps=2, seed=0)
    resumed = controlnet.train_controlnet(demo, drawings, tmp_path, steps=2, seed=0)
    for name, weight in resumed.state_dict().items():
        assert torch.equal(weight, network.state_dict()[name])
    assert network.controlnet_mid_block.weight.abs().max() > 0
    controlnet.write_network(tmp_path / controlnet.FOLDER, controlnet.published_config(network), network.state_dict())
    written = ControlNetModel.from_pretrained(tmp_path / controlnet.FOLDER, torch_dtype=torch.float32)
    assert written.config.block_out_channels == demo.unet.config.block_out_channels
    assert torch.equal(written.conv_in.weight, network.conv_in.weight.half().float())


def test_the_shipped_network_takes_at_most_3_megabytes_and_is_for_the_demo(demo, shipped):
    files = [path for path in demo_edges().iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 3e6
    assert json.loads((demo_edges() / "config.json").read_bytes())["_class_name"] == "ControlNetModel"
    assert shipped.config.block_out_channels == demo.unet.config.block_out_channels


def test_edges_put_shapes_where_they_are(demo, shipped):
    found = controlnet.measure(demo, shipped, 4, seed=3, steps=10)
    assert found.placed >= 3, found


@pytest.mark.slow
def test_90_of_100_pictures_follow_their_edges(demo, shipped):
    found = controlnet.measure(demo, shipped, 100, seed=1001)
    assert found.placed >= 90, found
    assert found.right >= 75, found

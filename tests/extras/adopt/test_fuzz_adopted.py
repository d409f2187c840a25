"""Damaged and hostile ONNX files as sources: each is read, or refused with an error of ours."""

from __future__ import annotations

import onnx
import pytest

from olivelike.errors import SourceError
from olivelike.extras.adopt.onnx_graph import load_onnx
from olivelike.extras.adopt.onnx_table import read_onnx_table
from tests.fuzz.hostile import QUICK, SLOW, nested_graphs, onnx_model, read_all_ways


@pytest.mark.parametrize("runs", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_damaged_models_are_read_or_refused(tmp_path, runs):
    (tmp_path / "data.bin").write_bytes(bytes(128))
    read_all_ways(tmp_path / "model.onnx", (read_onnx_table, lambda path: load_onnx("unet", path)), runs)


def test_models_that_nest_without_end_are_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(nested_graphs(2000))
    with pytest.raises(SourceError):
        read_onnx_table(tmp_path / "model.onnx")


def test_a_constant_that_names_no_output_is_refused(tmp_path):
    model = onnx_model()
    model.graph.node[0].ClearField("output")
    (tmp_path / "data.bin").write_bytes(bytes(128))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(SourceError, match="not a valid ONNX"):
        load_onnx("unet", tmp_path / "model.onnx")


def test_data_of_an_onnx_model_is_not_read_through_a_link_out_of_its_folder(tmp_path):
    folder, blobs = tmp_path / "snapshots" / "model", tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "data").write_bytes(bytes(128))
    (folder / "data.bin").symlink_to(blobs / "data")
    onnx.save(onnx_model(), folder / "model.onnx")
    with pytest.raises(SourceError, match="a link out of the model's folder"):
        read_onnx_table(folder / "model.onnx")
    # As the hub's cache has it: the model file is a link to the same place.
    (folder / "model.onnx").rename(blobs / "model")
    (folder / "model.onnx").symlink_to(blobs / "model")
    assert "beside" in read_onnx_table(folder / "model.onnx").tensors

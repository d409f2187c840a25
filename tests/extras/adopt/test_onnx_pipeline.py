"""Folders of ONNX models as sources."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest

from olivelike.errors import SourceError
from olivelike.extras.adopt.onnx_source import open_onnx_component
from olivelike.sources.checkpoint import FolderFiles
from olivelike.sources.opened_source import is_onnx_pipeline
from tests.fixtures.torchscript_pipeline import make_onnx_pipeline


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory, one_torch_thread):
    root = tmp_path_factory.mktemp("onnx")
    made = {
        layout: make_onnx_pipeline(root / layout, ["text_encoder"], layout=layout, external=external)
        for layout, external in (("diffusers", True), ("optimum", False), ("olive", True))
    }
    return made | {"olive inside": make_onnx_pipeline(root / "inside", ["text_encoder"], layout="olive")}


def files_of(folder):
    return FolderFiles.local(folder)


def index_of(folder):
    path = folder / "model_index.json"
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize("layout", ["diffusers", "optimum", "olive"])
def test_folders_of_all_exporters_are_known(pipelines, layout):
    folder = pipelines[layout]
    assert is_onnx_pipeline(index_of(folder), files_of(folder))


def test_a_torch_pipeline_is_none(saved_checkpoint):
    assert not is_onnx_pipeline(index_of(saved_checkpoint), files_of(saved_checkpoint))


def test_a_torch_pipeline_with_onnx_copies_beside_is_none(saved_copy, pipelines):
    shutil.copy(pipelines["optimum"] / "text_encoder/model.onnx", saved_copy / "text_encoder")
    shutil.copytree(pipelines["optimum"] / "text_encoder", saved_copy / "vae_decoder")
    assert not is_onnx_pipeline(index_of(saved_copy), files_of(saved_copy))


def test_a_component_is_opened_with_config_and_graph(pipelines):
    folder = pipelines["optimum"]
    checkpoint = open_onnx_component(files_of(folder), "text_encoder")
    assert (checkpoint.library, checkpoint.class_name) == ("onnx", "OnnxRuntimeModel")
    assert checkpoint.config["hidden_size"] == 32
    assert checkpoint.graph == folder / "text_encoder/model.onnx"
    assert checkpoint.files == (folder / "text_encoder/model.onnx",)
    assert checkpoint.shapes["network.embeddings.token_embedding.weight"] == (1000, 32)


def test_a_missing_config_is_no_matter(pipelines):
    checkpoint = open_onnx_component(files_of(pipelines["diffusers"]), "text_encoder")
    assert checkpoint.config == {}
    assert {path.name for path in checkpoint.files} == {"model.onnx", "weights.pb"}


def test_the_form_is_the_same_wherever_the_weights_lie_and_whatever_they_are(pipelines, tmp_path):
    inside, beside = (
        open_onnx_component(files_of(pipelines[layout]), "text_encoder") for layout in ("olive inside", "olive")
    )
    # Weights of a KiB and more lie beside; the rest are the same in both.
    assert inside.layout_digest == beside.layout_digest
    folder = shutil.copytree(pipelines["olive inside"], tmp_path / "other")
    model = onnx.load(folder / "text_encoder/model.onnx")
    for tensor in model.graph.initializer:
        tensor.raw_data = np.zeros(len(tensor.raw_data), dtype=np.uint8).tobytes()
    onnx.save(model, folder / "text_encoder/model.onnx")
    other = open_onnx_component(files_of(folder), "text_encoder")
    assert other.layout_digest == inside.layout_digest
    model.graph.node[-1].name += "x"
    onnx.save(model, folder / "text_encoder/model.onnx")
    changed = open_onnx_component(files_of(folder), "text_encoder")
    assert changed.layout_digest != inside.layout_digest


def test_a_model_of_another_name_is_found_if_it_is_the_only_one(pipelines, tmp_path):
    folder = shutil.copytree(pipelines["olive inside"], tmp_path / "copy")
    (folder / "text_encoder/model.onnx").rename(folder / "text_encoder/text.onnx")
    checkpoint = open_onnx_component(files_of(folder), "text_encoder")
    assert checkpoint.graph == folder / "text_encoder/text.onnx"
    shutil.copy(folder / "text_encoder/text.onnx", folder / "text_encoder/b.onnx")
    with pytest.raises(SourceError, match="text_encoder has 2 models: b.onnx, text.onnx; keep one"):
        open_onnx_component(files_of(folder), "text_encoder")


def test_what_is_missing_is_named(pipelines, tmp_path):
    folder = shutil.copytree(pipelines["olive"], tmp_path / "copy")
    with pytest.raises(SourceError, match=r"has no unet \(it has: text_encoder\); drop unet"):
        open_onnx_component(files_of(folder), "unet")
    (folder / "text_encoder/weights.pb").unlink()
    with pytest.raises(SourceError, match="text_encoder/weights.pb, which holds the weights of"):
        open_onnx_component(files_of(folder), "text_encoder")
    (folder / "text_encoder/model.onnx").rename(folder / "text_encoder/config.json")
    with pytest.raises(SourceError, match="text_encoder/model.onnx is missing"):
        open_onnx_component(files_of(folder), "text_encoder")

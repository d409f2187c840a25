"""Outputs laid out for browsers: what reruns, what the folder holds, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from olivelike.errors import PassError
from olivelike.extras.deploy.web_files import named, names_in
from tests.engine.conftest import Project
from tests.engine.test_layouts import NETWORKS, dtypes


def test_a_layout_for_browsers_has_float32_borders_schedulers_and_a_manifest_of_all_files(project: Project) -> None:
    project.run("layout=web")
    files = project.files()
    for component in NETWORKS:
        floats = dtypes(project.output / component / "model.onnx")
        assert set(floats.values()) - {"INT32"} == {"FLOAT"}
    weights = {tensor.dtype for tensor in _tensors(project.output / "vae_decoder" / "model.onnx")}
    assert np.dtype(np.float16) in weights

    manifest = json.loads(files.pop("manifest.json"))
    assert (manifest["kind"], manifest["size"]) == ("web/2", None)
    found = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    assert manifest["files"] == found
    schedulers = onnx.load_model_from_string(files["scheduler/model.onnx"])
    listed = {named(one, kind) for one in manifest["samplers"]["list"] for kind in one["schedules"]}
    assert listed <= set(names_in(files["scheduler/model.onnx"]))
    assert {"Euler a", "DPM++ 2M Karras"} <= listed
    assert [value.name for value in schedulers.graph.input] == ["scheduler", "steps", "strength"]

    assert project.run("layout=web").executed == 0
    whole = project.files()
    project.run("layout=web", "scheduler_model=true")  # It is there without being asked for.
    assert project.files() == whole
    (project.output / "manifest.json").unlink()
    project.run("layout=web")
    assert "manifest.json" in project.files()
    # Another layout takes away what it does not have.
    project.run()
    assert {"manifest.json", "scheduler/model.onnx"}.isdisjoint(project.files())


def _tensors(path: Path) -> list[np.ndarray]:
    return [onnx.numpy_helper.to_array(tensor, str(path.parent)) for tensor in onnx.load(path).graph.initializer]


def test_a_layout_may_fix_the_size_of_pictures(project: Project) -> None:
    project.edit(
        "vae_decoder: [convert, float16]", "vae_decoder: [convert, float16, layout: {profile: web, size: [64, 128]}]"
    )
    project.run("layout=web")
    graph = onnx.load(project.output / "vae_decoder" / "model.onnx", load_external_data=False).graph
    shapes = {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {"latent_sample": ["decoder_batch", 4, 16, 8], "sample": ["decoder_batch", 3, 128, 64]}
    assert json.loads(project.files()["manifest.json"])["size"] == [64, 128]
    project.edit("size: [64, 128]", "size: [64, 127]")
    with pytest.raises(PassError, match="no pictures of size 64x127: sides are multiples of 8"):
        project.run("layout=web")

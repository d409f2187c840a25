"""A tiny VAE in place of a pipeline's own, beside diffusers' pipelines with the same one."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch_pipelines
from torch_pipelines import paint, psnr

from olivelike.engine.output.materialize import materialize
from olivelike.engine.output.pipeline_files import component_config
from olivelike.model.families import VAES
from olivelike.runtime import Request, open_pipeline
from olivelike.testing.models import load_model, no_progress, traced_graph
from olivelike.testing.parity import compare_with_torch
from olivelike.testing.pass_runner import run_pass
from olivelike.testing.tiny_vae import make_tiny_vae
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")


@pytest.fixture(scope="module")
def tiny_checkpoint(tmp_path_factory):
    """The little checkpoint with a tiny VAE as its own."""
    folder = shutil.copytree(little_checkpoint(), tmp_path_factory.mktemp("tiny") / "checkpoint")
    shutil.rmtree(folder / "vae")
    make_tiny_vae(folder / "vae", size="little", seed=5)
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("AutoencoderKL", "AutoencoderTiny"))
    return folder


@pytest.fixture(scope="module")
def networks(tiny_checkpoint):
    """Both halves, converted and fused for the CPU."""
    fuse = Registry.built_in().get("fuse").cls
    loaded = [load_model(tiny_checkpoint, name) for name in VAES]
    return {one.architecture.component: run_pass(fuse, one.replace(graph=traced_graph(one.architecture)), target="cpu")
            for one in loaded}  # fmt: skip


@pytest.fixture(scope="module")
def tiny_pipeline(networks, little_folder, settings, tmp_path_factory):
    """The little pipeline with the tiny VAE, open."""
    folder = shutil.copytree(little_folder, tmp_path_factory.mktemp("tiny") / "folder")
    for name, model in networks.items():
        shutil.rmtree(folder / name)
        (folder / name).mkdir()
        materialize(model.graph, model.weights, model.tensors.files, folder / name, no_progress)
        (folder / name / "config.json").write_bytes(component_config(model.architecture))
    return open_pipeline(folder, settings)


@pytest.fixture
def torch_tiny(tiny_checkpoint, monkeypatch):
    """Put the tiny VAE into diffusers' pipelines."""
    from diffusers import AutoencoderTiny

    vae = AutoencoderTiny.from_pretrained(tiny_checkpoint, subfolder="vae")
    networks = torch_pipelines.make_networks("sd")
    monkeypatch.setattr(torch_pipelines, "make_networks", lambda kind: {**networks, "vae": vae})
    torch_pipelines.torch_pipeline.cache_clear()
    yield
    torch_pipelines.torch_pipeline.cache_clear()


@pytest.mark.parametrize("way", ["text", "picture", "mask"])
def test_pictures_are_those_of_diffusers_with_the_same_tiny_vae(tiny_pipeline, torch_tiny, picture, mask, way):
    # The scheduler draws in each step: what a VAE without a distribution must not draw would move that.
    request = Request(
        ("a red circle",), num_images=2, batch_size=2, steps=4, seed=5, scheduler="Euler a", size=(32, 32)
    )
    of_picture = {"init_image": picture, "strength": 0.6}
    ours, kind, theirs = {
        "text": ({}, "", {"height": 32, "width": 32}),
        "picture": (of_picture, "Img2Img", {"image": picture, "strength": 0.6}),
        "mask": (
            {**of_picture, "mask": mask}, "Inpaint",
            {"image": picture, "mask_image": mask, "strength": 0.6, "height": 32, "width": 32},
        ),
    }[way]  # fmt: skip
    result = tiny_pipeline.generate(replace(request, **ours))
    for made, expected in zip(
        result.pictures, paint(f"StableDiffusion{kind}Pipeline", "Euler a", [5, 6], **theirs), strict=True
    ):
        assert np.asarray(expected).std() > 5
        assert psnr(made.image, expected) >= 50


def test_each_half_computes_what_torch_does_in_either_precision(networks):
    half = Registry.built_in().get("float16").cls
    for model in networks.values():
        compare_with_torch(model).require(1e-5)
        compare_with_torch(run_pass(half, model, target="cpu")).require(1e-2)


def test_previews_are_what_the_vae_decodes(tiny_pipeline):
    shown = []
    tiny_pipeline.generate(
        Request(("a red circle",), steps=2, seed=5), on_step=lambda step: shown.append(step.preview.decode())
    )
    assert np.asarray(shown[-1][0]).std() > 20

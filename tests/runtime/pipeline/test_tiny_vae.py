"""A tiny VAE in place of a pipeline's own, beside diffusers' pipelines with the same one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch_pipelines
from PIL import Image
from torch_pipelines import paint, psnr

from olivelike.digest import digest_file
from olivelike.engine.output.pipeline_files import component_config
from olivelike.model.components import PREVIEW, VAES
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pictures.preview_file import PreviewFile
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.vae import decode_latents
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import Network
from olivelike.sources import SourceSpec
from olivelike.sources.names.adapt import read_network
from olivelike.sources.vae_override import open_vae
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.tiny_vae_files import make_tiny_vae

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
    from olivelike.testing.models import load_model, traced_graph
    from olivelike.testing.pass_runner import run_pass
    from olivelike.workflow.passes import Registry

    fuse = Registry.built_in().get("fuse").cls
    loaded = [load_model(tiny_checkpoint, name) for name in VAES]
    return {one.architecture.component: run_pass(fuse, one.replace(graph=traced_graph(one.architecture)), target="cpu")
            for one in loaded}  # fmt: skip


@pytest.fixture(scope="module")
def tiny_pipeline(networks, little_folder, settings, tmp_path_factory):
    """The little pipeline with the tiny VAE, open."""
    from olivelike.engine.output.materialize import materialize
    from olivelike.testing.models import no_progress

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
    from olivelike.testing.parity import compare_with_torch
    from olivelike.testing.pass_runner import run_pass
    from olivelike.workflow.passes import Registry

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


@pytest.fixture(scope="module")
def published(tmp_path_factory, settings, little_folder):
    """The decoder of TAESD's published size, whose graph is on the shelf, and what reads its folder."""
    from olivelike.engine.output.materialize import materialize
    from olivelike.testing.models import no_progress, traced_graph

    root = tmp_path_factory.mktemp("published")
    path = make_tiny_vae(root / "files", seed=1)[1]
    checkpoint = open_vae(SourceSpec(path=path), ["vae_decoder"], None, None)[0]["vae_decoder"]
    architecture, weights = read_network(checkpoint, {path: digest_file(path)})
    (root / "vae_decoder").mkdir()
    materialize(traced_graph(architecture), weights, {digest_file(path): path}, root / "vae_decoder", no_progress)
    folder = replace(open_folder(little_folder), path=root, vae=json.loads(component_config(architecture)))
    decoder = Network("vae_decoder", open_session(root / "vae_decoder" / "model.onnx", settings))
    return path, folder, decoder


def test_an_original_decoder_of_the_published_size_decodes_as_torch_does(published, tmp_path):
    import torch
    from diffusers import AutoencoderTiny

    path, folder, decoder = published
    vae = AutoencoderTiny.from_pretrained(path.parent)
    latents = torch.randn((1, 4, 6, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = vae.decode(latents).sample.numpy()
    made = decode_latents(latents.numpy(), decoder, folder)
    assert np.linalg.norm(made - expected) < 1e-5 * np.linalg.norm(expected)


def test_tiles_of_a_tiny_vae_have_no_seams(published):
    _, folder, decoder = published
    latents = np.random.default_rng(0).standard_normal((1, 4, 40, 32), np.float32)
    whole = decode_latents(latents, decoder, folder)
    tiled = decode_latents(latents, decoder, replace(folder, vae_tile=32))
    assert not np.array_equal(whole, tiled)
    assert np.mean((whole - tiled) ** 2) < 4 * 10**-4  # 40 dB, of values from -1 to 1


def test_tiles_cover_a_picture_that_is_no_multiple_of_them(tiny_pipeline, picture):
    whole, tiled = (
        tiny_pipeline.generate(
            Request(("a red circle",), steps=2, seed=5, size=(72, 48), tiled_vae=chosen, init_image=picture)
        )
        for chosen in (False, True)
    )
    assert tiled.pictures[0].image.size == (72, 48)
    assert psnr(tiled.pictures[0].image, whole.pictures[0].image) > 20


def test_a_decoder_without_room_for_the_picture_works_in_tiles_by_itself(tiny_pipeline, monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000))
    request = Request(("a red circle",), seed=1)
    assert tiny_pipeline.resolve_defaults(replace(request, size=(64, 64))).tiled_vae
    assert not tiny_pipeline.resolve_defaults(request).tiled_vae


def test_steps_are_shown_by_the_decoder_for_previews(tiny_pipeline, little_folder, settings, tmp_path):
    folder = shutil.copytree(little_folder, tmp_path / "folder")
    shutil.copytree(tiny_pipeline.folder.path / "vae_decoder", folder / PREVIEW)
    pipeline, file, shown = open_pipeline(folder, settings), PreviewFile(tmp_path / "now.png"), []

    def on_step(step):
        file.show(step.preview.show)
        shown.append((step.preview.show()[0], step.preview.rough()[0]))

    without = tiny_pipeline.generate(Request(("a red circle",), steps=2, seed=5, size=(32, 32)))
    made = pipeline.generate(Request(("a red circle",), steps=2, seed=5, size=(32, 32)), on_step=on_step)
    tiny, rough = shown[-1]
    assert psnr(tiny, without.pictures[0].image) > 50
    assert rough.size == (16, 16)
    with Image.open(tmp_path / "now.png") as written:
        assert written.size == made.pictures[0].image.size == (32, 32)

"""T2I-Adapters as graphs, and the UNet that they lead: against torch, for each target, in each precision."""

from __future__ import annotations

import shutil

import numpy as np
import onnx_ir as ir
import pytest

from olivelike.errors import PassError
from olivelike.model.adapter_features import given_features, taken_features
from olivelike.model.guides import CONTROLNET, MIDDLE, T2I_ADAPTER, guided_file
from olivelike.testing import run_pass
from olivelike.testing.models import traced_graph
from olivelike.testing.parity import compare_with_torch, materialize_model, open_on_cpu, torch_network
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model
from tests.fixtures.little_t2i_adapters import little_t2i_adapter, t2i_adapter_model

ADAPTED_FILE = guided_file(["t2i_adapter"])
CONTROLLED_FILE = guided_file(["controlnet"])

NAMES = ("controlnet_inputs", "deepcache", "float16", "fuse", "layout", "t2i_adapter_inputs")
PASSES = {name: Registry.built_in().get(name).cls for name in NAMES}
SHAPES = {"attending": [(16, 1), (32, 2), (32, 4)], "attending_xl": [(16, 2), (32, 2), (32, 4), (32, 4)]}
"""Channels of what each UNet takes, and how many latents one of them is."""
RESIDUALS = [*(CONTROLNET.gives.format(number) for number in range(6)), CONTROLNET.gives_middle]
RESIDUAL_SHAPES = [(16, 1), (16, 1), (16, 2), (32, 2), (32, 4), (32, 4), (32, 4)]


def feeds(kind, rows=2, height=16, width=24):
    random = np.random.default_rng(5)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    xl = kind == "attending_xl"
    given = {
        "sample": normal(rows, 4, height, width),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": normal(rows, 7, 64 if xl else 32),
        **({"text_embeds": normal(rows, 16), "time_ids": normal(rows, 6)} if xl else {}),
    }
    features = {
        T2I_ADAPTER.gives.format(number): normal(rows, channels, height // scale, width // scale)
        for number, (channels, scale) in enumerate(SHAPES[kind])
    }
    residuals = {
        name: normal(rows, channels, height // scale, width // scale)
        for name, (channels, scale) in zip(RESIDUALS, RESIDUAL_SHAPES, strict=True)
    }
    return given, features, residuals


def written(model, folder):
    folder.mkdir()
    materialize_model(model, folder)
    return folder


def led(folder, place, file=ADAPTED_FILE):
    """Return a session on the graph of a file, on the CPU, whatever its target."""
    place.mkdir()
    shutil.copy(folder / file, place / "model.onnx")
    shutil.copy(folder / "weights.pb", place)
    return open_on_cpu(place)


def run(session, values):
    taken = {value.name: value.type for value in session.get_inputs()}
    half = {name for name, kind in taken.items() if kind == "tensor(float16)"}
    (found,) = session.run(
        ["out_sample"], {name: values[name].astype(np.float16) if name in half else values[name] for name in taken}
    )
    return found.astype(np.float64)


def expected(kind, given, features, residuals=None):
    """Return what diffusers' UNet predicts in float64; it adds features in place."""
    import torch

    network = torch_network(little_model(kind, "unet")).network
    taken, added, more = (
        {name: torch.from_numpy(value).double() for name, value in values.items()}
        for values in (given, features, residuals or {})
    )
    conditions = {name: taken[name] for name in ("text_embeds", "time_ids") if name in taken}
    with torch.no_grad():
        return network(
            *list(taken.values())[:3],
            down_intrablock_additional_residuals=list(added.values()),
            added_cond_kwargs=conditions or None,
            down_block_additional_residuals=tuple(more.values())[:-1] if more else None,
            mid_block_additional_residual=more.get(CONTROLNET.gives_middle),
        ).sample.numpy()


def error(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("kind", "target", "half"),
    [
        ("attending", "cpu", False), ("attending", "cuda", True), ("attending_xl", "directml", True),
        ("attending_xl", "webgpu", False), pytest.param("attending_xl", "cpu", False, marks=pytest.mark.slow),
        pytest.param("attending_xl", "cuda", False, marks=pytest.mark.slow),
        pytest.param("attending", "openvino", True, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_features_do_what_they_do_in_torch(tmp_path, kind, target, half):
    unet = run_pass(PASSES["fuse"], little_model(kind, "unet"), target=target, precision="fp16" if half else "fp32")
    if half:
        unet = run_pass(PASSES["float16"], unet, target=target)
    folder = written(run_pass(PASSES["t2i_adapter_inputs"], unet, target=target), tmp_path / "unet")
    session = led(folder, tmp_path / "led")
    given, features, _ = feeds(kind)
    assert [value.name for value in session.get_inputs()] == [*given, *features]
    assert error(run(session, {**given, **features}), expected(kind, given, features)) < (2e-2 if half else 1e-4)
    if target == "cpu" and not half:
        assert_bits(session, folder, given, features)


def assert_bits(session, folder, given, features):
    """Check that zeros give what the plain graph does."""
    zeros = {name: np.zeros_like(value) for name, value in features.items()}
    assert (run(session, {**given, **zeros}) == run(open_on_cpu(folder), given)).all()


@pytest.mark.parametrize("target", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_both_kinds_lead_one_graph_as_in_torch(tmp_path, target):
    unet = run_pass(PASSES["fuse"], little_model("attending", "unet"), target=target)
    both = run_pass(PASSES["t2i_adapter_inputs"], run_pass(PASSES["controlnet_inputs"], unet), target=target)
    folder = written(both, tmp_path / "unet")
    session = led(folder, tmp_path / "led", "controlnet_t2i_adapter.onnx")
    given, features, residuals = feeds("attending")
    assert [value.name for value in session.get_inputs()] == [*given, *features, *residuals]
    wanted = expected("attending", given, features, residuals)
    assert error(run(session, {**given, **features, **residuals}), wanted) < 1e-4
    if target == "cpu":
        assert_bits(session, folder, given, {**features, **residuals})


def test_nothing_is_written_twice_and_other_graphs_stay_as_they_are(tmp_path):
    unet = run_pass(PASSES["deepcache"], run_pass(PASSES["fuse"], little_model("attending", "unet"), target="cpu"))
    controlled = run_pass(PASSES["controlnet_inputs"], unet)
    before = written(controlled, tmp_path / "before")
    folder = written(run_pass(PASSES["t2i_adapter_inputs"], controlled, target="cpu"), tmp_path / "unet")
    known = {path.name for path in before.iterdir()}
    assert {path.name for path in folder.iterdir()} - known == {ADAPTED_FILE, "controlnet_t2i_adapter.onnx"}
    assert CONTROLLED_FILE in known
    for name in known:
        assert (folder / name).read_bytes() == (before / name).read_bytes()
    graph = ir.load(folder / ADAPTED_FILE).graph
    assert [value.name for value in graph.outputs] == ["out_sample"]
    shapes = {value.name: str(value.shape) for value in graph.inputs}
    assert shapes[T2I_ADAPTER.gives.format(2)] == "[unet_sample_batch,32,unet_sample_height/4,unet_sample_width/4]"


def test_where_features_go_follows_from_published_configs():
    sd = {
        "block_out_channels": (320, 640, 1280, 1280),
        "down_block_types": (*("CrossAttnDownBlock2D",) * 3, "DownBlock2D"),
    }
    xl = {"block_out_channels": (320, 640, 1280), "down_block_types": ("DownBlock2D", *("CrossAttnDownBlock2D",) * 2)}
    assert [one.connection for one in taken_features(sd)] == [2, 5, 8, 11]
    assert [one.connection for one in taken_features(xl)] == [3, 5, 8, MIDDLE]
    light = {"channels": [320, 640, 1280], "adapter_type": "light_adapter"}
    extra = {"adapter_type": "full_adapter_xl", "downscale_factor": 16}
    for unet, adapters in ((sd, ({}, light)), (xl, (extra,))):
        for adapter in adapters:
            given = [(one.channels, one.scale) for one in given_features(adapter)]
            assert given == [(one.channels, 8 * one.scale) for one in taken_features(unet)]


@pytest.mark.parametrize(("kind", "seed"), [("attending", 0), ("attending", 1), ("attending", 2), ("attending_xl", 0)])
def test_a_t2i_adapter_is_that_of_torch(kind, seed):
    model = t2i_adapter_model(little_t2i_adapter(kind, str(seed), seed))
    model = model.replace(graph=traced_graph(model.architecture))
    compare_with_torch(model).require(1e-4)
    fused = run_pass(PASSES["fuse"], model, target="cuda", precision="fp16")
    compare_with_torch(run_pass(PASSES["float16"], fused, target="cuda")).require(2e-2)
    graph = run_pass(PASSES["layout"], model, profile="diffusers").graph.to_ir().graph
    assert [value.name for value in graph.inputs if not value.metadata_props] == ["adapter_input"]
    assert [value.name for value in graph.outputs] == [T2I_ADAPTER.gives.format(n) for n in range(len(SHAPES[kind]))]


def test_other_clients_feed_none_and_what_is_no_unet_is_refused():
    marked = run_pass(PASSES["t2i_adapter_inputs"], little_model("attending", "unet"), target="cuda")
    for layout in ("onnxstack", "csharp", "web"):
        metadata = run_pass(PASSES["layout"], marked, profile=layout).graph.to_ir().metadata_props
        assert "olivelike.t2i_adapter_inputs" not in metadata
    with pytest.raises(PassError, match="has 0 connections from its way down"):
        decoder = little_model("attending", "vae_decoder").replace(component="unet")
        unet = little_model("attending", "unet")
        run_pass(PASSES["t2i_adapter_inputs"], decoder.replace(architecture=unet.architecture), target="cpu")

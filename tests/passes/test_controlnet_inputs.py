"""ControlNets as graphs, and the UNet that they lead: against torch, for each target, in each precision."""

from __future__ import annotations

import shutil

import numpy as np
import onnx_ir as ir
import pytest

from olivelike.errors import PassError
from olivelike.model.guides import CONTROLNET, guided_file
from olivelike.testing import run_pass
from olivelike.testing.parity import compare_with_torch, materialize_model, open_on_cpu, torch_network
from olivelike.workflow.passes import Registry
from tests.fixtures.little_controlnets import controlnet_model, little_controlnet
from tests.fixtures.little_pipeline import little_model

CONTROLLED_FILE = guided_file(["controlnet"])

NAMES = ("controlnet_inputs", "deepcache", "float16", "bfloat16", "fuse", "layout")
PASSES = {name: Registry.built_in().get(name).cls for name in NAMES}
RESIDUALS = [*(CONTROLNET.gives.format(number) for number in range(4)), CONTROLNET.gives_middle]


@pytest.fixture(scope="module")
def controlnet():
    from olivelike.testing.models import traced_graph

    model = controlnet_model(little_controlnet())
    return model.replace(graph=traced_graph(model.architecture))


def feeds(rows=2, height=16, width=24):
    random = np.random.default_rng(5)

    def normal(*shape):
        return random.standard_normal(shape, np.float32)

    given = {
        "sample": normal(rows, 4, height, width),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": normal(rows, 7, 32),
    }
    shapes = [(16, height, width)] * 2 + [(16, height // 2, width // 2)] + [(32, height // 2, width // 2)] * 2
    return given, {name: normal(rows, *shape) for name, shape in zip(RESIDUALS, shapes, strict=True)}


def written(model, folder):
    folder.mkdir()
    materialize_model(model, folder)
    return folder


def led(folder, place):
    """Return a session on the graph that ControlNets lead, on the CPU, whatever its target."""
    place.mkdir()
    shutil.copy(folder / CONTROLLED_FILE, place / "model.onnx")
    shutil.copy(folder / "weights.pb", place)
    return open_on_cpu(place)


def run(session, values):
    taken = {value.name: value.type for value in session.get_inputs()}
    half = {name for name, kind in taken.items() if kind == "tensor(float16)"}
    (found,) = session.run(
        ["out_sample"], {name: values[name].astype(np.float16) if name in half else values[name] for name in taken}
    )
    return found.astype(np.float64)


def expected(given, residuals):
    import torch

    network = torch_network(little_model("sd", "unet")).network
    taken = [torch.from_numpy(value).double() for value in (*given.values(), *residuals.values())]
    with torch.no_grad():
        return network(
            *taken[:3], down_block_additional_residuals=tuple(taken[3:-1]), mid_block_additional_residual=taken[-1]
        ).sample.numpy()


@pytest.mark.parametrize("target", ["cpu", "cuda", "directml", "webgpu", "openvino"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_residuals_do_what_they_do_in_torch(tmp_path, target, half):
    unet = run_pass(PASSES["fuse"], little_model("sd", "unet"), target=target, precision="fp16" if half else "fp32")
    if half:
        unet = run_pass(PASSES["float16"], unet, target=target)
    folder = written(run_pass(PASSES["controlnet_inputs"], unet), tmp_path / "unet")
    session = led(folder, tmp_path / "led")
    given, residuals = feeds()
    assert [value.name for value in session.get_inputs()] == [*given, *RESIDUALS]
    wanted = expected(given, residuals)
    error = np.linalg.norm(run(session, {**given, **residuals}) - wanted) / np.linalg.norm(wanted)
    assert error < (2e-2 if half else 1e-4)
    zeros = {name: np.zeros_like(value) for name, value in residuals.items()}
    assert (run(session, {**given, **zeros}) == run(open_on_cpu(folder), given)).all()


def test_nothing_is_written_twice_and_the_plain_graph_stays_as_it_is(tmp_path):
    unet = run_pass(PASSES["fuse"], little_model("sd", "unet"), target="cpu")
    plain = written(unet, tmp_path / "plain")
    cached = written(run_pass(PASSES["deepcache"], unet), tmp_path / "cached")
    both = run_pass(PASSES["controlnet_inputs"], run_pass(PASSES["deepcache"], unet))
    folder = written(run_pass(PASSES["controlnet_inputs"], unet), tmp_path / "unet")
    assert {path.name for path in folder.iterdir()} - {path.name for path in plain.iterdir()} == {CONTROLLED_FILE}
    for name in ("weights.pb", "model.onnx"):
        assert (folder / name).read_bytes() == (plain / name).read_bytes()
    folder = written(both, tmp_path / "both")
    for name in ("shallow.onnx", "model.onnx"):
        assert (folder / name).read_bytes() == (cached / name).read_bytes()
    assert [value.name for value in ir.load(folder / CONTROLLED_FILE).graph.outputs] == ["out_sample"]
    shapes = {value.name: str(value.shape) for value in ir.load(folder / CONTROLLED_FILE).graph.inputs}
    assert shapes[CONTROLNET.gives_middle] == "[unet_sample_batch,32,unet_sample_height/2,unet_sample_width/2]"


def test_a_controlnet_is_that_of_torch(controlnet):
    fused = run_pass(PASSES["fuse"], controlnet, target="cuda", precision="fp16")
    compare_with_torch(controlnet).require(1e-4)
    compare_with_torch(run_pass(PASSES["float16"], fused, target="cuda")).require(2e-2)


def test_layouts_name_and_type_what_their_clients_feed(controlnet):
    half = run_pass(PASSES["float16"], controlnet, target="cuda")
    inputs = ["sample", "timestep", "encoder_hidden_states", "controlnet_cond", "conditioning_scale"]
    for layout, scale in (("diffusers", ir.DataType.FLOAT), ("onnxstack", ir.DataType.DOUBLE)):
        for model in (controlnet, half):
            graph = run_pass(PASSES["layout"], model, profile=layout).graph.to_ir().graph
            real = [value for value in graph.inputs if not value.metadata_props]
            assert [value.name for value in real] == inputs
            assert (real[-1].dtype, str(real[-1].shape)) == (scale, "[1]")
            assert [value.name for value in graph.outputs] == RESIDUALS
    marked = run_pass(PASSES["controlnet_inputs"], little_model("sd", "unet"))
    for layout, written_too in (("onnxstack", True), ("csharp", False), ("web", False)):
        metadata = run_pass(PASSES["layout"], marked, profile=layout).graph.to_ir().metadata_props
        assert ("olivelike.controlnet_inputs" in metadata) == written_too


def test_what_is_no_unet_is_refused():
    with pytest.raises(PassError, match="it is no UNet"):
        run_pass(PASSES["controlnet_inputs"], little_model("sd", "vae_decoder").replace(component="unet"))

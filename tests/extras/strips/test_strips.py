"""A VAE on strips of a picture, against the same network on the whole of it."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from olivelike.engine.output.materialize import materialize
from olivelike.errors import Interrupted
from olivelike.extras.strips import attention_parts, run_in_strips as strips
from olivelike.extras.strips.cut_network import cut_network
from olivelike.graphs.functions import with_functions
from olivelike.runtime.jobs.job_notes import tile_notes
from olivelike.runtime.pipeline.latents import generators
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.request import Request
from olivelike.runtime.pipeline.strips import CutError, find_cut
from olivelike.runtime.pipeline.vae import decode_latents, encode_picture
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import ENGINE_CALLS, Network
from olivelike.runtime.sessions.session_settings import SessionSettings, choose_providers
from olivelike.testing import run_pass, tiny_model
from olivelike.testing.models import load_model, no_progress, traced_graph
from olivelike.workflow.passes import Registry
from tests.fixtures.maker_files import maker_folder

torch = pytest.importorskip("torch")

PORTS = {"vae_decoder": (("latent_sample", 4), ("sample", 3)), "vae_encoder": (("sample", 3), ("latent_parameters", 8))}


@cache
def converted(component, target, precision=None):
    fused = run_pass(Registry.built_in().get("fuse").cls, tiny_model(component, graph=True), target=target)
    return fused if precision is None else run_pass(Registry.built_in().get(precision).cls, fused, target=target)


@pytest.fixture
def small_parts(monkeypatch):
    """Strips of few rows, and attention for few queries at a time, of pictures that are small themselves."""
    monkeypatch.setattr(strips, "_ELEMENTS", 20_000)
    monkeypatch.setattr(attention_parts, "_SCORES", 3_000)


def write(folder, model):
    (folder / model.component).mkdir()
    materialize(model.graph, model.weights, model.tensors.files, folder / model.component, no_progress)
    return folder / model.component / "model.onnx"


def sample(component, height, width):
    """Return what a network takes, brighter to one side, so that strips differ in what they show."""
    _, channels = PORTS[component][0]
    noise = np.random.default_rng(0).standard_normal((1, channels, height, width), np.float32)
    return noise + np.linspace(-2, 2, height, dtype=np.float32)[:, None]


def both_ways(path, settings, height, width):
    """Return PSNR of a network in strips against the whole picture, whose values reach from -1 to 1, and both."""
    component = path.parent.name
    network, given = Network(component, open_session(path, settings)), sample(component, height, width)
    taken, made = PORTS[component]
    cut = cut_network(path, taken, made)
    scale = cut.segments[-1].outputs[0].scale
    shape = (1, made[1], int(height * scale), int(width * scale))
    call = network.prepare({taken[0]: given.shape}, {made[0]: shape})
    call.inputs[taken[0]][...] = given
    call.run()
    whole, in_strips = call.outputs[made[0]].astype(np.float32), np.full(shape, np.nan, np.float32)
    strips.run_in_strips(network, cut, given, in_strips)
    assert whole.std() > 0.01
    return psnr(in_strips, whole), cut


def psnr(found, expected):
    return -10 * math.log10(np.mean((found - expected) ** 2) / (expected.max() - expected.min()) ** 2)


def test_strips_of_latents_are_what_the_whole_picture_is(tmp_path, settings, small_parts):
    found, cut = both_ways(write(tmp_path, converted("vae_decoder", "cpu")), settings, 13, 9)
    assert found > 100
    # What is held at most: 16 channels at full size, before and behind the last shortcut.
    assert cut.memory(13, 9) == 16 * 64 * 13 * 9 * 4


def test_strips_of_a_picture_are_what_the_whole_picture_is(tmp_path, settings, small_parts):
    assert both_ways(write(tmp_path, converted("vae_encoder", "cpu")), settings, 136, 72)[0] > 100


@pytest.mark.slow  # Both networks are traced for it.
@pytest.mark.parametrize(("component", "size"), [("vae_decoder", (13, 9)), ("vae_encoder", (52, 36))])
def test_flux2_s_squares_and_attention_are_what_the_whole_picture_is(
    tmp_path, settings, small_parts, monkeypatch, component, size
):
    squares, pixels = ("latent_sample", 16), ("sample", 3)
    monkeypatch.setitem(PORTS, component, (squares, pixels) if component == "vae_decoder" else (pixels, squares))
    model = load_model(maker_folder("flux2"), component)
    assert model.architecture.config["mid_block_add_attention"]
    traced = model.replace(graph=traced_graph(model.architecture))
    path = write(tmp_path, run_pass(Registry.built_in().get("fuse").cls, traced, target="cpu"))
    assert {"Attention", "MultiHeadAttention"} & {node.op_type for node in ir.load(path).graph}
    assert both_ways(path, settings, *size)[0] > 100


def test_half_precision_is_as_close_as_its_digits(tmp_path, settings, small_parts):
    path = write(tmp_path, converted("vae_decoder", "cpu", "float16"))
    assert both_ways(path, settings, 24, 16)[0] > 55


@pytest.mark.parametrize(
    ("target", "component"),
    [("cuda", "vae_decoder"), ("directml", "vae_encoder"), ("webgpu", "vae_decoder"), ("migraphx", "vae_encoder")],
)
def test_each_target_s_spelling_is_cut(tmp_path, settings, small_parts, monkeypatch, component, target):
    path = write(tmp_path, converted(component, target))
    cut = cut_network(path, *PORTS[component])
    assert len(cut.segments) > len(cut.norms) > 10
    assert [segment.margin for segment in cut.segments].count(None) == 1

    def on_cpu(model):
        return ir.to_proto(with_functions(model)).SerializeToString()

    def open_stated(path, settings, *, content=None):
        return open_session(path, settings, content=on_cpu(ir.from_proto(onnx.ModelProto.FromString(content))))

    whole = tmp_path / "stated" / component / "model.onnx"
    whole.parent.mkdir(parents=True)
    whole.write_bytes(on_cpu(ir.load(path).clone()))
    whole.with_name("weights.pb").hardlink_to(path.with_name("weights.pb"))
    monkeypatch.setattr(strips, "open_session", open_stated)
    monkeypatch.setattr("test_strips.cut_network", lambda *_: cut)
    size = (12, 20) if component == "vae_decoder" else (64, 96)
    assert both_ways(whole, settings, *size)[0] > 100


def test_openvino_takes_strips_of_a_graph_in_bfloat16(tmp_path, small_parts):
    pytest.importorskip("openvino")
    settings = choose_providers(replace(SessionSettings(), intra_threads=1), ["openvino"])
    path = write(tmp_path, converted("vae_decoder", "openvino", "bfloat16"))
    assert both_ways(path, settings, 8, 16)[0] > 40


def test_a_pipeline_decodes_and_encodes_large_pictures_in_strips(tmp_path, settings, little_folder, small_parts):
    networks = {name: Network(name, open_session(write(tmp_path, converted(name, "cpu")), settings)) for name in PORTS}
    folder = replace(open_folder(little_folder), vae={"block_out_channels": [8, 16, 32, 32], "latent_channels": 4})
    tiled = replace(folder, vae_tile=16)
    latents = np.concatenate([sample("vae_decoder", 24, 16), sample("vae_decoder", 24, 16)[:, :, ::-1]]) / 5
    pixels = sample("vae_encoder", 136, 200) / 3

    def encode(folder):
        return encode_picture(pixels, networks["vae_encoder"], 4, folder, generators([1]))

    decoded = [decode_latents(latents, networks["vae_decoder"], one) for one in (folder, tiled)]
    encoded = [encode(one) for one in (folder, tiled)]
    assert 100 < psnr(*decoded) < math.inf
    assert 100 < psnr(*encoded) < math.inf


def test_a_network_that_can_t_be_cut_says_why(tmp_path, settings, monkeypatch):
    def cut(*nodes):
        shape = [1, 4, "h", "w"]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("latent_sample", "sample")]
        graph = helper.make_graph(
            list(nodes), "g", ends[:1], ends[1:],
            [helper.make_tensor("v", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])],
        )  # fmt: skip
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
        return cut_network(path, ("latent_sample", 4), ("sample", 4))

    with pytest.raises(CutError, match="it has no group normalisation"):
        cut(helper.make_node("Sigmoid", ["latent_sample"], ["sample"]))
    with pytest.raises(CutError, match="InstanceNormalization that is no group normalisation"):
        cut(
            helper.make_node("InstanceNormalization", ["latent_sample", "v", "v"], ["n"]),
            helper.make_node("Mul", ["n", "v"], ["m"]),
            helper.make_node("Add", ["m", "v"], ["sample"]),
        )
    with pytest.raises(CutError, match="GroupNormalization of opset 20"):
        cut(helper.make_node("GroupNormalization", ["latent_sample", "v", "v"], ["sample"], num_groups=4))
    with pytest.raises(CutError, match="its graph is not understood"):
        cut_network(tmp_path / "none.onnx", ("latent_sample", 4), ("sample", 4))


def test_a_note_says_whether_the_picture_is_in_strips_or_in_tiles(tmp_path, little_folder, monkeypatch):
    folder = open_folder(little_folder)
    request = Request(("a red circle",), size=(64, 32), tiled_vae=True)
    (note,) = tile_notes([request], folder)
    assert note.startswith("the VAE works in strips, ")
    assert list(tile_notes([replace(request, size=(32, 32))], folder)) == []
    assert len(list(tile_notes([replace(request, size=(32, 32), hires=2)], folder))) == 1
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    (note,) = tile_notes([request], folder)
    assert "in tiles of 32x32" in note
    assert re.search(r"between its layers the picture takes \d+\.\d MB, and 1\.0 MB are free$", note)


def test_strips_end_when_the_engine_is_asked_to(tmp_path, settings, small_parts, monkeypatch):
    run = Network.prepare
    calls = []

    def prepare(self, *shapes):
        calls.append(shapes)
        if len(calls) == 4:
            thread = threading.Thread(target=ENGINE_CALLS.end)
            thread.start()
            thread.join()
        return run(self, *shapes)

    monkeypatch.setattr(Network, "prepare", prepare)
    with ENGINE_CALLS.watch(), pytest.raises(Interrupted, match="vae_decoder: interrupted between two strips"):
        both_ways(write(tmp_path, converted("vae_decoder", "cpu")), settings, 24, 16)
    assert len(calls) == 4


def test_weights_that_are_given_in_place_of_the_file_s_are_used(tmp_path, settings, small_parts):
    path = write(tmp_path, converted("vae_decoder", "cpu"))
    weights = {one.name: onnx.numpy_helper.to_array(one, str(path.parent)) for one in onnx.load(path).graph.initializer}
    given = {name: value * 1.5 for name, value in weights.items() if "conv_norm_out" in name or "conv_in" in name}
    taken, made = PORTS["vae_decoder"]
    network = Network("vae_decoder", open_session(path, settings, given))
    call = network.prepare({taken[0]: (1, 4, 8, 8)}, {made[0]: (1, 3, 64, 64)})
    latents = sample("vae_decoder", 8, 8)
    call.inputs[taken[0]][...] = latents
    call.run()
    found = np.empty((1, 3, 64, 64), np.float32)
    strips.run_in_strips(network, cut_network(path, taken, made, given), latents, found)
    assert psnr(found, call.outputs[made[0]]) > 100


def test_segments_of_a_folder_for_tensorrt_are_left_to_cuda(little_folder, settings, monkeypatch):
    path = little_folder / "vae_decoder" / "model.onnx"
    network = Network("vae_decoder", open_session(path, settings))
    asked = replace(choose_providers(settings, ["tensorrt", "cuda"]), cuda_graph=True)
    network.session.opened = replace(network.session.opened, settings=asked)
    used = []

    def open_on_cpu(path, given, *, content):
        used.append(([choice.provider.short_name for choice in given.providers], given.cuda_graph))
        return open_session(path, settings, content=content)

    monkeypatch.setattr(strips, "open_session", open_on_cpu)
    found = np.full((1, 3, 16, 16), np.nan, np.float32)
    cut = cut_network(path, *PORTS["vae_decoder"])
    strips.run_in_strips(network, cut, sample("vae_decoder", 8, 8), found)
    assert not np.isnan(found).any()
    assert used == [(["cuda"], False)] * len(cut.segments)


def test_without_the_extra_the_vae_works_in_tiles(monkeypatch):
    monkeypatch.setattr("olivelike.runtime.pipeline.strips.place_of", lambda interface, name: None)
    with pytest.raises(CutError, match="`strips` of olivelike is not installed"):
        find_cut("model.onnx", ("latent_sample", 4), ("sample", 3), (8, 8), {})

"""Exports of others come to today's operators, compute the same, and are fused like our own."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from olivelike.passes.float16 import Float16
from olivelike.passes.fuse import Fuse

from olivelike.digest import digest_file
from olivelike.errors import PassError
from olivelike.extras.adopt.onnx_graph import load_onnx
from olivelike.extras.adopt.onnx_source import open_onnx_component
from olivelike.families.networks import interface_of
from olivelike.measure.network_sizes import random_inputs
from olivelike.measure.verify.original import relative_error
from olivelike.sources.checkpoint import FolderFiles
from olivelike.sources.names.adaptation import bind
from olivelike.testing import Case, LocalModel, LocalTensors, random_model, run_pass, tiny_model
from olivelike.testing.models import traced_graph
from olivelike.testing.parity import materialize_model, open_on_cpu
from tests.fixtures.fusion_networks import Network, short_unet
from tests.fixtures.torchscript_pipeline import export_with_torchscript

CASES = (Case(1, 16, 24), Case(3, 24, 8, 9))


@cache
def original(component):
    """Return what is exported: networks of the tiny checkpoint, the UNet and the VAE with two levels in place of four.

    The VAE is one that tests of fusion have traced.
    """
    if component.startswith("vae"):
        return random_model(Network(component).architecture)
    return short_unet() if component == "unet" else tiny_model(component)


def own(component):
    """Return the same with the graph of our own export."""
    model = original(component)
    return model.replace(graph=traced_graph(model.architecture))


@cache
def own_fused(component, target):
    """Return the same, fused."""
    return run_pass(Fuse, own(component), target=target)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, one_torch_thread):
    """Return the file and the model of a component, exported once: `exported("unet", opset=14)`."""
    made = {}

    def make(component, **options):
        key = (component, *sorted(options.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("ts") / component
            path = export_with_torchscript(component, folder, model=original(component), **options)
            made[key] = path, load(path, component)
        return made[key]

    return make


def load(path, component):
    checkpoint = open_onnx_component(FolderFiles.local(path.parents[1]), component)
    adaptation, graph = load_onnx(component, path)
    digests = {file: digest_file(file) for file in checkpoint.files}
    tensors = LocalTensors({digest: file for file, digest in digests.items()})
    return LocalModel(component, None, bind(adaptation, checkpoint, digests), graph, tensors)


def open_file(folder):
    """Open what others exported as they would: its operators all have kernels."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])


def distance(path, model, folder, cases=CASES, open_first=open_file):
    """Return the largest relative error of a model against the original file, both in ONNX Runtime."""
    folder.mkdir(exist_ok=True)
    materialize_model(model, folder)
    result = open_on_cpu(folder)
    errors = []
    for feeds, outputs in zip(*answers(path, model.component, cases, open_first), strict=True):
        pairs = zip(outputs, run(result, feeds), strict=True)
        errors += [relative_error(found.astype(np.float64), expected) for expected, found in pairs]
    return max(errors)


@cache
def answers(path, component, cases, open_session):
    """Return inputs of each case, and what a file makes of them; no test changes one in its place."""
    config = original(component).architecture.config
    inputs, session = interface_of(original(component).architecture).inputs, open_session(path.parent)
    feeds = [random_inputs(inputs, case, config, 1) for case in cases]
    return feeds, [run(session, one) for one in feeds]


def run(session, feeds):
    half = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    return session.run(None, {n: v.astype(np.float16) if n in half else v for n, v in feeds.items()})


def operators(graph):
    return Counter(node.op_type for node in graph.to_ir().graph)


SPELLED = {
    "text_encoder": {"LayerNormalization": 7, "Attention": 3},
    "vae_encoder": {"GroupNormalization": 10, "Attention": 1},
    "vae_decoder": {"GroupNormalization": 14, "Attention": 1},
    "safety_checker": {"LayerNormalization": 8, "Attention": 3},
}
DECOMPOSED = ("ReduceMean", "InstanceNormalization", "Erf", "Softmax", "Sqrt")


@pytest.mark.parametrize(
    ("component", "opset"),
    [
        ("text_encoder", 14), ("vae_decoder", 14), ("safety_checker", 17), ("vae_encoder", 17),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (
            ("text_encoder", 17), ("vae_decoder", 17), ("safety_checker", 14), ("vae_encoder", 14),
        )),
    ],
)  # fmt: skip
def test_what_is_spelled_out_becomes_one_operator(exported, tmp_path, component, opset):
    path, model = exported(component, opset=opset)
    found = operators(model.graph)
    assert {name: found[name] for name in SPELLED[component]} == SPELLED[component]
    assert not any(found[name] for name in DECOMPOSED)
    assert model.graph.to_ir().opset_imports == {"": 23}
    onnx.checker.check_model(model.graph.data, full_check=True)
    assert distance(path, model, tmp_path / "out") < 3e-6


@pytest.mark.parametrize(
    "component",
    [
        "text_encoder", "vae_decoder",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("vae_encoder", "safety_checker")),
    ],
)  # fmt: skip
def test_fused_and_halved_it_computes_the_same(exported, tmp_path, component):
    path, model = exported(component, opset=17)
    fused = run_pass(Fuse, model, target="cuda")
    assert distance(path, fused, tmp_path / "fused") < 3e-6
    assert distance(path, run_pass(Float16, fused, target="cuda"), tmp_path / "fused_half") < 1e-2
    assert distance(path, run_pass(Float16, model, target="cpu"), tmp_path / "half") < 1e-2


@pytest.mark.parametrize("component", ["text_encoder", "vae_decoder"])
def test_it_is_fused_like_our_own_export(exported, component):
    model = exported(component, opset=14, named_as="diffusers")[1]
    fused = run_pass(Fuse, model, target="cuda")
    theirs = own_fused(component, "cuda")
    rules = ("attention", "attention_projections", "group_norm", "group_norm_silu", "skip_group_norm")
    rules += ("nhwc_conv", "skip_layer_norm", "bias_skip_layer_norm", "quick_gelu")
    for rule in rules:
        assert fused.facts["fused"].get(rule) == theirs.facts["fused"].get(rule), rule


def test_a_unet_is_fused_like_our_own_export(exported, tmp_path):
    path, model = exported("unet", opset=14, named_as="diffusers")
    fused = run_pass(Fuse, model, target="cuda")
    found = operators(fused.graph)
    expected = {
        "MultiHeadAttention": 8, "GroupNorm": 6, "SkipGroupNorm": 15, "NhwcConv": 33,
        "LayerNormalization": 4, "SkipLayerNormalization": 8, "Gelu": 4,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert not any(found[name] for name in DECOMPOSED)
    assert distance(path, fused, tmp_path / "out", CASES[1:]) < 3e-6


def test_open_sizes_have_the_names_of_the_inputs(exported):
    graph = exported("vae_decoder", opset=14, named_as="diffusers")[1].graph.to_ir().graph
    (sample,) = graph.outputs
    assert [str(dim) for dim in sample.shape] == ["batch", "3", "2*height", "2*width"]
    assert [str(dim) for dim in graph.inputs[0].shape] == ["batch", "4", "height", "width"]


def test_a_timestep_may_be_one_for_the_whole_batch(exported, tmp_path):
    """Both have a dimension called `batch`, and clients feed one timestep all the same."""
    path, model = exported("unet", opset=14, named_as="diffusers")
    fused = run_pass(Fuse, model, target="cpu", precision="fp32")
    folder = tmp_path / "out"
    folder.mkdir()
    materialize_model(fused, folder)
    random = np.random.default_rng(0)
    feeds = {
        "sample": random.standard_normal((2, 4, 8, 16), dtype=np.float32),
        "encoder_hidden_states": random.standard_normal((2, 77, 32), dtype=np.float32),
    }
    theirs, ours = open_file(path.parent), open_on_cpu(folder)
    for timestep in ([7.0], [7.0, 900.0]):
        feeds["timestep"] = np.array(timestep, dtype=np.float32)
        (expected,), (found,) = run(theirs, feeds), run(ours, feeds)
        assert relative_error(found, expected) < 3e-6


@pytest.mark.parametrize("component", ["text_encoder", pytest.param("vae_decoder", marks=pytest.mark.slow)])
def test_models_in_half_precision_stay_what_they_are(exported, tmp_path, component):
    path, model = exported(component, opset=17, half=True, external=True)
    assert distance(path, model, tmp_path / "out") < 2e-3
    assert distance(path, run_pass(Float16, model, target="cpu"), tmp_path / "half") < 2e-3
    with pytest.raises(PassError, match="in half precision already"):
        run_pass(Fuse, model, target="cuda")


@pytest.mark.parametrize(
    ("component", "target"),
    [
        ("text_encoder", "cpu"), ("vae_decoder", "cuda"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("text_encoder", "cuda"), ("vae_decoder", "cpu"))),
    ],
)  # fmt: skip
def test_our_own_output_can_be_the_source_again(tmp_path, component, target):
    folder = tmp_path / component
    folder.mkdir()
    materialize_model(own_fused(component, target), folder)
    again = load(folder / "model.onnx", component)
    assert distance(folder / "model.onnx", again, tmp_path / "again", open_first=open_on_cpu) < 2e-6
    fused = run_pass(Fuse, again, target="cuda")
    assert distance(folder / "model.onnx", fused, tmp_path / "fused", open_first=open_on_cpu) < 3e-6
    fused_operators = operators(own_fused(component, "cuda").graph)
    for name in ("MultiHeadAttention", "GroupNorm", "SkipGroupNorm", "SkipLayerNormalization", "QuickGelu"):
        assert operators(fused.graph)[name] == fused_operators[name], name
    half = run_pass(Float16, again, target=target)
    assert distance(folder / "model.onnx", half, tmp_path / "half", open_first=open_on_cpu) < 1e-2


def test_the_result_is_the_same_each_time(exported):
    path, model = exported("vae_decoder", opset=17)
    assert load_onnx("vae_decoder", path)[1].data == model.graph.data


def test_onnxruntime_runs_the_result_without_functions(exported, tmp_path):
    model = exported("text_encoder", opset=17)[1]
    materialize_model(run_pass(Fuse, model, target="cpu"), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"input_ids": np.arange(10, dtype=np.int32).reshape(2, 5)})
    assert all(np.isfinite(value).all() for value in outputs)


@pytest.mark.parametrize("target", [pytest.param("cpu", marks=pytest.mark.slow), "cuda"])
def test_fused_models_without_notes_on_shapes_get_them_back(tmp_path, target):
    """ONNX Runtime's optimizer, and Olive with it, writes none, and ONNX's inference knows no fused operator."""
    folder = tmp_path / "vae_decoder"
    folder.mkdir()
    materialize_model(own_fused("vae_decoder", target), folder)
    stripped = onnx.load(folder / "model.onnx", load_external_data=False)
    del stripped.graph.value_info[:]
    onnx.save(stripped, folder / "model.onnx")
    again = load(folder / "model.onnx", "vae_decoder")
    values = [value for node in again.graph.to_ir().graph for value in node.outputs]
    assert all(value.dtype is not None and value.shape is not None for value in values)
    assert operators(run_pass(Fuse, again, target="cuda").graph)["SkipGroupNorm"] == 6
    half = run_pass(Float16, again, target=target)
    assert distance(folder / "model.onnx", half, tmp_path / "half", open_first=open_on_cpu) < 1e-2

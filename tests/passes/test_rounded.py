"""The passes `int8` and `fp8`: what they write, what runtimes make of it, how near it is, and where it is refused."""

from __future__ import annotations

import json
import logging
from collections import Counter
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from olivelike.engine.output.materialize import materialize
from olivelike.errors import PassError, VerificationError
from olivelike.graphs.inspect import inspect_model, left_to_cpu
from olivelike.graphs.probes import PROBE, add_probes, attending
from olivelike.graphs.static_quantisation import Rounding, StaticQuantisation
from olivelike.measure.verify import float_search
from olivelike.measure.verify.evaluation import Evaluation
from olivelike.measure.verify.float_search import FloatSearch
from olivelike.model import Graph
from olivelike.model.graph import BLOCK_KEY, block_of
from olivelike.model.observations import Observer
from olivelike.model.targets import TARGETS
from olivelike.pass_api import Cache, Context
from olivelike.testing import run_pass
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model

FUSE, INT8, FP8, VERIFY = (Registry.built_in().get(name).cls for name in ("fuse", "int8", "fp8", "verify"))


def write(model, folder):
    folder.mkdir(exist_ok=True)
    materialize(model.graph, model.weights, model.tensors.files, folder, lambda _, __: None)
    return folder / "model.onnx"


def feeds(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "sample": rng.standard_normal((2, 4, 16, 16)).astype(np.float32),
        "timestep": np.array([500 + 400 * seed], np.int64),
        "encoder_hidden_states": rng.standard_normal((2, 77, 32)).astype(np.float32),
    }


def session(path, optimised=None):
    options = onnxruntime.SessionOptions()
    if optimised is None:  # Fusions around float8 make operators that have no such kernel.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def shaped(opened, given):
    wanted = {one.name: one for one in opened.get_inputs()}
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    found = {}
    for name, one in wanted.items():
        array = given[name]
        dims = [size if isinstance(size, int) else array.shape[axis] for axis, size in enumerate(one.shape)]
        found[name] = np.resize(array, dims).astype(types[one.type])
    return found


def test_what_shows_a_value_stands_right_behind_what_makes_it():
    graph = little_model("attending", "unet").graph.to_ir()
    add_probes(graph)
    places = {node: place for place, node in enumerate(graph.graph)}
    shown = [value for value in graph.graph.outputs if value.name.startswith(PROBE)]
    assert len(shown) > 20
    for value in shown:
        source = value.producer().inputs[0].producer().inputs[0].producer().inputs[0]
        made = places[source.producer()] if source.producer() is not None else -1
        assert places[value.producer()] - made <= 16


@pytest.fixture(scope="module")
def calibrated(one_torch_thread, tmp_path_factory):
    """A fused UNet for `cpu`, its file, and what passes through it."""
    fused = run_pass(FUSE, little_model("attending", "unet"), target="cpu")
    graph = fused.graph.to_ir()
    add_probes(graph)
    folder = tmp_path_factory.mktemp("probed")
    probed = session(write(fused.replace(graph=Graph.from_ir(graph)), folder))
    seen = {}
    for seed in (0, 1):
        names = [one.name for one in probed.get_outputs() if one.name.startswith(PROBE)]
        for name, figures in zip(names, probed.run(names, shaped(probed, feeds(seed))), strict=True):
            observer = seen.setdefault(name.removeprefix(PROBE), Observer())
            observer.add(float(figures[0]), float(figures[1]), figures[3:])
            assert figures[0] <= figures[3:].min() <= figures[3:].max() <= figures[1]
    return fused, write(fused, tmp_path_factory.mktemp("float")), {n: one.result() for n, one in seen.items()}


@pytest.fixture(scope="module")
def rounded_by(calibrated):
    """What gives the UNet that a pass has rounded for a target, each once."""
    fused, _, seen = calibrated
    return cache(lambda make, target: run_pass(make, fused, target=target, calibration=seen))


def outputs(path, optimised=None):
    opened = session(path, optimised)
    return opened.run(None, shaped(opened, feeds()))[0]


def distance(found, wanted):
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_the_cpu_computes_in_8_bits_what_is_near_to_float(calibrated, rounded_by, tmp_path):
    _, as_float, _ = calibrated
    result = rounded_by(INT8, "cpu")
    path = write(result, tmp_path)
    assert 1e-3 < distance(outputs(path, tmp_path / "optimised.onnx"), outputs(as_float)) < 0.2
    ran = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx", load_external_data=False).graph.node)
    rounded, left = result.facts["kept_weights"]
    counts = result.facts["quantised_convolutions"] + result.facts["quantised_linear"]
    assert (rounded["form"], rounded["layers"], left["form"]) == ("int8", counts, "float32")
    assert [one.weights for one in inspect_model(path, targets=()).kept_weights] == [
        rounded["weights"],
        left["weights"],
    ]
    assert ran["QLinearConv"] == result.facts["quantised_convolutions"] == 21
    assert ran["MatMulIntegerToFloat"] + ran["QGemm"] == result.facts["quantised_linear"] == 8
    written, before = (one.with_name("weights.pb").stat().st_size for one in (path, as_float))
    assert before - written > 2.7 * rounded["weights"], (before - written) / rounded["weights"]
    assert {entry.domain for entry in onnx.load(path).opset_import} == {"", "com.microsoft"}


def test_openvino_reads_the_same_form(calibrated, rounded_by, tmp_path):
    openvino = pytest.importorskip("openvino")
    _, as_float, _ = calibrated
    network = openvino.Core().compile_model(str(write(rounded_by(INT8, "openvino"), tmp_path)), "CPU")
    found = network(shaped(session(as_float), feeds()))[0]
    assert 1e-3 < distance(found, outputs(as_float)) < 0.2


@pytest.mark.parametrize(
    ("make", "target", "name"),
    [(FP8, "tensorrt", "fp8"), pytest.param(INT8, "cpu", "int8", marks=pytest.mark.slow)],  # A run verifies int8.
)
def test_verify_knows_it(rounded_by, make, target, name):
    found = run_pass(VERIFY, rounded_by(make, target), samples=1)
    figures = found.facts["verification"]
    assert (figures["precision"], figures["passed"]) == (name, True)
    assert figures["relative_error"] > 1e-3


def test_float8_graphs_run_and_are_evaluated_as_the_cpu_rounds(calibrated, rounded_by, tmp_path):
    _, as_float, _ = calibrated
    result = rounded_by(FP8, "tensorrt")
    assert 1e-3 < distance(outputs(write(result, tmp_path)), outputs(as_float)) < 0.2
    graph = onnx.parser.parse_graph(
        "agraph (float[N] x, float scale) => (float[N] y) <float8e4m3fn zero = {0}>"
        "{ rounded = QuantizeLinear(x, scale, zero)  y = DequantizeLinear(rounded, scale, zero) }"
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32) * 99
    given = {"x": np.append(values, [0, 1e4, -1e4]).astype(np.float32), "scale": np.array(0.31, np.float32)}
    evaluated = Evaluation(ir.from_proto(model)).run(given)["y"]
    np.testing.assert_array_equal(evaluated, session(model.SerializeToString()).run(None, given)[0])


ATTENTION = """agraph (float[B,4,S,WIDTH] q, float[B,4,WIDTH,S] k, float[B,4,S,WIDTH] v, float[S,S] mask)
=> (float[B,4,S,WIDTH] mixed) {
    scores = MatMul(q, k)  masked = Add(scores, mask)  shares = Softmax<axis = -1>(masked)  mixed = MatMul(shares, v)
}"""


def attention(width, masked=True):
    """A model of attention that is spelled out, values that pass through it, and what calibration sees of them."""
    text = ATTENTION.replace("WIDTH", str(width))
    graph = onnx.parser.parse_graph(
        text if masked else text.replace("masked = Add(scores, mask)", "").replace("(masked)", "(scores)")
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    for node in model.graph:
        node.metadata_props[BLOCK_KEY] = "mid_block.attentions.0"
    rng = np.random.default_rng(0)
    given = {"q": rng.standard_normal((2, 4, 8, width)), "k": rng.standard_normal((2, 4, width, 8)) / 4,
             "v": rng.standard_normal((2, 4, 8, width)), "mask": np.triu(np.full((8, 8), -1e4), 1)}  # fmt: skip
    given = {name: array.astype(np.float32) for name, array in given.items()}
    add_probes(probed := model.clone())
    opened = session(ir.to_proto(probed).SerializeToString())
    names = [one.name for one in opened.get_outputs() if one.name.startswith(PROBE)]
    assert names == [f"{PROBE}{name}" for name in "qkv"]
    seen = {}
    for name, figures in zip(names, opened.run(names, given), strict=True):
        observer = seen.setdefault(name.removeprefix(PROBE), Observer())
        observer.add(float(figures[0]), float(figures[1]), figures[3:])
    return model, given, {name: one.result() for name, one in seen.items()}


@pytest.mark.parametrize("masked", [True, False])
def test_attention_that_is_spelled_out_is_computed_in_float8(masked):
    model, given, seen = attention(16, masked)
    wanted = session(ir.to_proto(model).SerializeToString()).run(None, given)[0]
    counts = StaticQuantisation(model, seen, Rounding("fp8"), attention=True).quantise()
    assert counts == {"quantised_attention": 1}
    products = [node for node in model.graph if node.op_type == "MatMul"]
    makers = [value.producer().op_type for node in products for value in node.inputs]
    assert makers == ["DequantizeLinear"] * 4
    scale = products[1].inputs[0].producer().inputs[1].const_value.numpy()
    assert scale == np.float32(1 / 448)  # The largest float8 stands for a share of 1.
    assert 1e-4 < distance(session(ir.to_proto(model).SerializeToString()).run(None, given)[0], wanted) < 0.05


@pytest.mark.parametrize(("width", "float_blocks"), [(24, ()), (16, ("mid_block",))])
def test_attention_of_other_widths_and_of_float_blocks_stays_in_float(width, float_blocks):
    model, _, seen = attention(width)
    quantisation = StaticQuantisation(model, seen, Rounding("fp8"), attention=True, float_blocks=float_blocks)
    assert quantisation.quantise() == {"attention_left_in_float": 1}
    assert {node.op_type for node in model.graph} == {"MatMul", "Add", "Softmax"}


def test_a_product_whose_second_factor_is_a_softmax_is_no_attention():
    model, _, _ = attention(16)
    mixed = model.graph.node(-1)
    mixed.replace_input_with(0, mixed.inputs[1])
    mixed.replace_input_with(1, model.graph.node(2).outputs[0])
    assert list(attending(model.graph, set())) == []


def test_it_is_known_where_float8_runs(rounded_by):
    graph = rounded_by(FP8, "tensorrt").graph.to_ir()
    left = {
        name: {node.reason for node in left_to_cpu(graph, TARGETS[name])} for name in ("cpu", "tensorrt", "directml")
    }
    assert not left["cpu"]
    assert not any("float8" in reason for reason in left["tensorrt"])
    assert "directml is not known to have it in float8" in left["directml"]


def test_what_stays_in_float_is_an_option(calibrated, rounded_by):
    fused, _, seen = calibrated
    usual = rounded_by(INT8, "cpu").facts
    less = run_pass(INT8, fused, target="cpu", calibration=seen, linear=False, float_blocks=["down_blocks.*"]).facts
    assert usual["left_in_float"] < less["left_in_float"]
    assert "quantised_linear" not in less
    paths = {node.metadata_props.get("olivelike.block", "") for node in
             rounded_by(INT8, "cpu").graph.to_ir().graph
             if node.op_type == "QuantizeLinear"}  # fmt: skip
    assert not {path for path in paths if path.startswith(("conv_in", "time_embedding"))}


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_methods_give_other_ranges(calibrated, method):
    fused, _, seen = calibrated
    usual = run_pass(INT8, fused, target="cpu", calibration=seen, linear=False)
    other = run_pass(INT8, fused, target="cpu", calibration=seen, linear=False, method=method)
    assert other.graph.digest != usual.graph.digest


def test_symmetric_activations_have_no_zero_point(calibrated):
    fused, _, seen = calibrated
    graph = run_pass(INT8, fused, target="openvino", calibration=seen, activations="int8").graph.to_ir().graph
    zeros = [node.inputs[2].const_value.numpy() for node in graph if node.op_type == "QuantizeLinear"]
    assert {zero.dtype for zero in zeros} == {np.dtype(np.int8)}
    assert not any(zero.any() for zero in zeros)


def test_another_graph_than_the_one_that_was_seen_is_refused(calibrated, rounded_by):
    fused, _, seen = calibrated
    with pytest.raises(PassError, match="calibration has not seen '.*'; nothing may change the graph"):
        run_pass(INT8, fused, target="cpu", calibration={})
    with pytest.raises(PassError, match="quantised already"):
        run_pass(INT8, rounded_by(INT8, "cpu"), target="cpu", calibration=seen)


@pytest.mark.parametrize(("make", "name"), [(INT8, "tensorrt"), (INT8, "webgpu"), (FP8, "cpu"), (FP8, "cuda")])
def test_targets_without_a_kernel_are_refused(make, name):
    assert f"target '{name}'" in make().unsupported_reason(TARGETS[name])


BLOCKS = [f"up_blocks.{number}" for number in range(20)]


def searched(monkeypatch, costs, drawing=None, **limits):
    """Search in a graph of one rounded value a block, where each block in 8 bits costs the output its share."""

    def convert(left):
        value = ir.Value(name="value", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
        scale, zero = ir.Value(name="scale"), ir.Value(name="zero")
        rounded = [block for block in BLOCKS if not {block, "*"} & {*left}]
        nodes = [ir.node("QuantizeLinear", [value, scale, zero], metadata_props={BLOCK_KEY: one}) for one in rounded]
        outputs = [node.outputs[0] for node in nodes]
        return ir.Model(ir.Graph([value, scale, zero], outputs, nodes=nodes, opset_imports={"": 21}), ir_version=10)

    def tried(_, blocks):
        error = 1e-6 if blocks == ("*",) else sum(cost for block, cost in costs.items() if block not in blocks)
        return {"relative_error": error, "nan": 0, "inf": 0}

    monkeypatch.setattr(FloatSearch, "_try", tried)
    facets = {name: SimpleNamespace(digest=name, component="unet") for name in ("architecture", "weights", "graph")}
    context = SimpleNamespace(
        tensors=None, cache=Cache(), logger=logging.getLogger("test"), require_drawing=lambda: drawing
    )
    model = SimpleNamespace(require=facets.__getitem__)
    monkeypatch.setattr(float_search, "parameter_reader", lambda *_: None)
    options = {"step": "int8", "limit": 0.1, "samples": 1, "seed": 0, **limits}
    return FloatSearch(model, context, convert, **options).run()


def test_a_limit_that_cannot_be_met_is_answered_with_the_nearest_that_can(monkeypatch):
    costs = {**dict.fromkeys(BLOCKS, 0.02), BLOCKS[7]: 0.01}
    told = rf"with any block in int8 further from torch than 5.0e-03; nearest is {BLOCKS[7]} alone, with 1.0e-02, and"
    with pytest.raises(VerificationError, match=told):
        searched(monkeypatch, costs, limit=5e-3)


class CountedDrawing:
    """As if each of some blocks cost the latents 0.02, and the pictures the more the more of them there are."""

    digest = "0" * 64

    def __init__(self, *dear):
        self._dear, self.drawn = dear, 0

    def compare(self, graph):
        self.drawn += 1
        rounded = {block_of(node) for node in graph.graph}
        bad = len(rounded.intersection(self._dear))
        return {"latents_error": 0.02 * bad, "psnr": 40 - 10 * bad if bad else None}


@pytest.mark.parametrize(
    ("of", "limit", "kept"),
    [
        ("latents", {"limit": 0.01}, 2),
        ("latents", {"limit": 0.03}, 1),
        ("pictures", {"min_psnr": 35}, 2),
        ("pictures", {"min_psnr": 30}, 1),
        ("pictures", {"min_psnr": 15}, 0),
    ],
)
def test_a_search_by_what_is_drawn_leaves_in_float_what_that_takes(monkeypatch, of, limit, kept):
    dear = BLOCKS[3], BLOCKS[5]
    costs = {block: number / 100 for number, block in enumerate(reversed(BLOCKS))}
    drawing = CountedDrawing(*dear)
    blocks, facts = searched(monkeypatch, costs, drawing, of=of, **{"min_psnr": 30, **limit})
    assert len(blocks) == kept
    assert set(blocks) <= set(dear)
    assert facts["latents_error"] == 0.02 * (2 - kept)
    assert facts["drawings"] == drawing.drawn < 20
    assert facts.get("without", facts)["psnr"] == 20


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (
            "pictures",
            "pictures have less than 30 dB; nearest is .* alone, with 12.0 dB, and all .* 12.0 dB: lower min_psnr",
        ),
        (
            "latents",
            "further from float's than 1.0e-01; nearest is .* alone, with latents that are not finite.*: raise max",
        ),
    ],
)
def test_a_limit_on_what_is_drawn_that_cannot_be_met_is_answered_with_the_nearest(monkeypatch, of, told):
    def compare(graph):
        return {"latents_error": None, "psnr": 12.0} if len(graph.graph) else {"latents_error": 0.0, "psnr": None}

    drawing = SimpleNamespace(digest="0" * 64, compare=compare)
    with pytest.raises(VerificationError, match=told):
        searched(monkeypatch, dict.fromkeys(BLOCKS, 0.1), drawing, of=of, min_psnr=30)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "target"), [(INT8, "cpu"), (FP8, "tensorrt")])
def test_a_search_leaves_in_float_what_costs_most(calibrated, rounded_by, make, target):
    fused, _, seen = calibrated
    cache = {}

    class Remembering(Cache):
        def get(self, question):
            return cache.get(json.dumps(question))

        def put(self, question, answer):
            cache[json.dumps(question)] = answer

    usual = run_pass(VERIFY, rounded_by(make, target), samples=1, max_relative_error=1)
    error = usual.facts["verification"]["relative_error"]
    asked = {"target": target, "calibration": seen, "auto": True, "samples": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("olivelike.testing.pass_runner.Context", partial(Context, cache=Remembering()))
        found = run_pass(make, fused, max_relative_error=0.7 * error, **asked).facts
        trials = len(cache)
        assert 0 < len(found["auto"]["kept_fp32_blocks"]) < 10
        assert found["auto"]["relative_error"] < 0.7 * error
        assert found["auto"]["without"]["relative_error"] == pytest.approx(error)
        assert found["quantised_linear"] > 5
        run_pass(make, fused, max_relative_error=0.7 * error, **asked)
        assert len(cache) == trials
        with pytest.raises(VerificationError, match="further from torch than 1.0e-09 before (int8|fp8) already"):
            run_pass(make, fused, max_relative_error=1e-9, **asked)
    assert run_pass(make, fused, max_relative_error=2 * error, **asked).facts["auto"]["kept_fp32_blocks"] == []

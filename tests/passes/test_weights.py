"""The passes `weights8` and `weights4`: what they write, how near it is, and where they are refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from olivelike.engine.output.initializers import Initializers, QuantisedInitializers
from olivelike.engine.output.materialize import materialize
from olivelike.errors import PassError
from olivelike.graphs.inspect import inspect_model, left_to_cpu
from olivelike.graphs.inspect.quantised import quantised_precision
from olivelike.graphs.quantisation import BlockQuantisation
from olivelike.model import Graph
from olivelike.model.graph import PARAMETER_KEY
from olivelike.model.quantised_values import BlockFormat
from olivelike.model.targets import TARGETS
from olivelike.testing import LocalTensors, run_pass
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model

FUSE, FLOAT16, EIGHT, FOUR, VERIFY = (
    Registry.built_in().get(name).cls for name in ("fuse", "float16", "weights8", "weights4", "verify")
)


def operators(model):
    return Counter(node.op_type for node in model.graph.to_ir().graph)


@pytest.fixture(scope="module")
def fused(one_torch_thread):
    return run_pass(FUSE, little_model("attending", "unet"), target="cpu")


@pytest.fixture(scope="module")
def eighth(fused):
    """Return that UNet as `weights8` makes it by default."""
    return run_pass(EIGHT, fused, target="cpu")


@pytest.fixture(scope="module")
def text(tiny):
    """Return the fused text encoder."""
    return run_pass(FUSE, tiny("text_encoder"), target="cpu")


@pytest.mark.parametrize(
    ("make", "half"),
    [
        (EIGHT, False),
        (FOUR, True),
        pytest.param(EIGHT, True, marks=pytest.mark.slow),
        pytest.param(FOUR, False, marks=pytest.mark.slow),
    ],
)
def test_a_unet_is_as_near_to_torch_as_its_bits_allow(fused, make, half):
    result = run_pass(make, run_pass(FLOAT16, fused, target="cpu") if half else fused, target="cpu")
    assert result.weights is fused.weights
    found = run_pass(VERIFY, result, samples=1).facts["verification"]
    name, limit = ("w8", 5e-2) if make is EIGHT else ("w4", 6e-1)
    assert (found["precision"], found["limit"], found["passed"]) == (name, limit, True)
    assert found["relative_error"] > limit / 100
    assert {"MatMulNBits", "DequantizeLinear"} <= operators(result).keys()


@pytest.mark.parametrize("make", [EIGHT, FOUR])
def test_what_is_written_holds_integers_and_runs(text, make, tmp_path):
    model = text
    result = run_pass(make, model, target="cpu")
    written = materialize(result.graph, result.weights, result.tensors.files, tmp_path, lambda _, __: None)
    proto = onnx.load(tmp_path / "model.onnx")
    assert {entry.domain for entry in proto.opset_import} == {"", "com.microsoft"}
    held = Initializers(tmp_path / "model.onnx")
    for node in proto.graph.node:
        if node.op_type == "MatMulNBits":
            assert held.read(node.input[1]).dtype == np.uint8
    assert any(expression.get("op") == "QuantizeBlocks" for expression in written.derivations.values())
    kept = {one["form"]: one for one in result.facts["kept_weights"]}
    found = {one.form: one for one in inspect_model(tmp_path / "model.onnx", targets=()).kept_weights}
    assert {form: (one.blocks, one.layers, one.weights) for form, one in found.items()} == {
        form: (tuple(one["blocks"]), one["layers"], one["weights"]) for form, one in kept.items()
    }
    assert ("8 bits" if make is EIGHT else "4 bits") in kept
    assert {form: bool(one["names"]) for form, one in kept.items()} == {form: form == "float32" for form in kept}
    outputs, ids = [], {"input_ids": np.arange(154, dtype=np.int32).reshape(2, 77)}
    materialize(model.graph, model.weights, model.tensors.files, tmp_path, lambda _, __: None, model_file="float.onnx",
                data_file="float.pb")  # fmt: skip
    for name in ("model.onnx", "float.onnx"):
        session = onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        outputs.append(session.run(["last_hidden_state"], ids)[0])
    assert np.linalg.norm(outputs[0] - outputs[1]) < (2e-2 if make is EIGHT else 0.3) * np.linalg.norm(outputs[1])


def test_a_block_that_does_not_divide_a_row_ends_short_or_is_the_largest_that_does(fused):
    result = run_pass(EIGHT, fused, target="cpu", block_size=256, fine_blocks=())
    rows = {"MatMulNBits": set(), "DequantizeLinear": set()}
    for node in result.graph.to_ir().graph:
        if node.op_type in rows:
            weight = node.inputs[1 if node.op_type == "MatMulNBits" else 0]
            block = node.attributes["block_size"].as_int()
            axis = node.attributes["axis"].as_int() if node.op_type == "DequantizeLinear" else None
            rows[node.op_type].add((block, node.attributes["K"].as_int() if axis is None else weight.shape[axis]))
    assert all(depth % block == 0 for block, depth in rows["DequantizeLinear"])
    assert all(block >= 16 and block & (block - 1) == 0 for block, _ in rows["MatMulNBits"])
    assert any(depth % 256 for found in rows.values() for _, depth in found)
    assert run_pass(VERIFY, result, samples=1).facts["verification"]["passed"]


def test_targets_without_matmulnbits_widen_all():
    fused = run_pass(FUSE, little_model("attending", "unet"), target="openvino")
    model = run_pass(EIGHT, fused, target="openvino", fine_blocks=())
    assert "MatMulNBits" not in operators(model)
    assert operators(model)["DequantizeLinear"] == model.facts["weights_widened"]


def test_what_stays_in_float_is_an_option(fused, eighth):
    usual = eighth.facts
    less = run_pass(EIGHT, fused, target="cpu", convolutions=False, float_blocks=["down_blocks.*"]).facts
    assert less["weights_left"] < usual["weights_left"]
    assert less["weights_multiplied"] < usual["weights_multiplied"]


def test_it_is_known_where_blocks_run(eighth):
    graph = eighth.graph.to_ir()
    left = {name: {node.reason for node in left_to_cpu(graph, TARGETS[name])} for name in ("cpu", "webgpu", "openvino")}
    assert not left["cpu"]
    assert not left["webgpu"]
    assert "openvino has no kernel for it" in left["openvino"]


@pytest.mark.parametrize("size", [0, 48, 512])
def test_other_sizes_of_blocks_are_refused(size):
    with pytest.raises(ValueError, match="Input should be 16, 32, 64, 128 or 256"):
        EIGHT(block_size=size)


def test_quantised_twice_is_refused(eighth):
    with pytest.raises(PassError, match="the graph is quantised already; keep one of `weights8` and `weights4`"):
        run_pass(FOUR, eighth, target="cpu")


def test_few_sensitive_weights_have_more_bits(fused, eighth):
    coarse = run_pass(EIGHT, fused, target="cpu", fine_blocks=())
    errors = [run_pass(VERIFY, model, samples=1).facts["verification"]["relative_error"] for model in (coarse, eighth)]
    assert errors[1] < errors[0]
    fourth = run_pass(FOUR, fused, target="cpu", fine_blocks=("mid_block",))
    half = run_pass(EIGHT, run_pass(FLOAT16, fused, target="cpu"), target="cpu")
    widths = [
        {node.attributes["bits"].as_int() for node in model.graph.to_ir().graph if node.op_type == "QuantizeBlocks"}
        for model in (eighth, fourth, half)
    ]
    assert widths == [{8, 12}, {4, 8}, {8, 12}]


@pytest.mark.parametrize("half", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_session_widens_weights_of_12_bits_as_it_opens(fused, half, tmp_path, capfd):
    model = run_pass(EIGHT, run_pass(FLOAT16, fused, target="cpu") if half else fused, target="cpu")
    materialize(model.graph, model.weights, model.tensors.files, tmp_path, lambda _, __: None)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    kept, opened = (Counter(node.op_type for node in onnx.load(tmp_path / name).graph.node)
                    for name in ("model.onnx", "optimized.onnx"))  # fmt: skip
    assert kept["Floor"] == 2
    assert not opened["Floor"]
    assert kept["DequantizeLinear"] == opened["DequantizeLinear"] > 10
    assert capfd.readouterr() == ("", "")
    forms = {one.form: one.layers for one in inspect_model(tmp_path / "model.onnx", targets=()).kept_weights}
    assert forms["12 bits"] == kept["Floor"]


@pytest.mark.parametrize(
    ("make", "options", "name", "told"),
    [
        (EIGHT, {}, "tensorrt", "has no kernel that is known to run weights in blocks of 8 bits; use target `cpu`"),
        (EIGHT, {}, "windowsml", "use target `cpu`, `cuda`, `directml`, `openvino` or `webgpu`"),
        (FOUR, {}, "directml", "blocks of 4 bits; use target `cpu`, `cuda`, `openvino` or `webgpu`, or `weights8`"),
        (EIGHT, {"symmetric": True}, "directml", "needs zero points; set `symmetric: false`"),
    ],
)
def test_targets_that_are_not_known_to_run_blocks_are_refused(make, options, name, told):
    assert told in make(**options).unsupported_reason(TARGETS[name])


@pytest.mark.parametrize(
    ("make", "target", "widened"),
    [
        (FOUR, "cuda", {"UINT4"}),
        *(pytest.param(EIGHT, name, set(), marks=pytest.mark.slow) for name in ("cuda", "directml")),
    ],
)
def test_what_a_provider_does_not_widen_is_folded_as_a_session_opens(one_torch_thread, make, target, widened, tmp_path):
    fused = run_pass(FUSE, little_model("attending", "unet"), target=target)
    fine = () if make is EIGHT else ("down_blocks",)
    result = run_pass(make, fused, target=target, float_blocks=(), fine_blocks=fine)
    graph = result.graph.to_ir()
    assert not [node for node in left_to_cpu(graph, TARGETS[target]) if "Dequantize" in node.operator]
    read = {node.inputs[0].dtype.name for node in graph.graph if node.op_type == "DequantizeLinear"}
    assert read == widened
    products = [node for node in graph.graph if node.op_type == "MatMulNBits"]
    assert products
    assert all(len(node.inputs) == 4 for node in products)
    found = run_pass(VERIFY, result, samples=1).facts["verification"]
    assert found["passed"]
    assert found["relative_error"] > found["limit"] / 100
    folded = "12 bits" if make is EIGHT else "8 bits"
    materialize(result.graph, result.weights, result.tensors.files, tmp_path, lambda _, __: None)
    forms = {one.form: one.layers for one in inspect_model(tmp_path / "model.onnx", targets=()).kept_weights}
    assert forms[folded] > 0


def test_openvino_reads_blocks(tiny, tmp_path):
    openvino = pytest.importorskip("openvino")
    model = run_pass(FUSE, tiny("text_encoder"), target="openvino")
    outputs = []
    for name, one in (("float", model), ("w4", run_pass(FOUR, model, target="openvino"))):
        (tmp_path / name).mkdir()
        materialize(one.graph, one.weights, one.tensors.files, tmp_path / name, lambda _, __: None)
        network = openvino.Core().compile_model(str(tmp_path / name / "model.onnx"), "CPU")
        outputs.append(network({"input_ids": np.arange(154, dtype=np.int32).reshape(2, 77)})["last_hidden_state"])
    assert 1e-3 < np.linalg.norm(outputs[0] - outputs[1]) / np.linalg.norm(outputs[0]) < 0.3


@pytest.mark.parametrize("half", [False, True])
def test_paired_weights_are_products_and_rows_of_8_and_4_bits_on_the_cpu(text, half, tmp_path):
    model = text
    model = run_pass(FLOAT16, model, target="cpu") if half else model
    paired = ("*mlp", "*self_attn", "*token_embedding")
    result = run_pass(EIGHT, model, target="cpu", fine_blocks=(), paired_blocks=paired, int8_compute=True)
    kept = {one["form"]: one["layers"] for one in result.facts["kept_weights"]}
    levels = Counter(
        (node.attributes["bits"].as_int(), node.attributes["accuracy_level"].as_int())
        for node in result.graph.to_ir().graph if node.op_type == "MatMulNBits"
    )  # fmt: skip
    assert levels == {(bits, 0): kept["12 bits"] - 1 for bits in (8, 4)}
    assert quantised_precision(list(result.graph.to_ir().graph)) == "w8"
    other = run_pass(EIGHT, model, target="webgpu", fine_blocks=(), paired_blocks=paired)
    assert "12 bits" not in {one["form"] for one in other.facts["kept_weights"]}
    outputs, ids = [], {"input_ids": np.arange(154, dtype=np.int32).reshape(2, 77)}
    for number, one in enumerate((model, result)):
        name, data = f"{number}.onnx", f"{number}.pb"
        written = materialize(
            one.graph, one.weights, one.tensors.files, tmp_path, lambda _, __: None, model_file=name, data_file=data
        )
        session = onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        outputs.append(session.run(["last_hidden_state"], ids)[0].astype(np.float32))
    assert np.linalg.norm(outputs[1] - outputs[0]) < 2e-3 * np.linalg.norm(outputs[0])
    found = {one.form: one.weights for one in inspect_model(tmp_path / "1.onnx", targets=()).kept_weights}
    held = QuantisedInitializers(Initializers(tmp_path / "1.onnx"), written.derivations)
    name = next(name for name in held.derivations if name.endswith("fc1.weight"))
    merged = held.read(name) + 1
    parts = dict(held.parts(name, merged))
    assert [values.dtype for values in parts.values()] == [held.file.dtype(part) for part in parts]
    form = BlockFormat.of(written.derivations[name]["attributes"])
    assert np.abs(form.dequantise(list(parts.values()), merged.shape) - merged).max() < 1e-3
    assert found["12 bits"] == next(one["weights"] for one in result.facts["kept_weights"] if one["form"] == "12 bits")


def test_products_by_rows_are_of_whole_numbers_on_the_cpu(text, tmp_path):
    model = text
    chosen = {"fine_blocks": (), "paired_blocks": (), "int8_compute": True, "int8_rows": True}
    rounded, exact = (run_pass(EIGHT, model, target="cpu", **chosen, exact_blocks=one) for one in ((), ("*",)))
    for times, result in enumerate((rounded, exact), start=1):
        graph = result.graph.to_ir()
        products = [node for node in graph.graph if node.op_type == "MatMulIntegerToFloat"]
        kept = {one["form"]: one["layers"] for one in result.facts["kept_weights"]}
        assert "MatMulNBits" not in operators(result)
        assert len(products) == kept["int8"] * times
        assert quantised_precision(list(graph.graph)) == "w8"
        assert not left_to_cpu(graph, TARGETS["cpu"])
    outputs, ids = [], {"input_ids": np.arange(154, dtype=np.int32).reshape(2, 77)}
    for number, one in enumerate((model, rounded, exact)):
        names = {"model_file": f"{number}.onnx", "data_file": f"{number}.pb"}
        written = materialize(one.graph, one.weights, one.tensors.files, tmp_path, lambda _, __: None, **names)
        session = onnxruntime.InferenceSession(tmp_path / f"{number}.onnx", providers=["CPUExecutionProvider"])
        outputs.append(session.run(["last_hidden_state"], ids)[0])
    off = [np.linalg.norm(one - outputs[0]) / np.linalg.norm(outputs[0]) for one in outputs[1:]]
    assert 1e-4 < off[1] < off[0] < 2e-2
    held = QuantisedInitializers(Initializers(tmp_path / "2.onnx"), written.derivations)
    name = next(name for name in held.derivations if name.endswith("fc1.weight"))
    parts = dict(held.parts(name, held.read(name) + 1))
    assert sorted(array.dtype.name for array in parts.values()) == ["float32", "int8"]


GATED = """
<ir_version: 11, opset_import: ["": 23]>
block (float[1,rows,32] x, float[32,160] packed, float[96,64] out) => (float[1,rows,64] y)
<int64[2] sizes = {32, 128}, int64[1] first = {0}, int64[1] half = {64}, int64[1] end = {128}, int64[1] axis = {2},
 int64[1] step = {1}> {
    all = MatMul(x, packed)
    values, both = Split<axis = 2>(all, sizes)
    gate = Slice(both, first, half, axis, step)
    up = Slice(both, half, end, axis, step)
    open = Sigmoid(gate)
    opened = Mul(gate, open)
    inner = Mul(opened, up)
    joined = Concat<axis = -1>(values, inner)
    y = MatMul(joined, out)
}
"""


@pytest.mark.parametrize("exact", [(), ("*",)])
def test_columns_that_are_read_apart_are_multiplied_apart_and_rounded_before_they_are_joined(exact, tmp_path):
    random = np.random.default_rng(0)
    values = {"packed": random.standard_normal((32, 160)), "out": random.standard_normal((96, 64))}
    weights = {name: array.astype(np.float32) for name, array in values.items()}
    x = random.standard_normal((1, 7, 32)).astype(np.float32) * np.logspace(-6, 6, 7, dtype=np.float32)[:, None]
    x[0, 3] = 0
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(GATED)))
    for value in model.graph.inputs[1:]:
        value.metadata_props[PARAMETER_KEY] = value.name
    tensors, found = LocalTensors(), []
    table = tensors.table(weights)
    for number in range(2):
        if number:
            form = BlockFormat(8, 256, 0, symmetric=False, packed=False)
            rows = {"accuracy_level": 4, "rows": True, "exact_blocks": exact}
            quantised = BlockQuantisation(model, form, TARGETS["cpu"], **rows)
            assert quantised.quantise() == {"weights_multiplied": 2}
            assert quantised_precision(list(model.graph)) == "w8"
        path = tmp_path / f"{number}.onnx"
        names = {"model_file": path.name, "data_file": f"{number}.pb"}
        written = materialize(Graph.from_ir(model), table, tensors.files, tmp_path, lambda _, __: None, **names)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found.append(session.run(None, {"x": x})[0])
    ran = Counter(node.op_type for node in model.graph)
    assert ran["MatMulIntegerToFloat"] == 4 * (2 if exact else 1)
    assert {"Split", "Slice", "Abs"}.isdisjoint(ran)
    assert next(node for node in model.graph if node.op_type == "Concat").outputs[0].dtype == ir.DataType.UINT8
    off = np.linalg.norm(found[1] - found[0], axis=-1) / np.maximum(np.linalg.norm(found[0], axis=-1), 1e-30)
    assert off.max() < 2e-2
    assert off[0, 3] == 0
    held = QuantisedInitializers(Initializers(path), written.derivations)
    assert np.abs(held.read("packed") - weights["packed"]).max() < 2e-2
    parts = dict(held.parts("packed", weights["packed"]))
    assert [array.shape for array in parts.values()] == [(32, 32), (1, 32), (32, 64), (1, 64), (32, 64), (1, 64)]
    assert all(np.array_equal(array, held.file.read(name)) for name, array in parts.items())


def test_paired_weights_beside_products_by_rows_multiply_both_halves_of_sixteen_bits(text, tmp_path):
    model = text
    chosen = {"fine_blocks": (), "int8_compute": True, "paired_blocks": ("*mlp", "*self_attn")}
    outputs, ids = [], {"input_ids": np.arange(154, dtype=np.int32).reshape(2, 77)}
    for rows in (False, True):
        one = run_pass(EIGHT, model, target="cpu", **chosen, int8_rows=rows)
        kept = {found["form"]: found["layers"] for found in one.facts["kept_weights"]}
        levels = Counter(
            (node.attributes["bits"].as_int(), node.attributes["accuracy_level"].as_int())
            for node in one.graph.to_ir().graph if node.op_type == "MatMulNBits"
        )  # fmt: skip
        assert levels == {(bits, 4 if rows else 0): kept["12 bits"] for bits in (8, 4)}
        names = {"model_file": f"{rows}.onnx", "data_file": f"{rows}.pb"}
        materialize(one.graph, one.weights, one.tensors.files, tmp_path, lambda _, __: None, **names)
        session = onnxruntime.InferenceSession(tmp_path / f"{rows}.onnx", providers=["CPUExecutionProvider"])
        outputs.append(session.run(["last_hidden_state"], ids)[0])
    assert 0 < np.linalg.norm(outputs[1] - outputs[0]) < 5e-4 * np.linalg.norm(outputs[0])

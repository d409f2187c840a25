"""Weights that stay integers: a graph whose `DequantizeLinear` belongs to what runs."""

from __future__ import annotations

from typing import ClassVar

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from olivelike.engine.output.expressions import Evaluator
from olivelike.engine.output.initializers import Initializers
from olivelike.engine.output.materialize import materialize
from olivelike.engine.output.pipeline_files import component_config
from olivelike.engine.output.swap import swap_loras
from olivelike.errors import PassError, SourceError
from olivelike.measure.verify.original import relative_error
from olivelike.model import Graph
from olivelike.model.graph import PARAMETER_KEY, QUANTISE_DOMAIN, weight_values
from olivelike.model.quantised_values import QUANTISE, QUANTISE_CHANNELS, BlockFormat, ChannelFormat
from olivelike.model.records.output import ComponentRecord, OutputFile
from olivelike.pass_api import LoraInput, Pass
from olivelike.sources.adapters.lora_file import WeightedLora
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing import LocalTensors, run_pass
from olivelike.testing.lora_files import make_lora
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model
from tests.fixtures.sample_records import write_output_record

FLOAT16, MERGE = (Registry.built_in().get(name).cls for name in ("float16", "merge_lora"))


class Int8Weights(Pass):
    """Quantise the matrices of a graph to int8, per column: what decides the values is left in the graph."""

    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)

    def run(self, model, context):
        graph = model.graph.to_ir()
        weights = weight_values(graph.graph)
        largest = ir.tensor(np.float32(127), name="largest")
        axes = ir.tensor(np.array([0], np.int64), name="axes")
        constants = [ir.Value(name=t.name, const_value=t, type=ir.TensorType(t.dtype), shape=t.shape)
                     for t in (largest, axes)]  # fmt: skip
        for constant in constants:
            graph.graph.register_initializer(constant)
        for node in [node for node in graph.graph if node.op_type == "MatMul" and node.inputs[1] in weights]:
            matrix = node.inputs[1]
            size = self.add(node, "Abs", [matrix], matrix)
            reach = self.add(node, "ReduceMax", [size, constants[1]], matrix, keepdims=0)
            scale = self.add(node, "Div", [reach, constants[0]], matrix)
            int8 = {"axis": 1, "output_dtype": int(ir.DataType.INT8)}
            whole = self.add(node, "QuantizeLinear", [matrix, scale], matrix, ir.DataType.INT8, **int8)
            wide = self.add(node, "DequantizeLinear", [whole, scale], matrix, axis=1)
            node.replace_input_with(1, wide)
        return model.replace(graph=Graph.from_ir(graph))

    @staticmethod
    def add(node, operator, inputs, like, dtype=None, **attributes):
        made = ir.node(operator, inputs, attributes, name=f"{like.name}.{operator}")
        node.graph.insert_before(node, made)
        (value,) = made.outputs
        value.name, value.dtype = f"{like.name}.{operator}", dtype or like.dtype
        value.shape = ir.Shape(like.shape[1:] if operator in ("ReduceMax", "Div") else like.shape)
        return value


class StoredInt8(Pass):
    """Quantise the same matrices, and keep the integers as weights, under names of their own."""

    reads: ClassVar = ("graph", "weights")
    writes: ClassVar = ("graph", "weights")
    rename: bool = True

    def run(self, model, context):
        graph, table = model.graph.to_ir(), {}
        weights = weight_values(graph.graph)
        for node in [node for node in graph.graph if node.op_type == "MatMul" and node.inputs[1] in weights]:
            matrix = context.tensors.evaluate(node.inputs[1], model.weights)
            parameter = next(value for value in ancestors(node.inputs[1]) if PARAMETER_KEY in value.metadata_props)
            name = parameter.metadata_props[PARAMETER_KEY] + (".int8" if self.rename else "")
            scale = np.abs(matrix).max(0) / np.float32(127)
            table[name] = context.tensors.write(np.rint(matrix / scale).astype(np.int8))
            table[f"{name}.scale"] = context.tensors.write(scale)
            inputs = [stand_in(graph, name, ir.DataType.INT8, matrix.shape),
                      stand_in(graph, f"{name}.scale", ir.DataType.FLOAT, scale.shape)]  # fmt: skip
            node.replace_input_with(1, Int8Weights.add(node, "DequantizeLinear", inputs, node.inputs[1], axis=1))
            if not self.rename:
                parameter.metadata_props[PARAMETER_KEY] = f"{name}.unused"
                table[f"{name}.unused"] = model.weights[name]
        return model.replace(graph=Graph.from_ir(graph), weights=model.weights.replace(table))


def ancestors(value):
    yield value
    if value.producer() is not None:
        for operand in value.producer().inputs:
            yield from ancestors(operand)


def stand_in(graph, name, dtype, shape):
    value = ir.Value(name=f"{name}.stored", type=ir.TensorType(dtype), shape=ir.Shape(shape))
    value.metadata_props[PARAMETER_KEY] = name
    graph.graph.inputs.append(value)
    return value


@pytest.fixture(scope="module")
def encoder(one_torch_thread):
    return little_model("sd", "text_encoder")


@pytest.fixture(scope="module")
def quantised(encoder):
    return run_pass(Int8Weights, encoder)


def write(model, folder):
    """Write a model as a run does: its component's folder, its config and a record; return the initializers."""
    place = folder / model.component
    place.mkdir(parents=True)
    written = materialize(model.graph, model.weights, model.tensors.files, place, lambda done, total: None)
    (place / "config.json").write_bytes(component_config(model.architecture))
    files = {f"{model.component}/{name}": OutputFile(**facts) for name, facts in written.files.items()}
    made = {model.component: ComponentRecord("", derivations=written.derivations)}
    write_output_record(folder, components=made, files=files)
    proto = onnx.load(place / "model.onnx")
    return proto, {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def hidden_state(folder):
    session = onnxruntime.InferenceSession(folder / "text_encoder" / "model.onnx", providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(0, 900, (2, 77), dtype=np.int32)
    return session.run(["last_hidden_state"], {"input_ids": ids})[0]


@pytest.mark.parametrize("make", [Int8Weights(), StoredInt8()], ids=["derived", "stored"])
def test_quantised_weights_are_written_as_integers_and_widened_when_the_graph_runs(encoder, make, tmp_path):
    write(encoder, tmp_path / "float")
    proto, initializers = write(run_pass(make, encoder), tmp_path / "int8")
    widened = [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    assert len(widened) == sum(node.op_type == "MatMul" for node in proto.graph.node) > 6
    assert not {"QuantizeLinear", "Abs", "ReduceMax", "Div"} & {node.op_type for node in proto.graph.node}
    for node in widened:
        whole, scale = (initializers[name] for name in node.input)
        assert (whole.dtype, scale.dtype) == (np.int8, np.float32)
        assert np.abs(whole.astype(int)).max() == 127
        assert scale.shape == whole.shape[1:]
    sizes = [(tmp_path / kind / "text_encoder" / "weights.pb").stat().st_size for kind in ("int8", "float")]
    assert sizes[0] < sizes[1]
    error = relative_error(hidden_state(tmp_path / "int8"), hidden_state(tmp_path / "float"))
    assert 1e-4 < error < 2e-2


def test_integers_are_those_of_the_float_weights_rounded(encoder, quantised, tmp_path):
    proto, initializers = write(quantised, tmp_path)
    node = next(node for node in proto.graph.node if node.op_type == "DequantizeLinear")
    whole, scale = (initializers[name] for name in node.input)
    name = "encoder.layers.0.self_attn.q_proj.weight"
    (wanted,) = [encoder.parameter(each).T for each in encoder.weights if each.endswith(name)]
    np.testing.assert_allclose(whole * scale, wanted, atol=scale.max() / 2 + 1e-7)


def test_half_precision_widens_to_half_and_rounds_the_integers_no_other_way(quantised, tmp_path):
    half = run_pass(FLOAT16, quantised, target="cuda")
    _, whole = write(quantised, tmp_path / "float")
    proto, initializers = write(half, tmp_path / "half")
    for node in proto.graph.node:
        if node.op_type == "DequantizeLinear":
            assert initializers[node.input[0]].dtype == np.int8
            assert initializers[node.input[1]].dtype == np.float16
            difference = whole[node.input[0]].astype(int) - initializers[node.input[0]]
            assert np.abs(difference).max() <= 1
    write(run_pass(FLOAT16, little_model("sd", "text_encoder"), target="cuda"), tmp_path / "float16")
    assert relative_error(hidden_state(tmp_path / "half"), hidden_state(tmp_path / "float16")) < 2e-2


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Int8Weights(), "was derived by QuantizeLinear, which can't be undone; merge the LoRA in a run"),
        (StoredInt8(), "or a pass has quantised these layers, for text_encoder has parameters of whole numbers"),
        (StoredInt8(rename=False), "is quantised, to int8, so a LoRA can't be merged into it"),
    ],
    ids=["derived", "stored", "stored under the old name"],
)
def test_a_lora_is_not_swapped_into_integers(encoder, make, told, tmp_path):
    model = run_pass(make, encoder)
    write(model, tmp_path / "out")
    shapes = {"text_encoder": {name: tensor.shape for name, tensor in encoder.weights.items()}}
    path = make_lora(tmp_path / "style.safetensors", "kohya", base=shapes, components=("text_encoder",))
    lora = open_lora(path)
    with pytest.raises(SourceError, match=told):
        swap_loras(tmp_path / "out", [WeightedLora(lora, 1.0)])


def test_a_weight_can_be_had_one_tensor_at_a_time(encoder, quantised):
    graph = quantised.graph.to_ir()
    node = next(node for node in graph.graph if node.op_type == "DequantizeLinear")
    whole, scale = (quantised.tensors.evaluate(value, quantised.weights) for value in node.inputs)
    assert (whole.dtype, whole.ndim, scale.shape) == (np.int8, 2, whole.shape[1:])


@pytest.mark.parametrize(
    ("operator", "position", "told"),
    [
        ("MatMul", 1, "is no weight: DequantizeLinear makes it when the graph runs; take the inputs of that node"),
        ("Cast", 0, "'input_ids' is no weight, but an input of the graph"),
    ],
)
def test_what_is_no_weight_is_not_evaluated(quantised, operator, position, told):
    graph = quantised.graph.to_ir()
    nodes = [node for node in graph.graph if node.op_type == operator]
    value = nodes[0].inputs[position] if operator == "MatMul" else graph.graph.inputs[0]
    with pytest.raises(PassError, match=told):
        quantised.tensors.evaluate(value, quantised.weights)


def test_a_value_of_a_node_that_is_gone_is_refused(encoder):
    graph = encoder.graph.to_ir()
    node = next(node for node in graph.graph if node.op_type == "Transpose")
    graph.graph.remove(node)
    with pytest.raises(PassError, match="belongs to no graph any more; evaluate it before its node is removed"):
        encoder.tensors.evaluate(node.outputs[0], encoder.weights)


@pytest.mark.parametrize(
    ("taken", "held", "told"),
    [("int8", np.float32, "is float in the weights and int8 in the graph"),
     ("float", np.int8, "is int8 in the weights and float in the graph")],
)  # fmt: skip
def test_integers_never_become_floats_nor_floats_integers_by_reading_them(taken, held, told, tmp_path):
    text = f"""<ir_version: 11, opset_import: ["": 23]>
    unet (float[4] x, {taken}[4] w) => (float[4] y) {{ z = CastLike(w, x) v = Identity(w) u = CastLike(v, x)
    y = Add(u, x) }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.inputs[1].metadata_props[PARAMETER_KEY] = "w"
    tensors = LocalTensors()
    table = tensors.table({"w": np.arange(4).astype(held)})
    with pytest.raises(PassError, match=told):
        materialize(Graph.from_ir(model), table, tensors.files, tmp_path, lambda done, total: None)


def test_four_bit_integers_take_half_a_byte_each(tmp_path):
    values = np.arange(-8, 8, dtype=np.int8).repeat(256).reshape(64, 64)
    text = """<ir_version: 11, opset_import: ["": 23]>
    unet (float[64] x, int8[64,64] w, float[64] s) => (float[64] y) {
    four = Cast<to = 22>(w) wide = DequantizeLinear<axis = 1>(four, s) y = MatMul(x, wide) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for value in model.graph.inputs[1:]:
        value.metadata_props[PARAMETER_KEY] = value.name
    tensors = LocalTensors()
    table = tensors.table({"w": values, "s": np.full(64, 0.5, np.float32)})
    materialize(Graph.from_ir(model), table, tensors.files, tmp_path, lambda done, total: None)
    assert (tmp_path / "weights.pb").stat().st_size == values.size // 2
    x = np.random.default_rng(0).standard_normal(64, dtype=np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ (values * np.float32(0.5)), rtol=1e-4, atol=1e-4)
    assert (Initializers(tmp_path / "model.onnx").read("w") == values).all()


def test_no_lora_is_merged_into_stored_integers(encoder, tmp_path):
    shapes = {"text_encoder": {name: tensor.shape for name, tensor in encoder.weights.items()}}
    path = make_lora(tmp_path / "style.safetensors", "kohya", base=shapes, components=("text_encoder",))
    with pytest.raises(SourceError, match="is quantised, to int8, so no LoRA can be merged .* put `merge_lora` before"):
        run_pass(MERGE, run_pass(StoredInt8(rename=False), encoder), loras=[LoraInput(path, 1.0)])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "form",
    [
        BlockFormat(8, 32, 0, symmetric=True, packed=True),
        BlockFormat(4, 32, 0, symmetric=False, packed=False),
        ChannelFormat("int8", 0),
    ],
)
def test_a_weight_that_is_not_finite_is_refused_by_name(form, value):
    weight = np.ones((64, 32), np.float32)
    weight[3, 4] = value
    expression = {
        "op": QUANTISE if isinstance(form, BlockFormat) else QUANTISE_CHANNELS, "domain": QUANTISE_DOMAIN,
        "attributes": form.attributes(), "inputs": [{"parameter": "conv_in.weight", "shape": [64, 32]}],
    }  # fmt: skip
    with pytest.raises(
        PassError,
        match=r"'conv_in.weight' \(from a.gguf\) can't be quantised: it has values that are infinite or NaN .1 of",
    ):
        Evaluator(lambda _: weight, {"": 21}, 10, place=lambda _: "a.gguf").evaluate(expression)


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16])
def test_half_floats_that_an_output_has_as_stored_are_not_widened(stored):
    weight = np.array([[1, 1e-7, 2], [np.inf, -0.0, 3]], np.float32).astype(stored)
    parameter = {"parameter": "weight", "shape": [2, 3]}  # float32 in the graph
    moved = {"op": "Transpose", "attributes": {"perm": [1, 0]}, "inputs": [parameter]}
    cast = {"op": "Cast", "attributes": {"to": ir.DataType.FLOAT16.value}, "inputs": [moved]}
    evaluator = Evaluator(lambda _: weight, {"": 21}, 10)
    found = evaluator.evaluate(cast)
    assert np.shares_memory(found, weight) == (stored == np.float16)
    assert np.array_equal(found, weight.T.astype(np.float32).astype(np.float16))
    assert found.dtype == np.float16


@pytest.mark.parametrize(
    ("derived", "form"),
    [
        ("moved = Transpose<perm = [1, 0]>(weight)", BlockFormat(8, 32, 0, symmetric=False, packed=True)),
        ("moved = Transpose<perm = [1, 0]>(weight)", BlockFormat(4, 16, 0, symmetric=False, packed=True)),
        ("", BlockFormat(8, 32, 1, symmetric=True, packed=False)),
        ("", BlockFormat(4, 19, 1, symmetric=False, packed=False)),
        ("", BlockFormat(12, 57, 1, symmetric=True, packed=False)),
        ("moved = Transpose<perm = [1, 0]>(weight)", BlockFormat(12, 32, 0, symmetric=False, packed=True)),
        ("", BlockFormat(12, 16, 1, symmetric=True, packed=True)),
    ],
)
def test_blocks_of_a_large_weight_in_pieces_are_the_same_bytes(derived, form, tmp_path, monkeypatch):
    weight = np.random.default_rng(0).standard_normal((34, 57)).astype(ml_dtypes.bfloat16)
    attributes = ", ".join(
        f"{key} = {value if isinstance(value, int) else chr(34) + value + chr(34)}"
        for key, value in form.attributes().items()
    )
    others = [f"part{number}" for number in range(len(form.quantise(np.ones((34, 57) if form.axis else (57, 34)))) - 2)]
    made = ", ".join(["numbers", "scales", *others])
    text = f"""
<ir_version: 11, opset_import: ["": 21, "olivelike": 1]>
net (float[34,57] weight) => (int64[N] a, int64[M] b{"".join(f", int64[K{one}] shape_{one}" for one in others)}) {{
    {derived}
    {made} = olivelike.QuantizeBlocks<{attributes}>({"moved" if derived else "weight"})
    a = Shape(numbers)
    b = Shape(scales)
    {" ".join(f"shape_{one} = Shape({one})" for one in others)}
}}
"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.inputs[0].metadata_props[PARAMETER_KEY] = "weight"
    written = []
    for most in (1 << 20, 500):
        monkeypatch.setattr("olivelike.engine.output.materialize._PIECE_BYTES", most)
        folder = tmp_path / str(most)
        folder.mkdir()
        tensors = LocalTensors()
        seen = []
        table = tensors.table({"weight": weight})
        materialize(
            Graph.from_ir(model),
            table,
            tensors.files,
            folder,
            lambda done, total, seen=seen: seen.append((done, total)),
        )
        assert seen[-1] == (weight.nbytes, weight.nbytes)
        assert all(seen[i][0] < weight.nbytes for i in range(len(seen) - 1))
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1]
    whole = form.bits != 8 and not form.packed
    assert (len(seen) == 1) is whole

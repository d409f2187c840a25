from __future__ import annotations

import json
import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from olivelike.errors import SourceError
from olivelike.graphs.functions import with_functions
from olivelike.graphs.inspect import inspect_model
from olivelike.model.graph import PARAMETER_KEY
from olivelike.model.targets import TARGETS


def value(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def small_model(opset=23, half=False):
    """(batch, 4) · (4, 3) + (3): two named inputs, two parameters, one subgraph."""
    dtype = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    array = np.float16 if half else np.float32
    weight = numpy_helper.from_array(np.ones((4, 300), array), "weight")
    shift = numpy_helper.from_array(np.ones(300, array), "shift")
    then = helper.make_graph([helper.make_node("Neg", ["h"], ["t"], name="negate")], "t", [], [value("t", dtype, None)])
    other = helper.make_graph([helper.make_node("Identity", ["h"], ["e"])], "e", [], [value("e", dtype, None)])
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["m"], name="project"),
        helper.make_node("Add", ["m", "shift"], ["h"], name="shift_it"),
        helper.make_node("If", ["flag"], ["y"], name="branch", then_branch=then, else_branch=other),
    ]
    inputs = [value("x", dtype, ["batch", 4]), value("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", dtype, ["batch", 300])], [weight, shift])
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, producer_name="maker", producer_version="7")


def fused_node(op_type, *inputs, dtype=TensorProto.FLOAT16, opset=20, domain="com.microsoft", **attributes):
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], name="the_node", domain=domain, **attributes)
    values = [value(name, dtype, shape) for name, shape in zip(names, inputs, strict=True)]
    graph = helper.make_graph([node], "g", values, [value("y", dtype, None)])
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def inspect(model, folder, **kwargs):
    path = folder / "model.onnx"
    onnx.save(model, path)
    return inspect_model(path, **kwargs)


def reasons(model, folder, target):
    left = inspect(model, folder, targets=[TARGETS[target]]).left_to_cpu[target]
    return [(node.name, node.operator, node.reason) for node in left]


def test_inputs_and_outputs_come_with_names_dtypes_and_shapes(tmp_path):
    report = inspect(small_model(), tmp_path)
    assert [str(entry) for entry in report.inputs] == ["x: float32 [batch, 4]", "flag: bool []"]
    assert [str(entry) for entry in report.outputs] == ["y: float32 [batch, 300]"]


def test_versions_and_producer_are_reported(tmp_path):
    report = inspect(small_model(), tmp_path)
    assert (report.ir_version, dict(report.opsets), report.producer) == (10, {"ai.onnx": 23}, "maker 7")


def test_nodes_of_subgraphs_are_counted(tmp_path):
    report = inspect(small_model(), tmp_path)
    assert report.nodes == 5
    assert report.operators["ai.onnx"] == {"MatMul": 1, "Add": 1, "If": 1, "Neg": 1, "Identity": 1}


@pytest.mark.parametrize(("half", "name", "width"), [(False, "float32", 4), (True, "float16", 2)])
def test_parameters_are_counted_by_dtype(tmp_path, half, name, width):
    found = inspect(small_model(half=half), tmp_path).parameters[name]
    assert (found.tensors, found.elements, found.bytes) == (2, 1500, 1500 * width)


def test_weights_inside_the_file_are_not_read_into_memory(tmp_path):
    path = tmp_path / "model.onnx"
    model = small_model()
    model.graph.initializer[0].dims[:] = [16_000_000, 1]
    model.graph.initializer[0].raw_data = bytes(64_000_000)
    path.write_bytes(model.SerializeToString())
    del model
    tracemalloc.start()
    report = inspect_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.parameters["float32"].bytes == 64_000_000 + 1200
    assert peak < 10_000_000


def external(folder):
    path = folder / "model.onnx"
    onnx.save(small_model(), path, save_as_external_data=True, location="weights.pb", size_threshold=0)
    return path


def test_a_complete_data_file_is_reported_with_its_size(tmp_path):
    (file,) = inspect_model(external(tmp_path)).data_files
    assert (file.location, file.tensors, file.complete) == ("weights.pb", 2, True)
    assert file.expected_bytes <= (file.actual_bytes or 0)


def test_a_missing_data_file_is_reported_and_the_rest_as_well(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.pb").unlink()
    report = inspect_model(path)
    assert (report.data_files[0].actual_bytes, report.data_files[0].complete) == (None, False)
    assert report.parameters["float32"].elements == 1500
    assert any("missing" in line for line in report.summary_lines())


def test_a_short_data_file_is_reported(tmp_path):
    path = external(tmp_path)
    data = (tmp_path / "weights.pb").read_bytes()
    (tmp_path / "weights.pb").write_bytes(data[:-1])
    report = inspect_model(path)
    assert not report.data_files[0].complete
    assert any("but the file has only" in line for line in report.summary_lines())


def test_parameters_of_a_weightless_graph_are_no_inputs(tmp_path):
    model = small_model()
    for tensor in model.graph.initializer:
        entry = value(tensor.name, tensor.data_type, list(tensor.dims))
        entry.metadata_props.add(key=PARAMETER_KEY, value=f"layer.{tensor.name}")
        model.graph.input.append(entry)
    del model.graph.initializer[:]
    model.graph.node.insert(0, helper.make_node("Neg", ["weight"], ["negated"], name="derived"))
    model.graph.node[1].input[1] = "negated"
    report = inspect(model, tmp_path)
    assert report.weightless
    assert [entry.name for entry in report.inputs] == ["x", "flag"]
    assert report.parameters["float32"].elements == 1500
    assert report.weight_nodes == 1


def test_initializers_that_are_listed_as_inputs_are_not_fed(tmp_path):
    model = small_model()
    model.graph.input.append(value("weight", TensorProto.FLOAT, [4, 300]))
    assert [entry.name for entry in inspect(model, tmp_path).inputs] == ["x", "flag"]


def test_the_report_is_json(tmp_path):
    report = json.loads(json.dumps(inspect_model(external(tmp_path)).to_json()))
    assert report["inputs"][0] == {"name": "x", "dtype": "float32", "shape": ["batch", 4]}
    assert report["data_files"][0]["complete"] is True
    assert set(report["left_to_cpu"]) == set(TARGETS)


def test_the_summary_names_what_the_report_holds(tmp_path):
    lines = list(inspect(small_model(), tmp_path, targets=[TARGETS["cuda"]]).summary_lines())
    assert lines[1:] == [
        "IR version 10, opset ai.onnx 23; by maker 7",
        "inputs",
        "  x: float32 [batch, 4]",
        "  flag: bool []",
        "outputs",
        "  y: float32 [batch, 300]",
        "parameters",
        "  float32: 1,500 in 2 tensors, 6.0 kB",
        "5 nodes",
        "  ai.onnx: Add 1, Identity 1, If 1, MatMul 1, Neg 1",
        "cuda: a kernel for every node",
    ]


def test_a_standard_operator_that_is_too_new_for_directml_is_left(tmp_path):
    model = fused_node("Conv", (1, 4, 8, 8), (4, 4, 3, 3), opset=23, domain="")
    reason = "its form dates from opset 22, and directml knows it up to 11"
    assert reasons(model, tmp_path, "directml") == [("the_node", "Conv", reason)]
    assert reasons(fused_node("Conv", (1, 4, 8, 8), (4, 4, 3, 3), opset=21, domain=""), tmp_path, "directml") == []


def test_a_standard_operator_without_kernel_is_left(tmp_path):
    model = fused_node("Asin", (1, 4), domain="", dtype=TensorProto.FLOAT)
    assert reasons(model, tmp_path, "cuda") == [("the_node", "Asin", "cuda has no kernel for it")]
    assert reasons(model, tmp_path, "directml") == []


def test_an_operator_with_a_function_body_is_not_left(tmp_path):
    assert reasons(fused_node("Gelu", (1, 4), domain=""), tmp_path, "directml") == []


def test_a_fused_operator_that_the_target_lacks_is_left(tmp_path):
    model = fused_node("BiasAdd", (1, 2, 320), (320,), (1, 2, 320))
    reason = "cpu has no kernel for it"
    assert reasons(model, tmp_path, "cpu") == [("the_node", "com.microsoft::BiasAdd", reason)]
    assert reasons(model, tmp_path, "cuda") == []


def test_other_operators_of_the_runtime_are_looked_up_in_its_registry(tmp_path):
    model = fused_node("FusedMatMul", (2, 2), (2, 2))
    assert reasons(model, tmp_path, "cuda") == []
    assert len(reasons(model, tmp_path, "tensorrt")) == 1


@pytest.mark.parametrize(
    ("target", "model", "reason"),
    [
        ("cuda", fused_node("BiasSplitGelu", (1, 2, 512), (512,)), "5120, 6144, 10240, 12288, not 512"),
        ("cuda", fused_node("GroupNorm", (1, 4, 2, 2), (4,), (4,), channels_last=0, activation=0, groups=2), "layout"),
        ("cpu", fused_node("MultiHeadAttention", (1, 2, 2, 3, 4), num_heads=2), "packed"),
        ("directml", fused_node("BiasGelu", (1, 4), (4,), dtype=TensorProto.BFLOAT16), "bfloat16"),
        (
            "cpu",
            fused_node("Mul", (1, 4), (4,), domain="", opset=21, dtype=TensorProto.BFLOAT16),
            "not known to have it in bfloat16",
        ),
        ("cuda", fused_node("Anything", (1, 4), domain="my.domain"), "knows no domain 'my.domain'"),
        ("cuda", fused_node("Attention", *[(1, 2, 4)] * 3, domain="", opset=20), "no such operator at opset 20"),
    ],
)
def test_a_form_without_a_kernel_is_left_with_its_reason(tmp_path, target, model, reason):
    ((_, _, found),) = reasons(model, tmp_path, target)
    assert reason in found


def test_half_precision_of_a_fused_operator_runs_on_the_cpu_between_casts(tmp_path):
    assert reasons(fused_node("QuickGelu", (1, 4)), tmp_path, "cpu") == []


def test_openvino_runs_bfloat16_and_others_move_it(tmp_path):
    product = fused_node("Mul", (1, 4), (4,), domain="", opset=21, dtype=TensorProto.BFLOAT16)
    assert reasons(product, tmp_path, "openvino") == []
    turned = fused_node("Transpose", (1, 4), domain="", opset=21, dtype=TensorProto.BFLOAT16)
    assert reasons(turned, tmp_path, "cpu") == []


def test_calls_of_local_functions_are_not_left(tmp_path):
    model = fused_node("BiasAdd", (1, 2, 320), (320,), (1, 2, 320))
    stated = ir.to_proto(with_functions(ir.from_proto(model)))
    report = inspect(stated, tmp_path)
    assert report.functions == ("olivelike.graphs.functions::BiasAdd_1",)
    assert report.left_to_cpu["cpu"] == ()


def test_the_summary_groups_nodes_by_reason(tmp_path):
    lines = list(inspect(fused_node("BiasAdd", (1, 2, 4), (4,), (1, 2, 4)), tmp_path).summary_lines())
    assert "cpu has no kernel for 1 of the nodes" in lines
    assert "tensorrt has no kernel for 1 of the nodes, and neither has the CPU: no session opens" in lines
    (windows,) = (line for line in lines if line.startswith("windowsml"))
    assert windows.endswith("no session opens, unless Windows ML takes its DirectML, as it does for target directml")
    assert "  1 com.microsoft::BiasAdd: cpu has no kernel for it (the_node)" in lines


def test_what_the_cpu_has_a_kernel_for_is_left_to_it(tmp_path):
    report = inspect(fused_node("QuickGelu", (1, 4)), tmp_path)
    lines = list(report.summary_lines())
    left = [name for name, nodes in report.left_to_cpu.items() if nodes]
    assert left
    assert {f"{name} would leave to the CPU 1 of the nodes" for name in left} <= set(lines)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a model", b"\x0a\xff\xff", b"\x08\x0a", b"\xff" * 40])
def test_a_file_that_is_no_onnx_model_is_refused(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="is not an ONNX model"):
        inspect_model(path)


def test_a_truncated_model_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    data = small_model().SerializeToString()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match="is not an ONNX model"):
        inspect_model(path)


@pytest.mark.parametrize(
    ("name", "said"), [("absent.onnx", "no such file; check its name"), (".", "this is a folder; `olivelike info`")]
)
def test_a_path_that_cannot_be_read_is_refused(tmp_path, name, said):
    with pytest.raises(SourceError, match=said):
        inspect_model(tmp_path / name)

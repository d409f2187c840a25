"""Models of others as weightless graphs: valid, deterministic, and computing the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from olivelike.digest import digest_file
from olivelike.engine.output.materialize import materialize
from olivelike.errors import SourceError
from olivelike.extras.adopt.onnx_graph import load_onnx
from olivelike.extras.adopt.onnx_source import open_onnx_component
from olivelike.model.graph import PARAMETER_KEY, parameter_inputs, real_inputs
from olivelike.sources.checkpoint import FolderFiles
from olivelike.sources.names.adaptation import Adaptation, bind

RANDOM = np.random.default_rng(0)


def save(folder, text, arrays, *, external=False):
    """Write a model in ONNX's text form with its initializers as `folder/unet/model.onnx`."""
    model = onnx.parser.parse_model(text)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return save_model(folder, model, external=external)


def save_model(folder, model, *, external=False):
    path = folder / "unet/model.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(model, path, save_as_external_data=external, location="weights.pb", size_threshold=0)
    return path


def materialised(path, folder):
    """Take a model through the table, the graph and the last step of every chain."""
    checkpoint = open_onnx_component(FolderFiles.local(path.parents[1]), "unet")
    adaptation, graph = load_onnx("unet", path)
    files = {file: digest_file(file) for file in checkpoint.files}
    weights = bind(adaptation, checkpoint, files)
    folder.mkdir()
    materialize(graph, weights, {digest: file for file, digest in files.items()}, folder, lambda done, total: None)
    return folder / "model.onnx"


def run(path, **feeds):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)


def assert_same(path, folder, tolerance=1e-6, **feeds):
    expected, found = run(path, **feeds), run(materialised(path, folder), **feeds)
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


WEIGHTS = {
    "w": RANDOM.standard_normal((30, 40), dtype=np.float32),
    "b": RANDOM.standard_normal(40, dtype=np.float32),
    "idle": RANDOM.standard_normal(40, dtype=np.float32),
    "scale": np.float32(0.5).reshape(()),
}
LINEAR = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,30] x) => (float[N,40] y) {
    product = MatMul(x, w)
    biased = Add(product, b)
    y = Mul(biased, scale)
}"""
X = RANDOM.standard_normal((3, 30), dtype=np.float32)


@pytest.mark.parametrize("external", [False, True])
def test_weights_become_marked_inputs_behind_the_real_ones(tmp_path, external):
    adaptation, graph = load_onnx("unet", save(tmp_path, LINEAR, WEIGHTS, external=external))
    model = graph.to_ir()
    assert [value.name for value in model.graph.inputs] == ["x", "b", "w"]
    assert list(parameter_inputs(model.graph)) == ["b", "w"]
    assert [value.name for value in real_inputs(model.graph)] == ["x"]
    assert list(model.graph.initializers) == ["scale"]
    onnx.checker.check_model(graph.data, full_check=True)
    assert len(graph.data) < 2000
    assert adaptation.architecture is None
    assert {name: (view.name, view.shape) for name, view in adaptation.names.items()} == {
        "b": ("b", (40,)), "w": ("w", (30, 40)),
    }  # fmt: skip
    assert adaptation.unused == ("idle",)
    assert Adaptation.from_bytes(adaptation.to_bytes()) == adaptation


def test_the_bytes_do_not_depend_on_where_the_weights_lie_nor_on_what_they_are(tmp_path):
    _, inside = load_onnx("unet", save(tmp_path / "inside", LINEAR, WEIGHTS))
    _, beside = load_onnx("unet", save(tmp_path / "beside", LINEAR, WEIGHTS, external=True))
    others = {**WEIGHTS, "w": WEIGHTS["w"] + 1}
    _, other = load_onnx("unet", save(tmp_path / "other", LINEAR, others))
    assert inside.data == beside.data == other.data


@pytest.mark.parametrize("external", [False, True])
def test_the_round_trip_computes_the_same(tmp_path, external):
    assert_same(save(tmp_path, LINEAR, WEIGHTS, external=external), tmp_path / "out", x=X)


def test_half_precision_stays_what_it_is(tmp_path):
    half = {name: array.astype(np.float16) for name, array in WEIGHTS.items()}
    path = save(tmp_path, LINEAR.replace("float", "float16"), half)
    assert_same(path, tmp_path / "out", x=X.astype(np.float16))


def test_initializers_that_are_also_inputs_are_weights(tmp_path):
    text = """<ir_version: 3, opset_import: ["": 9]>
    g (float[N,30] x, float[30,40] w, float[40] b, float scale) => (float[N,40] y) {
        product = MatMul(x, w)
        biased = Add(product, b)
        y = Mul(biased, scale)
    }"""
    path = save(tmp_path, text, {name: WEIGHTS[name] for name in ("w", "b", "scale")})
    model = load_onnx("unet", path)[1].to_ir()
    assert [value.name for value in model.graph.inputs] == ["x", "b", "w"]
    assert_same(path, tmp_path / "out", x=X)


def test_subgraphs_may_use_weights_from_outside(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,30] x, bool[1] twice) => (float[N,40] y) {
        y = If (twice) <
            then_branch = a () => (float[N,40] p) { q = MatMul(x, w) p = Add(q, b) },
            else_branch = c () => (float[N,40] r) { r = MatMul(x, w) }
        >
    }"""
    path = save(tmp_path, text, {"w": WEIGHTS["w"], "b": WEIGHTS["b"]}, external=True)
    assert load_onnx("unet", path)[0].names.keys() == {"w", "b"}
    for index, twice in enumerate([True, False]):
        assert_same(path, tmp_path / f"out{index}", x=X, twice=np.array([twice]))


def test_weights_inside_a_subgraph_stay_there(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,30] x, bool[1] twice) => (float[N,30] y) {
        y = If (twice) <
            then_branch = a () => (float[N,30] p) <float[30] inner> { p = Add(x, inner) },
            else_branch = c () => (float[N,30] r) { r = Relu(x) }
        >
    }"""
    model = onnx.parser.parse_model(text.replace("<float[30] inner>", ""))
    model.graph.node[0].attribute[0].g.initializer.append(
        numpy_helper.from_array(RANDOM.standard_normal(30, dtype=np.float32), "inner")
    )
    path = save_model(tmp_path, model, external=True)
    assert not load_onnx("unet", path)[0].names
    assert_same(path, tmp_path / "out", x=X, twice=np.array([True]))


def test_local_functions_are_kept_in_meaning(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[N,30] x) => (float[N,40] y) { y = local.Linear(x, w, b) }
    <domain: "local", opset_import: ["": 17]>
    Linear (x, w, b) => (y) { product = MatMul(x, w) y = Add(product, b) }"""
    path = save(tmp_path, text, {"w": WEIGHTS["w"], "b": WEIGHTS["b"]})
    assert_same(path, tmp_path / "out", x=X)


def test_large_constants_are_weights_too(tmp_path):
    model = onnx.parser.parse_model(LINEAR)
    weight = RANDOM.standard_normal((30, 400), dtype=np.float32)
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight)))
    for name, array in (("b", RANDOM.standard_normal(400, dtype=np.float32)), ("scale", WEIGHTS["scale"])):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 400
    path = save_model(tmp_path, model)
    assert load_onnx("unet", path)[0].names.keys() == {"w", "b"}
    assert_same(path, tmp_path / "out", x=X)


def test_one_weight_may_be_used_twice_and_two_may_share_their_bytes(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,30] x) => (float[N,40] y) {
        left = MatMul(x, w) right = MatMul(x, twin) both = Add(left, right) again = MatMul(x, w) y = Add(both, again)
    }"""
    path = save(tmp_path, text, {"w": WEIGHTS["w"], "twin": WEIGHTS["w"]}, external=True)
    model = onnx.load(path, load_external_data=False)
    first, second = model.graph.initializer
    del second.external_data[:]
    second.external_data.extend(first.external_data)
    onnx.save(model, path)
    assert_same(path, tmp_path / "out", x=X)


def test_nodes_out_of_order_are_sorted(tmp_path):
    model = onnx.parser.parse_model(LINEAR)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    for name, array in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    assert_same(save_model(tmp_path, model), tmp_path / "out", x=X)


def test_notes_of_the_exporter_are_dropped(tmp_path):
    model = onnx.parser.parse_model(LINEAR)
    for name, array in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.ir_version = 10
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = "/home/someone/export.py"
    model.metadata_props.add(key="user", value="someone")
    model.graph.node[0].metadata_props.add(key="trace", value="someone")
    model.graph.node[0].name = "/down_blocks.0/resnets.1/MatMul"
    graph = load_onnx("unet", save_model(tmp_path, model))[1]
    assert b"someone" not in graph.data
    assert graph.to_ir().graph[0].metadata_props == {"olivelike.block": "down_blocks.0.resnets.1"}
    assert PARAMETER_KEY.encode() in graph.data


def test_a_quantised_model_is_refused(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,30] x) => (float[N,40] y) { w = DequantizeLinear(q, s) y = MatMul(x, w) }"""
    arrays = {"q": np.zeros((30, 40), dtype=np.int8), "s": np.float32(0.1).reshape(())}
    with pytest.raises(SourceError, match=r"quantised already \(DequantizeLinear\); use its float32 or float16"):
        load_onnx("unet", save(tmp_path, text, arrays))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINEAR.replace("MatMul(x, w)", "MatMul(x, nothing)"), "not a valid ONNX model: .*nothing"),
        (LINEAR.replace("MatMul(x, w)", "NoSuch(x, w)"), "not a valid ONNX model: .*NoSuch"),
        (LINEAR.replace('["": 17]', "[]"), "names no opset|not a valid ONNX model"),
    ],
)
def test_models_that_are_not_valid_are_refused(tmp_path, text, message):
    with pytest.raises(SourceError, match=f"(?s){message}"):
        load_onnx("unet", save(tmp_path, text, WEIGHTS))

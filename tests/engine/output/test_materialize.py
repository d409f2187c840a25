"""Weightless graphs meet their weights."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from olivelike.engine.output.data_files import ALIGNMENT
from olivelike.engine.output.materialize import DATA_FILE, INLINE_BYTES, MODEL_FILE, materialize
from olivelike.errors import PassError, SourceError
from olivelike.model import Graph
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY
from olivelike.testing import LocalTensors

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "q.weight": RANDOM.standard_normal((20, 30), dtype=np.float32),
    "k.weight": RANDOM.standard_normal((20, 30), dtype=np.float32),
    "bias": RANDOM.standard_normal(40, dtype=np.float32),
    "scale": np.float32(0.25).reshape(()),
}
# Inputs whose name is underlined stand for parameters.
TEXT = """
<ir_version: 11, opset_import: ["": 23]>
unet (float[N,30] x, float[20,30] q_weight, float[20,30] k_weight, float[40] bias_, float scale_) => (float[N,40] y)
<float[30] offset = {{{offset}}}>
{{
    both = Concat<axis = 0>(q_weight, k_weight)
    packed = Transpose<perm = [1, 0]>(both)
    shifted = Add(x, offset)
    product = MatMul(shifted, packed)
    scaled = Mul(product, scale_)
    y = Add(scaled, bias_)
}}
""".format(offset=", ".join(["0.5"] * 30))
NAMES = {"q_weight": "q.weight", "k_weight": "k.weight", "bias_": "bias", "scale_": "scale"}


def parse(text=TEXT, names=NAMES):
    model = ir.from_proto(onnx.parser.parse_model(text))
    for value in model.graph.inputs:
        if value.name in names:
            value.metadata_props[PARAMETER_KEY] = names[value.name]
    for node in model.graph:
        node.metadata_props[BLOCK_KEY] = "block"
    return Graph.from_ir(model)


def write(folder, graph=None, arrays=WEIGHTS, progress=lambda done, total: None):
    folder.mkdir(exist_ok=True)
    tensors = LocalTensors()
    return materialize(graph or parse(), tensors.table(arrays), tensors.files, folder, progress)


def run(folder, **feeds):
    session = onnxruntime.InferenceSession(folder / MODEL_FILE, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def initializers(folder):
    model = onnx.load(folder / MODEL_FILE)
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_result_computes_what_the_graph_with_its_weights_does(tmp_path):
    write(tmp_path)
    x = RANDOM.standard_normal((3, 30), dtype=np.float32)
    packed = np.concatenate([WEIGHTS["q.weight"], WEIGHTS["k.weight"]]).T
    expected = (x + 0.5) @ packed * np.float32(0.25) + WEIGHTS["bias"]
    np.testing.assert_allclose(run(tmp_path, x=x)[0], expected, rtol=1e-5, atol=1e-5)


def test_derived_weights_are_folded_to_the_bit(tmp_path):
    write(tmp_path)
    found = initializers(tmp_path)
    assert (found["packed"] == np.concatenate([WEIGHTS["q.weight"], WEIGHTS["k.weight"]]).T).all()
    assert (found["bias"] == WEIGHTS["bias"]).all()
    model = onnx.load(tmp_path / MODEL_FILE)
    assert [node.op_type for node in model.graph.node] == ["Add", "MatMul", "Mul", "Add"]
    assert [value.name for value in model.graph.input] == ["x"]


def test_scalars_stay_scalars(tmp_path):
    write(tmp_path)
    assert initializers(tmp_path)["scale"].shape == ()


def test_the_result_is_valid_and_tells_nothing_of_how_it_was_made(tmp_path):
    write(tmp_path)
    onnx.checker.check_model(str(tmp_path / MODEL_FILE), full_check=True)
    assert b"olivelike." not in (tmp_path / MODEL_FILE).read_bytes()


def test_each_weight_knows_which_parameters_it_derives_from_and_how(tmp_path):
    derivations = write(tmp_path).derivations
    assert derivations == {
        "packed": {
            "op": "Transpose",
            "attributes": {"perm": [1, 0]},
            "inputs": [
                {
                    "op": "Concat",
                    "attributes": {"axis": 0},
                    "inputs": [
                        {"parameter": "q.weight", "shape": list(WEIGHTS["q.weight"].shape)},
                        {"parameter": "k.weight", "shape": list(WEIGHTS["k.weight"].shape)},
                    ],
                }
            ],
        },
        "scale": {"parameter": "scale", "shape": []},
        "bias": {"parameter": "bias", "shape": list(WEIGHTS["bias"].shape)},
    }


def test_sizes_and_digests_of_the_files_are_right(tmp_path):
    result = write(tmp_path)
    assert result.files == {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files(tmp_path).items()
    }
    assert result.files.keys() == {MODEL_FILE, DATA_FILE}


def test_large_tensors_are_aligned_in_the_data_file_and_small_ones_inline(tmp_path):
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (float[1] x, float[300] a, float[255] b, float[256] c) => (float[300] p, float[255] q, float[256] r) {
        p = Add(x, a) q = Add(x, b) r = Add(x, c) }"""
    arrays = {
        name: RANDOM.standard_normal(size, dtype=np.float32) for name, size in (("a", 300), ("b", 255), ("c", 256))
    }
    write(tmp_path, parse(text, {name: name for name in arrays}), arrays)
    stored = onnx.load(tmp_path / MODEL_FILE, load_external_data=False).graph.initializer
    places = {tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in stored}
    assert places == {
        "a": {"location": DATA_FILE, "offset": "0", "length": "1200"},
        "b": {},
        "c": {"location": DATA_FILE, "offset": str(ALIGNMENT), "length": "1024"},
    }
    assert INLINE_BYTES == 1024
    assert (initializers(tmp_path)["c"] == arrays["c"]).all()


def test_equal_input_gives_equal_bytes(tmp_path):
    write(tmp_path / "first")
    write(tmp_path / "second", arrays=dict(reversed(WEIGHTS.items())))
    assert files(tmp_path / "first") == files(tmp_path / "second")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_sources_of_another_precision_give_the_bytes_of_their_float32_copy(dtype, tmp_path):
    rounded = {
        name: array.astype(ml_dtypes.bfloat16).astype(np.float16).astype(dtype) for name, array in WEIGHTS.items()
    }
    write(tmp_path / "stored", arrays=rounded)
    write(tmp_path / "copied", arrays={name: array.astype(np.float32) for name, array in rounded.items()})
    assert files(tmp_path / "stored") == files(tmp_path / "copied")


HALF = """
<ir_version: 11, opset_import: ["": 23]>
g (float16[N,2] x, float[2,2] weight) => (float16[N,2] y) { half = Cast<to = 10>(weight) y = MatMul(x, half) }
"""


def test_values_that_float16_cannot_hold_are_counted_and_saturated(tmp_path):
    weight = np.array([[1e6, -7e4], [1e-9, 2]], np.float32)
    result = write(tmp_path, parse(HALF, {"weight": "weight"}), {"weight": weight})
    assert (result.saturated, result.flushed) == ({"weight": 2}, {"weight": 1})
    assert initializers(tmp_path)["weight"].tolist() == [[65504, -65504], [0, 2]]


def test_bfloat16_saturates_nothing(tmp_path):
    text = HALF.replace("float16", "bfloat16").replace("to = 10", "to = 16")
    weight = np.array([[1e6, -7e4], [1e-9, 1 / 3]], np.float32)
    result = write(tmp_path, parse(text, {"weight": "weight"}), {"weight": weight})
    assert (result.saturated, result.flushed) == ({}, {})
    assert (initializers(tmp_path)["weight"] == weight.astype(ml_dtypes.bfloat16)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("cast", ["half = Cast<to = 10>(weight)", "half = Identity(weight)"])
def test_a_large_tensor_in_pieces_gives_the_same_bytes_and_counts(dtype, cast, tmp_path, monkeypatch):
    weight = RANDOM.standard_normal((33, 57)).astype(dtype)
    weight[::5, 3] = 1e-9
    weight[7] = 3e4
    text = HALF.replace("half = Cast<to = 10>(weight)", cast).replace("[2,2]", "[33,57]").replace("[N,2]", "[N,33]", 1)
    if "Identity" in cast:
        text = text.replace("float16", "float")
    graph = parse(text, {"weight": "weight"})
    whole = write(tmp_path / "whole", graph, {"weight": weight})
    monkeypatch.setattr("olivelike.engine.output.materialize._PIECE_BYTES", 1000)
    pieces = write(tmp_path / "pieces", graph, {"weight": weight})
    assert files(tmp_path / "pieces") == files(tmp_path / "whole")
    assert (pieces.saturated, pieces.flushed) == (whole.saturated, whole.flushed)


@pytest.mark.parametrize("graph", [HALF, HALF.replace("Cast<to = 10>", "Identity").replace("float16", "float")])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_values_that_are_infinite_or_nan_are_counted_and_kept(graph, dtype, tmp_path, monkeypatch):
    weight = RANDOM.standard_normal((33, 57)).astype(dtype)
    weight[::11, 3] = np.nan, np.inf, -np.inf
    graph = parse(graph.replace("[2,2]", "[33,57]").replace("[N,2]", "[N,33]", 1), {"weight": "weight"})
    whole = write(tmp_path / "whole", graph, {"weight": weight})
    assert (whole.not_finite, whole.saturated) == ({"weight": 3}, {})
    assert np.isfinite(initializers(tmp_path / "whole")["weight"].astype(np.float32)).sum() == weight.size - 3
    monkeypatch.setattr("olivelike.engine.output.materialize._PIECE_BYTES", 1000)
    assert write(tmp_path / "pieces", graph, {"weight": weight}).not_finite == {"weight": 3}


def test_a_parameter_that_the_graph_has_in_half_precision_is_clamped_and_counted_too(tmp_path):
    graph = parse(HALF.replace("float[2,2]", "float16[2,2]").replace("Cast<to = 10>", "Identity"), {"weight": "weight"})
    result = write(tmp_path, graph, {"weight": np.array([[1e6, -7e4], [1e-9, 2]], np.float32)})
    assert (result.saturated, result.flushed, result.not_finite) == ({"weight": 2}, {"weight": 1}, {})
    assert initializers(tmp_path)["weight"].tolist() == [[65504, -65504], [0, 2]]


NHWC = """
<ir_version: 11, opset_import: ["": 23]>
conv (float16[N,1,1,1] x, float[7,9,5,3] weight) => (float16[N,A,B,C,D] y)
{{
    {derived}
    axis = Constant<value_ints = [3]>()
    wide = Unsqueeze(x, axis)
    y = Add(wide, moved)
}}
"""


@pytest.mark.parametrize(
    "operators",
    [
        ("Transpose<perm = [0, 2, 3, 1]>", "Cast<to = 10>"),
        ("Cast<to = 10>", "Transpose<perm = [0, 1, 3, 2]>", "Transpose<perm = [0, 3, 1, 2]>"),
        ("Transpose<perm = [0, 2, 1, 3]>", "Cast<to = 10>", "Transpose<perm = [3, 1, 2, 0]>"),
    ],
    ids=["once", "twice", "rows move"],
)
def test_rows_that_stay_in_their_order_go_in_pieces(tmp_path, monkeypatch, operators):
    weight = RANDOM.standard_normal((7, 9, 5, 3), dtype=np.float32)
    names = ["weight", "one", "two", "moved"] if len(operators) == 3 else ["weight", "one", "moved"]
    lines = [f"{after} = {op}({before})" for before, after, op in zip(names, names[1:], operators, strict=False)]
    graph = parse(NHWC.format(derived="\n    ".join(lines)), {"weight": "weight"})
    write(tmp_path / "whole", graph, {"weight": weight})
    monkeypatch.setattr("olivelike.engine.output.materialize._PIECE_BYTES", 1200)
    write(tmp_path / "pieces", graph, {"weight": weight})
    assert files(tmp_path / "pieces") == files(tmp_path / "whole")


def test_nothing_is_reported_where_nothing_is_lost(tmp_path):
    result = write(tmp_path, parse(HALF, {"weight": "weight"}), {"weight": np.eye(2, dtype=np.float32)})
    assert (result.saturated, result.flushed) == ({}, {})


def test_a_float16_source_reaches_a_float16_graph_unchanged(tmp_path):
    weight = RANDOM.standard_normal((2, 2)).astype(np.float16)
    write(tmp_path, parse(HALF, {"weight": "weight"}), {"weight": weight})
    assert initializers(tmp_path)["weight"].tobytes() == weight.tobytes()


def test_a_parameter_used_as_it_is_and_derived_is_stored_twice(tmp_path):
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (float[N,2] x, float[2,2] weight) => (float[N,2] y, float[N,2] z) {
        turned = Transpose<perm = [1, 0]>(weight) y = MatMul(x, turned) z = MatMul(x, weight) }"""
    weight = np.arange(4, dtype=np.float32).reshape(2, 2)
    result = write(tmp_path, parse(text, {"weight": "weight"}), {"weight": weight})
    y, z = run(tmp_path, x=np.eye(2, dtype=np.float32))
    assert (y == weight.T).all()
    assert (z == weight).all()
    assert list(result.derivations) == ["weight", "weight.again"]


def test_a_weight_of_many_users_is_stored_once(tmp_path):
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (float[N,2] x, float[2,2] weight) => (float[N,2] y) { z = MatMul(x, weight) y = MatMul(z, weight) }"""
    result = write(tmp_path, parse(text, {"weight": "weight"}), {"weight": np.eye(2, dtype=np.float32)})
    assert list(result.derivations) == ["weight"]


def test_weights_inside_branches_are_bound_too(tmp_path):
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (float[N,2] x, bool c, float[2,2] a, float[2,2] b) => (float[N,2] y) {
        turned = Transpose<perm = [1, 0]>(a)
        y = If(c) <
            then_branch = one () => (float[N,2] p) { p = MatMul(x, turned) },
            else_branch = two () => (float[N,2] q) { q = MatMul(x, b) }>
    }"""
    arrays = {"a": np.arange(4, dtype=np.float32).reshape(2, 2), "b": np.ones((2, 2), np.float32)}
    write(tmp_path, parse(text, {"a": "a", "b": "b"}), arrays)
    x = np.eye(2, dtype=np.float32)
    assert (run(tmp_path, x=x, c=np.array(True))[0] == arrays["a"].T).all()
    assert (run(tmp_path, x=x, c=np.array(False))[0] == arrays["b"]).all()


def test_a_missing_parameter_is_named(tmp_path):
    with pytest.raises(PassError, match=r"the weights have no parameter 'bias', which the graph needs"):
        write(tmp_path, arrays={name: array for name, array in WEIGHTS.items() if name != "bias"})


def test_a_parameter_of_another_shape_is_named_with_both_shapes(tmp_path):
    with pytest.raises(PassError, match=r"'bias' has shape \(41,\), the graph needs \(40,\)"):
        write(tmp_path, arrays=WEIGHTS | {"bias": np.zeros(41, np.float32)})


def test_parameters_that_the_graph_does_not_use_are_ignored(tmp_path):
    write(tmp_path / "a", arrays=WEIGHTS | {"other.half": np.zeros(9, np.float32)})
    write(tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_an_operator_that_cannot_be_evaluated_is_named(tmp_path):
    text = """<ir_version: 11, opset_import: ["": 23, "com.microsoft": 1]>
    g (float[N,2] x, float[2,2] weight) => (float[N,2] y) {
        gelu = com.microsoft.FastGelu(weight) y = MatMul(x, gelu) }"""
    with pytest.raises(PassError, match="can't derive 'gelu'.*FastGelu"):
        write(tmp_path, parse(text, {"weight": "weight"}), {"weight": np.eye(2, dtype=np.float32)})


def test_an_output_that_depends_on_weights_alone_is_refused(tmp_path):
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (float[2] x, float[2] weight) => (float[2] y, float[2] z) { y = Neg(x) z = Neg(weight) }"""
    with pytest.raises(PassError, match="output 'z' depends on weights alone"):
        write(tmp_path, parse(text, {"weight": "weight"}), {"weight": np.zeros(2, np.float32)})


def test_a_source_file_that_ends_early_is_an_error(tmp_path):
    tensors = LocalTensors()
    table = tensors.table(WEIGHTS)
    short = tensors.files[table["q.weight"].file]
    short.write_bytes(short.read_bytes()[:-4])
    with pytest.raises(SourceError, match="ends before byte 2400"):
        materialize(parse(), table, tensors.files, tmp_path, lambda done, total: None)


def test_progress_counts_bytes_up_to_the_total(tmp_path):
    seen = []
    write(tmp_path, progress=lambda done, total: seen.append((done, total)))
    total = sum(array.nbytes for array in WEIGHTS.values())
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert (seen[-1], {entry[1] for entry in seen}) == ((total, total), {total})


MEMORY = """
import sys
from pathlib import Path

import onnx.helper
import onnx.reference

from olivelike.model import Graph, Tensor, Weights
from olivelike.engine.output.materialize import materialize

COUNT, ROWS, COLUMNS = 50, 1024, 2560  # 50 tensors of 10 MB, in one sparse file


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def value(name, shape, dtype=onnx.TensorProto.FLOAT):
    made = onnx.helper.make_tensor_value_info(name, dtype, shape)
    if name != "x" and name != "y":
        made.metadata_props.add(key="olivelike.parameter", value=name)
    return made


names = [f"p{i}" for i in range(COUNT)]
nodes = []
for i, name in enumerate(names):
    nodes.append(onnx.helper.make_node("Transpose", [name], [f"t{i}"], perm=[1, 0]))
    nodes.append(onnx.helper.make_node("Cast", [f"t{i}"], [f"h{i}"], to=onnx.TensorProto.FLOAT16))
    nodes.append(onnx.helper.make_node("MatMul", [f"x{i - 1}" if i else "x", f"h{i}"], [f"x{i}a"]))
    nodes.append(onnx.helper.make_node("ReduceSum", [f"x{i}a"], [f"x{i}" if i < COUNT - 1 else "y"]))
half = onnx.TensorProto.FLOAT16
graph = onnx.helper.make_graph(
    nodes, "g", [value("x", [1, COLUMNS], half)] + [value(name, [ROWS, COLUMNS]) for name in names],
    [value("y", None, half)],
)
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=11)
folder = Path(sys.argv[1])
with (folder / "source").open("wb") as file:
    file.truncate(COUNT * ROWS * COLUMNS * 4)
size = ROWS * COLUMNS * 4
weights = Weights({name: Tensor("F32", (ROWS, COLUMNS), "source", i * size) for i, name in enumerate(names)})
before = peak()
materialize(
    Graph(model.SerializeToString()), weights, {"source": folder / "source"}, folder, lambda done, total: None
)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_stays_flat_in_the_size_of_the_model(tmp_path):
    (tmp_path / "measure.py").write_text(MEMORY)
    done = subprocess.run(
        [sys.executable, tmp_path / "measure.py", tmp_path], capture_output=True, text=True, check=True
    )
    assert (tmp_path / DATA_FILE).stat().st_size > 250_000_000
    assert int(done.stdout) < 160_000_000  # 128 MiB may be on their way; what two threads work on is in them twice
    for path in Path(tmp_path).iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("most", "names"),
    [(100_000, {"weights.pb"}), (8192, {"weights.pb", "weights.1.pb"}),
     (1, {"weights.pb", "weights.1.pb", "weights.2.pb"})],
)  # fmt: skip
@pytest.mark.parametrize("pieces", [False, True])
def test_weights_go_into_as_many_files_as_their_size_asks_for(tmp_path, monkeypatch, most, names, pieces):
    text = """<ir_version: 11, opset_import: ["": 23]>
    g (float[N,20] x, float[20,40] a, float[40,20] b, float[20,40] c, float[40] d) => (float[N,40] y) {
        one = MatMul(x, a) two = MatMul(one, b) three = MatMul(two, c) y = Add(three, d) }"""
    shapes = {"a": (20, 40), "b": (40, 20), "c": (20, 40), "d": (40,)}
    arrays = {name: RANDOM.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    if pieces:
        monkeypatch.setattr("olivelike.engine.output.materialize._PIECE_BYTES", 1000)
    tensors = LocalTensors()
    (tmp_path / "out").mkdir()
    result = materialize(
        parse(text, dict(zip("abcd", "abcd", strict=True))), tensors.table(arrays), tensors.files, tmp_path / "out",
        lambda done, total: None, most_data_bytes=most,
    )  # fmt: skip
    written = files(tmp_path / "out")
    assert set(written) == names | {MODEL_FILE} == set(result.files)
    for name, data in written.items():
        assert result.files[name] == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        assert name == MODEL_FILE or len(data) <= max(most, 3200)
    x = RANDOM.standard_normal((3, 20), dtype=np.float32)
    expected = x @ arrays["a"] @ arrays["b"] @ arrays["c"] + arrays["d"]
    assert np.allclose(run(tmp_path / "out", x=x)[0], expected, rtol=1e-4, atol=1e-4)

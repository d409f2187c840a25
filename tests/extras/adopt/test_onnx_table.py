"""ONNX files split in weights and graph, by seeking alone."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from olivelike.errors import SourceError
from olivelike.extras.adopt.onnx_table import CONSTANT_BYTES, read_onnx_table
from olivelike.model import Tensor
from olivelike.model.tensor_file import read_tensor
from olivelike.sources.files.onnx_wire import BYTES, encode_bytes, encode_number, encode_varint

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.standard_normal((20, 30), dtype=np.float32)
BIAS = RANDOM.standard_normal(30).astype(np.float16)
TABLE = RANDOM.standard_normal((100, 100), dtype=np.float32)


def make_model(weight=WEIGHT, table=TABLE):
    """A matrix product with a weight, a float16 bias, a constant, a scalar and whole numbers."""
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Cast", ["bias"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["product", "wide"], ["sum"]),
        helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(table)),
        helper.make_node("Gather", ["table", "rows"], ["picked"]),
        helper.make_node("Mul", ["sum", "scale"], ["y"]),
    ]
    initializers = [
        numpy_helper.from_array(weight, "weight"),
        numpy_helper.from_array(BIAS, "bias"),
        numpy_helper.from_array(np.float32(0.5).reshape(()), "scale"),
        numpy_helper.from_array(np.arange(500, dtype=np.int64), "rows"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 30]),
            helper.make_tensor_value_info("picked", TensorProto.FLOAT, [500, 100]),
        ],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(folder, model=None, *, external=False, name="model.onnx"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    onnx.save(
        model or make_model(),
        path,
        save_as_external_data=external,
        location="weights.pb",
        size_threshold=0,
        convert_attribute=True,
    )
    return path


def values(table):
    return {
        name: read_tensor(Tensor(raw.dtype, raw.shape, "", raw.offset), {"": path})
        for name, (raw, path) in table.tensors.items()
    }


@pytest.mark.parametrize("external", [False, True])
def test_weights_are_found_where_they_lie(tmp_path, external):
    table = read_onnx_table(save(tmp_path, external=external))
    found = values(table)
    assert found.keys() == {"weight", "bias", "table"}
    for name, expected in (("weight", WEIGHT), ("bias", BIAS), ("table", TABLE)):
        assert found[name].dtype == expected.dtype
        assert (found[name] == expected).all()
    assert {path.name for _, path in table.tensors.values()} == {"weights.pb" if external else "model.onnx"}


def test_the_graph_is_the_same_wherever_the_weights_lie_and_whatever_they_are(tmp_path):
    inside = read_onnx_table(save(tmp_path / "inside"))
    beside = read_onnx_table(save(tmp_path / "beside", external=True))
    other = read_onnx_table(save(tmp_path / "other", make_model(WEIGHT + 1, TABLE + 1)))
    assert inside.graph == beside.graph == other.graph


def test_scalars_and_whole_numbers_stay_in_the_graph(tmp_path):
    graph = onnx.ModelProto.FromString(read_onnx_table(save(tmp_path, external=True)).graph).graph
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.raw_data}
    assert kept.keys() == {"scale", "rows"}
    assert (kept["rows"] == np.arange(500)).all()


def test_short_constants_stay_in_the_graph(tmp_path):
    mask = np.triu(np.full((77, 77), -np.inf, dtype=np.float32), 1)
    assert mask.nbytes < CONSTANT_BYTES
    table = read_onnx_table(save(tmp_path, make_model(table=mask[:, :77])))
    assert "table" not in table.tensors


def test_a_graph_with_other_sizes_is_another(tmp_path):
    assert (
        read_onnx_table(save(tmp_path / "a", make_model(table=TABLE[:99]))).graph
        != read_onnx_table(save(tmp_path / "b")).graph
    )


@pytest.mark.parametrize(("dtype", "found"), [(TensorProto.FLOAT, True), (TensorProto.DOUBLE, True)])
def test_values_in_packed_fields_are_pointed_at_too(tmp_path, dtype, found):
    model = make_model()
    model.graph.initializer.append(helper.make_tensor("typed", dtype, [40], RANDOM.standard_normal(40)))
    assert not model.graph.initializer[-1].raw_data
    table = read_onnx_table(save(tmp_path, model))
    expected = numpy_helper.to_array(model.graph.initializer[-1])
    assert (values(table)["typed"] == expected).all()


def test_values_that_do_not_lie_in_one_piece_stay_in_the_graph(tmp_path):
    model = make_model()
    model.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT16, [40], [0.5] * 40))
    assert model.graph.initializer[-1].int32_data
    table = read_onnx_table(save(tmp_path, model))
    assert "typed" not in table.tensors
    assert onnx.ModelProto.FromString(table.graph).graph.initializer[-1] == model.graph.initializer[-1]


def test_constants_that_exporters_need_as_such_are_no_weights(tmp_path):
    model = make_model()
    for name in ("ones", "zeros"):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(32, dtype=np.float32), name))
    model.graph.node.append(helper.make_node("InstanceNormalization", ["x", "ones", "zeros"], ["normal"]))
    model.graph.node.append(helper.make_node("Relu", ["weight"], ["r"], name="/upsamplers.0/Resize"))  # named after one
    assert read_onnx_table(save(tmp_path, model)).tensors.keys() == {"weight", "bias", "table"}


def test_memory_stays_flat_and_big_files_are_read_in_no_time(tmp_path):
    path = tmp_path / "model.onnx"
    count = 350_000_000
    nbytes = 4 * count
    head = encode_number(1, count) + encode_number(2, TensorProto.FLOAT) + encode_bytes(8, b"big")
    tensor_length = len(head) + len(_key(9, nbytes)) + nbytes
    graph_length = len(_key(5, tensor_length)) + tensor_length
    with path.open("wb") as file:
        file.write(encode_number(1, 8) + encode_bytes(8, encode_number(2, 17)))
        file.write(_key(7, graph_length) + _key(5, tensor_length) + head + _key(9, nbytes))
        start = file.tell()
        file.truncate(start + nbytes)  # a hole: nothing is written
    tracemalloc.start()
    try:
        table = read_onnx_table(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert table.tensors["big"][0].offset == start
    assert peak < 1 << 20
    assert len(table.graph) < 100


def _key(number, length):
    """Key and length of a field whose bytes come later."""
    return encode_varint(number << 3 | BYTES) + encode_varint(length)


def test_reading_needs_the_standard_library_alone(tmp_path):
    path = save(tmp_path)
    code = (
        "import sys; from pathlib import Path; from olivelike.extras.adopt.onnx_table import read_onnx_table; "
        f"read_onnx_table(Path({str(path)!r})); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'onnx', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _point_at(location):
    def damage(path):
        model = onnx.load(path, load_external_data=False)
        model.graph.initializer[0].external_data[0].value = location
        onnx.save(model, path)

    return damage


def _set(key, value):
    def damage(path):
        model = onnx.load(path, load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            if entry.key == key:
                entry.value = value
        onnx.save(model, path)

    return damage


def _truncate(name, share):
    def damage(path):
        file = path.parent / name
        file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])

    return damage


def _write(name, data):
    return lambda path: (path.parent / name).write_bytes(data)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3438167540\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_point_at("/etc/passwd"), "outside of the model's folder"),
        (_point_at("../weights.pb"), "outside of the model's folder"),
        (_point_at("C:\\weights.pb"), "outside of the model's folder"),
        (_point_at("..\\weights.pb"), "outside of the model's folder"),
        (_point_at(""), "outside of the model's folder"),
        (_point_at("other.pb"), "other.pb is missing: model.onnx keeps its weights in it"),
        (_set("length", "8"), "has 8 bytes where its shape needs 2400"),
        (_set("offset", "-4"), "where its shape needs"),
        (_set("offset", "many"), "no numbers for its place"),
        (_set("offset", "9999999"), "weights.pb: truncated: tensor weight of model.onnx needs"),
        (_truncate("weights.pb", 0.5), "weights.pb: truncated"),
        (_write("weights.pb", LFS), "weights.pb: this is a Git LFS pointer of 73 bytes"),
        (_write("model.onnx", LFS), "model.onnx: this is a Git LFS pointer of 73 bytes"),
        (_write("model.onnx", b""), "the file is empty"),
        (_write("model.onnx", b"<!DOCTYPE html><html><body>404</body></html>"), "not a valid ONNX file"),
        (_write("model.onnx", b"PK\x03\x04" + b"\0" * 100), "not a valid ONNX file"),
        (_write("model.onnx", encode_number(1, 8)), "not a valid ONNX file: it has no graph"),
        (_write("model.onnx", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "not a valid ONNX file"),
    ],
)
def test_bad_files_are_refused_by_name_and_reason(tmp_path, damage, message):
    path = save(tmp_path, external=True)
    damage(path)
    with pytest.raises(SourceError) as caught:
        read_onnx_table(path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.7, 0.99])
def test_a_truncated_model_is_refused(tmp_path, share):
    path = save(tmp_path)
    _truncate("model.onnx", share)(path)
    with pytest.raises(SourceError, match="not a valid ONNX file|truncated"):
        read_onnx_table(path)


def test_a_missing_model_is_refused(tmp_path):
    with pytest.raises(SourceError, match="can't be read"):
        read_onnx_table(tmp_path / "model.onnx")


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    model = make_model()
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(SourceError, match="the name weight occurs twice"):
        read_onnx_table(save(tmp_path, model))


def test_wrong_sizes_inside_the_model_are_refused(tmp_path):
    model = make_model()
    model.graph.initializer[0].dims[0] = 21
    with pytest.raises(SourceError, match="tensor weight has 2400 bytes where its shape needs 2520"):
        read_onnx_table(save(tmp_path, model))


def test_large_tensors_of_other_types_are_refused(tmp_path):
    model = make_model()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(17 << 20, dtype=np.int8), "packed"))
    with pytest.raises(SourceError, match="tensor packed has 17825792 bytes of ONNX type 3"):
        read_onnx_table(save(tmp_path, model))

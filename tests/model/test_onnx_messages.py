"""Models read without `onnx`: the same fields, bytes and values as with it."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest
from google.protobuf import descriptor_pb2
from onnx import TensorProto, helper, numpy_helper

from olivelike.model import onnx_messages
from olivelike.model.onnx_messages import (
    attribute,
    data_files,
    dtype_name,
    from_array,
    load_model,
    make_node,
    make_value,
    to_array,
)

STORED = [number for number in TensorProto.DataType.values() if 0 < number < 27 and number != TensorProto.STRING]
WHOLE = [number for number in STORED if onnx_messages.bits_of(onnx_messages.numpy_dtype(number)) >= 8]


def fields(message) -> dict[str, tuple]:
    """Fields by path: number, type, label, packed, and whether others exclude it."""
    copy = descriptor_pb2.DescriptorProto()
    message.CopyToProto(copy)
    return {
        f"{message.full_name}.{field.name}": (
            field.number, field.type_name or field.type, field.label, field.options.packed,
            field.HasField("oneof_index"),
        )
        for field in copy.field
    }  # fmt: skip


def test_each_field_is_that_of_onnx() -> None:
    for name in onnx_messages._FIELDS:
        top, *inner = name.split(".")
        ours, theirs = onnx_messages._MADE[top], getattr(onnx, top)
        for part in inner:
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        known = fields(theirs.DESCRIPTOR)
        for path, facts in fields(ours.DESCRIPTOR).items():
            # An enumeration outside tensors is read as a number, and two messages of the same fields as one.
            same = {5: ".onnx.AttributeProto.AttributeType", ".onnx.TypeProto.Tensor": ".onnx.TypeProto.SparseTensor"}
            number, kind, *rest = facts
            assert known[path] in (facts, (number, same.get(kind), *rest)), path
    for title, values in onnx_messages._ENUMS.items():
        theirs = getattr(TensorProto, title)
        assert {name: theirs.Value(name) for name in values.split()} == {
            name: getattr(onnx_messages.TensorProto, name) for name in values.split()
        }


def model() -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["rows", 3]) for name in "xy"]
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node("Odd", ["x"], ["y"], domain="own", name="n", to=1, scale=0.5, words=["a"], body=body)
    node.device_configurations.add(configuration_id="gpu")  # Not listed here.
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(np.arange(3.0), "w")])
    function = helper.make_function("own", "Odd", ["a"], ["b"], [], [helper.make_opsetid("", 20)])
    found = helper.make_model(graph, functions=[function], opset_imports=[helper.make_opsetid("", 20)])
    helper.set_model_props(found, {"key": "value"})
    found.training_info.add().algorithm.name = "t"
    return found


def test_a_model_is_read_and_written_whole(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    read = load_model(path)
    assert onnx.ModelProto.FromString(read.SerializeToString()) == model()
    assert read.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    assert not read.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")
    assert [attribute.name for attribute in read.graph.node[0].attribute] == ["body", "scale", "to", "words"]
    assert read.graph.initializer[0].data_type == read.graph.initializer[0].DOUBLE


@pytest.mark.parametrize("number", STORED)
def test_types_are_named_as_onnx_names_them(number) -> None:
    assert dtype_name(number) == helper.tensor_dtype_to_np_dtype(number).name


def test_unknown_types_are_told() -> None:
    for number in (0, -1, 999):
        with pytest.raises(KeyError):
            dtype_name(number)


@pytest.mark.parametrize("number", WHOLE)
def test_values_are_those_that_onnx_reads(number) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(number)
    values = np.array([[0, 1, 2], [4, 0, 1]]).astype(dtype)
    raw, typed = numpy_helper.from_array(values, "w"), helper.make_tensor("w", number, (2, 3), values.reshape(-1))
    for tensor in (raw, typed):
        read = to_array(onnx_messages.TensorProto.FromString(tensor.SerializeToString()))
        assert read.dtype == dtype
        assert read.tobytes() == numpy_helper.to_array(tensor).tobytes() == values.tobytes()
        assert read.shape == (2, 3)
    assert from_array(values, "w").SerializeToString() == raw.SerializeToString()


@pytest.mark.parametrize("number", sorted({*STORED} - {*WHOLE}))
def test_values_of_which_a_byte_has_several_are_those_that_onnx_reads(number, tmp_path) -> None:
    values = np.array([[0, 1, -1], [1, 0, -2], [1, 1, 0]])
    values = np.abs(values) if "U" in TensorProto.DataType.Name(number) else values
    values = values.astype(helper.tensor_dtype_to_np_dtype(number))
    raw, typed = numpy_helper.from_array(values, "w"), helper.make_tensor("w", number, (3, 3), values.reshape(-1))
    for tensor in (raw, typed):
        read = to_array(onnx_messages.TensorProto.FromString(tensor.SerializeToString()))
        assert read.dtype == values.dtype
        assert read.tobytes() == numpy_helper.to_array(tensor).tobytes() == values.tobytes()
    assert from_array(values, "w").SerializeToString() == raw.SerializeToString()
    (tmp_path / "data.bin").write_bytes(b"ab" + raw.raw_data)
    apart = onnx_messages.TensorProto(name="w", data_type=number, dims=[3, 3], data_location=1)
    for key, value in {"location": "data.bin", "offset": "2"}.items():
        apart.external_data.add(key=key, value=value)
    assert to_array(apart, tmp_path).tobytes() == values.tobytes()


def test_negative_and_odd_values() -> None:
    values = np.array([-1.5, np.inf, 65504]).astype(ml_dtypes.bfloat16)
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, (3,), values)
    assert to_array(onnx_messages.TensorProto.FromString(tensor.SerializeToString())).tobytes() == values.tobytes()
    tensor = helper.make_tensor("w", TensorProto.INT8, (2,), [-128, 127])
    assert to_array(onnx_messages.TensorProto.FromString(tensor.SerializeToString())).tolist() == [-128, 127]
    scalar = onnx_messages.TensorProto(data_type=1, float_data=[0.0625])
    assert to_array(scalar).tolist() == 0.0625


def test_what_can_not_be_values_is_refused() -> None:
    for tensor in (
        onnx_messages.TensorProto(data_type=TensorProto.STRING, dims=[1], string_data=[b"a"]),
        onnx_messages.TensorProto(data_type=TensorProto.INT4, dims=[3], raw_data=b"a"),
        onnx_messages.TensorProto(data_type=TensorProto.FLOAT, dims=[2], raw_data=b"abcd"),
        onnx_messages.TensorProto(data_type=TensorProto.FLOAT, dims=[-3], float_data=[1, 2]),
    ):
        with pytest.raises(ValueError):
            to_array(tensor)


def test_nodes_and_values_are_made_as_onnx_makes_them() -> None:
    attributes = {"axis": -2, "scale": 0.5, "pads": [1, 0], "factors": [0.5, 1.0]}
    made = make_node("Odd", ["a", ""], ["b"], domain="own", **attributes)
    assert (
        made.SerializeToString()
        == helper.make_node("Odd", ["a", ""], ["b"], None, None, "own", **attributes).SerializeToString()
    )
    assert {name: attribute(made, name) for name in attributes} == attributes
    assert attribute(made, "absent", 3) == 3
    values = np.arange(3)
    made = make_node("Constant", [], ["c"], value=from_array(values, ""))
    assert to_array(attribute(made, "value")).tolist() == [0, 1, 2]
    theirs = helper.make_node("Odd", [], [], text="a", texts=["a", "b"])
    read = onnx_messages.NodeProto.FromString(theirs.SerializeToString())
    assert [attribute(read, name) for name in ("text", "texts")] == [b"a", [b"a", b"b"]]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 3])
    assert make_value("x", TensorProto.FLOAT16, [2, 3]).SerializeToString() == value.SerializeToString()


def external(location: str, **entries: str) -> onnx_messages.TensorProto:
    tensor = onnx_messages.TensorProto(name="w", data_type=1, dims=[2], data_location=1)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_values_of_data_files(tmp_path) -> None:
    np.arange(4, dtype=np.float32).tofile(tmp_path / "data.bin")
    assert to_array(external("data.bin", offset="8", length="8"), tmp_path).tolist() == [2, 3]
    for broken in (external("data.bin", offset="12"), external("data.bin", offset="x"), external("../data.bin"),
                   external(str(tmp_path / "data.bin"))):  # fmt: skip
        with pytest.raises(ValueError):
            to_array(broken, tmp_path / "." if broken.external_data[0].value == "data.bin" else tmp_path)
    with pytest.raises(OSError):
        to_array(external("absent.bin"), tmp_path)


def test_data_files_of_a_model() -> None:
    model = onnx_messages.ModelProto()
    model.graph.initializer.extend([external("a", offset="4"), external("b", length="100"), external("a", offset="0")])
    assert data_files(model) == {"a": 12, "b": 100}


def test_it_stands_beside_onnx_in_either_order_and_needs_none() -> None:
    ours, theirs = "import olivelike.model.onnx_messages as ours", "import onnx"
    same = (
        "assert onnx.ModelProto(ir_version=8).SerializeToString() == ours.ModelProto(ir_version=8).SerializeToString()"
    )
    for imports in (f"{ours}; {theirs}", f"{theirs}; {ours}"):
        subprocess.run([sys.executable, "-c", f"{imports}; {same}"], check=True)
    subprocess.run([sys.executable, "-c", f"{ours}; import sys; assert 'onnx' not in sys.modules"], check=True)

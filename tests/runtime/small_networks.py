"""Networks of a few nodes, as files, written without `onnx`: what draws is tested where that is not installed."""

from __future__ import annotations

import ast
import re

import numpy as np

from olivelike.model.onnx_messages import TYPE_NAMES, ModelProto, from_array, make_node

LINEAR = """\
<ir_version: 8, opset_import: ["": 17]>
linear ({dtype}[rows, 3] x, {dtype}[4] shift) => ({dtype}[rows, 4] y, {dtype}[rows, 4] twice) {{
  product = MatMul(x, weight)
  scaled = Mul(product, factor)
  y = Add(scaled, shift)
  twice = Add(y, y)
}}
"""
"""`weight` lies in a data file, `factor` inside the model, where the optimiser would fold it."""

OUTER = """\
<ir_version: 8, opset_import: ["": 17]>
outer (float[n, 1] x) => (float[n] y) <int64[1] axis = {1}> {
  row = Transpose<perm = [1, 0]>(x)
  square = MatMul(x, row)
  y = ReduceSum<keepdims = 0>(square, axis)
}
"""
"""Needs memory of n² for inputs and outputs of n."""

PASSTHROUGH = """\
<ir_version: 8, opset_import: ["": 17]>
passthrough ({dtype}[n] x) => ({dtype}[n] y) {{ y = Identity(x) }}
"""

CONTRIB = """\
<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
contrib (float16[n, 8, 8, 4] x, float16[4, 3, 3, 4] w) => (float16[n, 6, 6, 4] y) {
  y = com.microsoft.NhwcConv(x, w)
}
"""
"""An operator that CUDA and DirectML have."""

FOREIGN = """\
<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
foreign (float[n] x) => (float[n] y) { y = my.domain.Sharpen(x) }
"""

TWICE = """\
<ir_version: 8, opset_import: ["": 17]>
twice (float[1, 3, h, w] x) => (float[1, 3, h2, w2] y) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
  y = Resize<mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">(x, , scales)
}
"""
"""Repeats each pixel, so that pictures are twice as large."""


def weights(dtype="float32"):
    """Return the initializers of `LINEAR`."""
    return {
        "weight": (np.arange(12, dtype=np.float32).reshape(3, 4) / 8).astype(dtype),
        "factor": np.array([2.0], dtype),
    }


def write_linear(folder, dtype="float32"):
    """Write `LINEAR` with its weights in `weights.pb`."""
    proto = parse_network(LINEAR.format(dtype={"float32": "float"}.get(dtype, dtype)))
    tensors = {name: from_array(array, name) for name, array in weights(dtype).items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.pb").write_bytes(tensors["weight"].raw_data)
    place = {"location": "weights.pb", "offset": "0", "length": str(len(tensors["weight"].raw_data))}
    tensors["weight"].ClearField("raw_data")
    tensors["weight"].data_location = tensors["weight"].EXTERNAL
    for key, value in place.items():
        tensors["weight"].external_data.add(key=key, value=value)
    proto.graph.initializer.extend(tensors.values())
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


def write_network(folder, text, initializers=None, **facts):
    """Write a network with values of its own alone; `facts` are fields of the model to set."""
    proto = parse_network(text)
    proto.graph.initializer.extend(from_array(array, name) for name, array in (initializers or {}).items())
    for name, value in facts.items():
        setattr(proto, name, value)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


_MODEL = re.compile(
    r"<ir_version: (?P<version>\d+), opset_import: \[(?P<opsets>.*?)\]>\s*(?P<name>\w+) \((?P<inputs>.*?)\) => "
    r"\((?P<outputs>.*?)\)\s*(<(?P<values>.*?)>\s*)?\{(?P<nodes>.*)\}\s*", re.DOTALL,
)  # fmt: skip
_VALUE = re.compile(r"(\w+)\[(.*?)\] (\w+)(?: = \{(.*?)\})?")
_NODE = re.compile(r"(\w+) = (?:([\w.]+)\.)?(\w+)(?:<(.*?)>)?\(([^)]*)\)")
_ATTRIBUTE = re.compile(r'(\w+) = (\[.*?\]|"[^"]*"|[\w.-]+)')


def parse_network(text):
    """Return the model that ONNX's text form tells of, as far as the networks here use it."""
    parts = _MODEL.fullmatch(text)
    model = ModelProto(ir_version=int(parts["version"]))
    for domain, version in re.findall(r'"(.*?)": ?(\d+)', parts["opsets"]):
        model.opset_import.add(domain=domain, version=int(version))
    model.graph.name = parts["name"]
    for values, place in ((parts["inputs"], model.graph.input), (parts["outputs"], model.graph.output)):
        for kind, dims, name, _ in _VALUE.findall(values):
            tensor = place.add(name=name).type.tensor_type
            tensor.elem_type = TYPE_NAMES.index(kind.upper())
            for size in dims.split(", "):
                tensor.shape.dim.add(**({"dim_value": int(size)} if size.isdigit() else {"dim_param": size}))
    for kind, _, name, numbers in _VALUE.findall(parts["values"] or ""):
        array = np.array(ast.literal_eval(f"[{numbers}]"), {"float": "float32"}.get(kind, kind))
        model.graph.initializer.append(from_array(array, name))
    for output, domain, operator, attributes, inputs in _NODE.findall(parts["nodes"]):
        given = {name: ast.literal_eval(value) for name, value in _ATTRIBUTE.findall(attributes)}
        texts = {name: given.pop(name) for name in [*given] if isinstance(given[name], str)}
        node = make_node(operator, inputs.split(", "), [output], domain, **given)
        for name, value in texts.items():
            node.attribute.add(name=name, type=3, s=value.encode())
        model.graph.node.append(node)
    return model


def zeros(*shape):
    """Return zeros in float32."""
    return np.zeros(shape, np.float32)


def ones(*shape):
    """Return ones in float32."""
    return np.ones(shape, np.float32)


def noise(*shape):
    """Return standard normal numbers in float32, other ones each time."""
    return _NUMBERS.standard_normal(shape, np.float32)


_NUMBERS = np.random.default_rng(0)

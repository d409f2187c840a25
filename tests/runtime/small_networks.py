"""Networks of a few nodes, as files."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

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
    proto = onnx.parser.parse_model(LINEAR.format(dtype={"float32": "float"}.get(dtype, dtype)))
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights(dtype).items())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.pb", size_threshold=45)
    return path


def write_network(folder, text, **facts):
    """Write a network without weights; `facts` are fields of the model to set."""
    proto = onnx.parser.parse_model(text)
    for name, value in facts.items():
        setattr(proto, name, value)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


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

"""Static quantisation of weightless graphs: what multiplies stands between QuantizeLinear and DequantizeLinear.

What they take is rounded within the range that calibration saw, and weights per channel; the numbers of a weight are an
`olivelike.QuantizeChannels` of it, which the writing of the output evaluates. Runtimes fuse what lies between into
operators of 8 bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import GraphEditor
from olivelike.graphs.editing.values import attribute, dims_of, fixed_dims, node_of, required, type_of
from olivelike.graphs.probes import attending, multiplying
from olivelike.model.graph import QUANTISE_DOMAIN, in_block
from olivelike.model.observations import Method, Observed
from olivelike.model.quantised_values import E4M3_MAX, QUANTISE_CHANNELS, ChannelFormat

ActivationType = Literal["uint8", "int8", "fp8"]
"""`uint8` has a zero point, `int8` and `fp8` (E4M3) are symmetric."""

_LEAST_OPSET = 19
"""First opset whose QuantizeLinear has scales in half precision, and float8."""
_LEAST_VALUES = 4096
"""A smaller weight costs no time."""
_LEAST_RANGE = 1e-6
_HEAD_MULTIPLE = 16
"""Widths of heads that TensorRT computes attention of 8 bits for."""
_LARGEST_BYTE = 255
_SHARES = (0.0, 1.0)
"""Between which a softmax lies."""
_SYMMETRIC: Mapping[str, tuple[float, type[np.generic]]] = {
    "int8": (127, np.int8), "fp8": (E4M3_MAX, ml_dtypes.float8_e4m3fn),
}  # fmt: skip


@dataclass(frozen=True)
class Rounding:
    """Type and method by which activations are rounded."""

    type: ActivationType
    method: Method = "min_max"
    percentile: float = 99.99
    outputs: bool = False
    """Round what convolutions give as well: ONNX Runtime's of 8 bits give nothing else."""


class StaticQuantisation:
    """One quantisation of one graph, in place."""

    def __init__(
        self,
        model: ir.Model,
        observed: Mapping[str, Observed],
        rounding: Rounding,
        *,
        convolutions: bool = True,
        linear: bool = True,
        attention: bool = False,
        float_blocks: Sequence[str] = (),
    ) -> None:
        """Set up.

        Args:
            model: Changed in place by `quantise`.
            observed: What calibration saw of each value that may be rounded, by name.
            rounding: Of activations; weights have the same type, `int8` for `uint8`.
            convolutions: Whether they are quantised.
            linear: Whether linear layers are.
            attention: Whether both products of attention are, where it is spelled out and heads are as wide as 16 or a
                multiple of it. Its shares, from 0 to 1, need no range.
            float_blocks: Paths of modules that stay as they are, with wildcards, and all inside them; of `=PATH` only
                what no module of a list inside it has.
        """
        self.model = model
        self._editor = GraphEditor(model)
        self._observed, self._rounding = observed, rounding
        self._kinds, self._attention = {"Conv": convolutions, "MatMul": linear, "Gemm": linear}, attention
        self._float_blocks = tuple(float_blocks)
        self._following: dict[ir.Node, ir.Node] = {}
        self._rounded: dict[ir.Value, ir.Value] = {}
        self._wide: dict[tuple[ir.Value, int], ir.Value] = {}
        self._counts: Counter[str] = Counter()

    def quantise(self) -> dict[str, int]:
        """Quantise the graph.

        Raises `PassError` when it is quantised already, of an opset that can't be, or calibration saw another graph.

        Returns:
            Counts for the run record: operators that were quantised, and those left as they were; both products of
            attention are one.
        """
        model = self.model
        if QUANTISE_DOMAIN in model.opset_imports:
            raise PassError("the graph is quantised already; keep one pass that quantises in this chain")
        if (opset := model.opset_imports.get("", 0)) < _LEAST_OPSET:
            raise PassError(
                f"the graph is of opset {opset}, and rounding to 8 bits needs {_LEAST_OPSET}; convert the "
                "checkpoint anew"
            )
        nodes = list(self._editor.graph)
        self._following = dict(pairwise(nodes))
        for node in list(multiplying(self._editor.graph, self._editor.weights)):
            if self._stays(node):
                self._counts["left_in_float"] += 1
                continue
            self._quantise(node)
            self._counts["quantised_convolutions" if node.op_type == "Conv" else "quantised_linear"] += 1
        for scores, mixed in list(attending(self._editor.graph, self._editor.weights)) if self._attention else ():
            self._attend(scores, mixed)
        if self._wide:
            model.opset_imports[QUANTISE_DOMAIN] = 1
        return dict(sorted(self._counts.items()))

    def _stays(self, node: ir.Node) -> bool:
        weight = required(node, 1)
        small = math.prod(fixed_dims(weight)) < _LEAST_VALUES
        return not self._kinds[node.op_type] or self._in_float(node) or small

    def _in_float(self, node: ir.Node) -> bool:
        return any(in_block(node, pattern) for pattern in self._float_blocks)

    def _attend(self, scores: ir.Node, mixed: ir.Node) -> None:
        """Round what both products of attention take, as TensorRT wants it to compute them in one kernel of 8 bits."""
        width = dims_of(required(scores, 0))[-1]
        if self._in_float(scores) or not isinstance(width, int) or width % _HEAD_MULTIPLE:
            self._counts["attention_left_in_float"] += 1
            return
        for node, index, limits in ((scores, 0, None), (scores, 1, None), (mixed, 0, _SHARES), (mixed, 1, None)):
            node.replace_input_with(index, self._round(required(node, index), node, limits))
        self._counts["quantised_attention"] += 1

    def _quantise(self, node: ir.Node) -> None:
        activation, weight, result = required(node, 0), required(node, 1), node.outputs[0]
        node.replace_input_with(0, self._round(activation, node))
        node.replace_input_with(1, self._widened(node, weight))
        if self._rounding.outputs and node.op_type == "Conv" and result.uses():
            users = [(use.node, use.idx) for use in result.uses()]
            wide = self._round(result, self._following[node])
            for user, index in users:
                user.replace_input_with(index, wide)

    def _round(self, value: ir.Value, before: ir.Node, limits: tuple[float, float] | None = None) -> ir.Value:
        """Return a value as it is behind rounding, which is done once for all who take it.

        `limits` are where a value lies that calibration need not look at.
        """
        producer = value.producer()
        if producer is not None and producer.op_type == "DequantizeLinear":
            return value
        if value not in self._rounded:
            scale, zero = self._parameters(value, limits or self._seen(value))
            number = self._editor.add(
                "QuantizeLinear", [value, scale, zero], dims_of(value), before=before,
                name=f"{value.name}.rounded", dtype=zero.dtype,
            )  # fmt: skip
            self._rounded[value] = self._editor.add(
                "DequantizeLinear", [number, scale, zero], dims_of(value), before=before,
                name=f"{value.name}.wide", dtype=value.dtype,
            )  # fmt: skip
        return self._rounded[value]

    def _seen(self, value: ir.Value) -> tuple[float, float]:
        """Return what of a value's range is kept."""
        if (seen := self._observed.get(str(value.name))) is None:
            raise PassError(f"calibration has not seen {value.name!r}; nothing may change the graph between both")
        return seen.range(self._rounding.method, self._rounding.percentile)

    def _parameters(self, value: ir.Value, limits: tuple[float, float]) -> tuple[ir.Value, ir.Value]:
        """Return scale and zero point of a value that lies within limits, as constants."""
        low, high = min(limits[0], 0.0), max(limits[1], 0.0)
        float_type = type_of(value).numpy()
        kind: type[np.generic]
        if self._rounding.type == "uint8":
            scale = max(high - low, _LEAST_RANGE) / _LARGEST_BYTE
            kind, zero = np.uint8, min(max(round(-low / scale), 0), _LARGEST_BYTE)
        else:
            most, kind = _SYMMETRIC[self._rounding.type]
            scale, zero = max(high, -low, _LEAST_RANGE) / most, 0
        return self._editor.constant(scale, float_type.type), self._editor.constant(zero, kind)

    def _widened(self, node: ir.Node, weight: ir.Value) -> ir.Value:
        """Return a weight as it is behind rounding: per channel of what the operator gives."""
        shape = fixed_dims(weight)
        first = node.op_type == "Conv" or bool(attribute(node, "transB", 0))
        axis = 0 if first else len(shape) - 1
        if (weight, axis) not in self._wide:
            form = ChannelFormat("fp8", None) if self._rounding.type == "fp8" else ChannelFormat("int8", axis)
            numbers = self._editor.add(
                QUANTISE_CHANNELS, [weight], shape, before=node, name=f"{weight.name}.{form.type}",
                domain=QUANTISE_DOMAIN, dtype=ir.DataType.from_numpy(form.dtype), attributes=form.attributes(),
            )  # fmt: skip
            scales = self._editor.value(f"{weight.name}.scales", form.scale_shape(shape), weight.dtype)
            maker = node_of(numbers)
            self._editor.add_outputs(maker, scales)
            self._editor.weights.update(maker.outputs)
            zeros = self._editor.constant([0] * shape[axis] if form.axis is not None else 0, form.dtype.type)
            self._wide[weight, axis] = self._editor.add(
                "DequantizeLinear", [numbers, maker.outputs[1], zeros], shape, before=node,
                name=f"{weight.name}.wide", dtype=weight.dtype,
                attributes={} if form.axis is None else {"axis": axis},
            )  # fmt: skip
        return self._wide[weight, axis]

"""Running an ONNX graph on the CPU, one operator at a time.

Each operator is a session of its own, without graph optimisations, so that every value between two operators is really
rounded to the type that the graph gives it: in half precision, what exceeds ±65,504 is infinite for the next one.
Over a whole graph, the CPU provider computes float16 operators in float32 and drops the casts between them, and the
overflow with them. It has no operators in bfloat16: those are computed in float32 on rounded operands, and rounded, as
processors with that type do. Weights are read when their operator runs, so memory stays flat in the size of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from olivelike.engine.output.derivation import derive
from olivelike.engine.output.expressions import Evaluator
from olivelike.errors import PassError
from olivelike.graphs.editing.values import constant_of, rank_of, type_of
from olivelike.graphs.functions import with_functions
from olivelike.model.graph import PARAMETER_KEY, weight_values
from olivelike.model.quantised_values import E4M3_MAX

Array = np.ndarray[Any, Any]
Observer = Callable[[ir.Node, Sequence[Array | None], Sequence[Array]], None]
"""Is told of each operator, its operands and its outputs."""

_BFLOAT16 = ir.DataType.BFLOAT16
_FLOAT8 = ir.DataType.FLOAT8E4M3FN
_HEAVY = frozenset({"Attention", "Conv", "Gemm", "MatMul", "MultiHeadAttention"})
"""Operators that are worth more than one thread."""


class Evaluation:
    """A graph that can be run; fused operators that the CPU lacks are replaced by what they mean."""

    def __init__(
        self,
        model: ir.Model,
        *,
        parameter: Callable[[str], Array] | None = None,
        initializer: Callable[[str], Array] | None = None,
    ) -> None:
        """Prepare a graph.

        Raises `PassError` when the graph has an operator with a graph inside, or one in a form whose meaning is not
        stated.

        Args:
            parameter: Returns the values of a parameter, where the graph is weightless.
            initializer: Returns the values of an initializer, where the model itself has none in memory.
        """
        self._model = with_functions(model)
        self._parameter, self._initializer = parameter, initializer
        graph = self._model.graph
        self._derived = weight_values(graph)
        self._nodes = [node for node in graph if node.outputs[0] not in self._derived]
        self._uses = Counter(value for node in self._nodes for value in node.inputs if value is not None)
        self._uses.update(graph.outputs)
        self._sessions: dict[tuple[bytes, tuple[int, ...]], onnxruntime.InferenceSession] = {}
        kinds = {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}
        for node in self._nodes:
            if any(attribute.type in kinds for attribute in node.attributes.values()):
                raise PassError(
                    f"{node.op_type} {node.name!r} has a graph inside, which can't be run one operator at a time; "
                    "leave `verify` out of this chain"
                )

    def run(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Return the outputs by name, in order.

        Args:
            feeds: Inputs by name; they are cast to the type that the graph takes.
            observe: Called after each operator.
        """
        graph = self._model.graph
        values: dict[ir.Value, Array] = {}
        for value in graph.inputs:
            if PARAMETER_KEY not in value.metadata_props:
                array = feeds[str(value.name)].astype(type_of(value).numpy(), copy=False)
                # A layout may have the timestep without a dimension.
                values[value] = array.reshape(()) if rank_of(value) == 0 else array
        left = Counter(self._uses)
        for node in self._nodes:
            values.update(zip(node.outputs, self._run_node(node, values, observe), strict=True))
            left.subtract(value for value in node.inputs if value is not None)
            for used in (*node.inputs, *node.outputs):
                if used is not None and not left[used]:
                    values.pop(used, None)
        return {str(value.name): values[value] for value in graph.outputs}

    def _run_node(self, node: ir.Node, values: Mapping[ir.Value, Array], observe: Observer | None) -> list[Array]:
        operands = [self._operand(value, values) for value in node.inputs]
        operands = [_in_whole_bytes(array) for array in operands]
        if any(value is not None and value.dtype == _BFLOAT16 for value in (*node.inputs, *node.outputs)):
            outputs = self._in_bfloat16(node, operands)
        else:
            outputs = self._run_operator(node, operands)
        if observe is not None:
            observe(node, operands, outputs)
        return outputs

    def _in_bfloat16(self, node: ir.Node, operands: Sequence[Array | None]) -> list[Array]:
        """Run an operator that takes or gives bfloat16, in float32."""
        wide = [
            None if array is None else array.astype(np.float32) if array.dtype == _BFLOAT16.numpy() else array
            for array in operands
        ]
        is_cast = node.op_type == "Cast" and node.outputs[0].dtype == _BFLOAT16
        outputs = [array for array in wide if array is not None] if is_cast else self._run_operator(node, wide)
        return [
            array.astype(_BFLOAT16.numpy()) if value.dtype == _BFLOAT16 else array
            for value, array in zip(node.outputs, outputs, strict=True)
        ]

    def _run_operator(self, node: ir.Node, operands: Sequence[Array | None]) -> list[Array]:
        if _FLOAT8 in {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}:
            return [_through_float8(node, operands)]
        feeds = {f"i{index}": array for index, array in enumerate(operands) if array is not None}
        outputs: list[Array] = self._session(node, operands).run(None, feeds)
        return outputs

    def _operand(self, value: ir.Value | None, values: Mapping[ir.Value, Array]) -> Array | None:
        if value is None or value in values:
            return None if value is None else values[value]
        if value in self._derived:
            assert self._parameter is not None
            opsets, version = self._model.opset_imports, self._model.ir_version
            return Evaluator(self._parameter, opsets, version, str(value.name)).evaluate(derive(value))
        if self._initializer is not None:
            return self._initializer(str(value.name))
        return constant_of(value).numpy()

    def _session(self, node: ir.Node, operands: Sequence[Array | None]) -> onnxruntime.InferenceSession:
        """Return the session of an operator; equal operators on equal types share one."""
        proto: onnx.NodeProto = ir.serde.serialize_node(node)  # `to_proto` tells its kind first: 8 times this.
        del proto.metadata_props[:], proto.input[:], proto.output[:]
        proto.name, proto.doc_string = "", ""
        proto.input.extend("" if array is None else f"i{index}" for index, array in enumerate(operands))
        proto.output.extend(f"o{index}" for index, _ in enumerate(node.outputs))
        types = tuple(
            0 if array is None else int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype)) for array in operands
        )
        key = proto.SerializeToString(deterministic=True), types
        if key not in self._sessions:
            self._sessions[key] = self._open(node, proto, types)
        return self._sessions[key]

    def _open(self, node: ir.Node, proto: onnx.NodeProto, types: Sequence[int]) -> onnxruntime.InferenceSession:
        inputs = [
            onnx.helper.make_tensor_value_info(f"i{index}", elem_type, None)
            for index, elem_type in enumerate(types)
            if elem_type
        ]
        outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output]
        function = self._model.functions.get(node.op_identifier())
        single = onnx.helper.make_model(
            onnx.helper.make_graph([proto], node.op_type, inputs, outputs),
            opset_imports=[onnx.helper.make_opsetid(*pair) for pair in self._model.opset_imports.items()],
            functions=[] if function is None else [ir.to_proto(function)],
            ir_version=self._model.ir_version,
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Each of many sessions would keep the largest weight that it ever cast.
        options.enable_cpu_mem_arena = False
        if function is None and node.op_type not in _HEAVY:
            options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(single.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _through_float8(node: ir.Node, operands: Sequence[Array | None]) -> Array:
    """Round to float8 or widen it, with one scale for all: sessions take and give no arrays of that type."""
    array, scale = operands[:2]
    assert array is not None
    assert scale is not None
    if node.op_type not in {"QuantizeLinear", "DequantizeLinear"} or scale.ndim:
        raise PassError(f"{node.op_type} {node.name!r} takes or gives float8, which only rounding with one scale may")
    if node.op_type == "DequantizeLinear":
        return (array.astype(np.float32) * scale.astype(np.float32)).astype(scale.dtype)
    wide = array.astype(np.float32) / scale.astype(np.float32)
    return np.clip(wide, -E4M3_MAX, E4M3_MAX).astype(_FLOAT8.numpy())


def _in_whole_bytes(array: Array | None) -> Array | None:
    """Return numbers of 4 bits as those of 8, which mean the same to DequantizeLinear; sessions take no others."""
    wider = {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}
    return (
        array
        if array is None
        else array.astype(wider.get(ir.DataType.from_numpy(array.dtype), array.dtype), copy=False)
    )

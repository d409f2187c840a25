"""Half precision for weightless graphs: float16, or bfloat16.

Each node runs in half precision if its operator has such a form, unless it is forced to float32 or belongs to a
sinusoidal embedding. Which operands must stay float32 is read from the operator schemas of `onnx`.
Parameters become `Cast` nodes over the parameter input, evaluated when the graph meets its weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from olivelike._text import did_you_mean
from olivelike._untrusted import Json
from olivelike.errors import PassError
from olivelike.graphs.editing.values import constant_of, node_of
from olivelike.graphs.wide_streams import WideStreams, widen_streams
from olivelike.model.graph import BLOCK_KEY, OPERATOR_KEY, PARAMETER_KEY, in_block, weight_values
from olivelike.model.guides import IMAGE_STRENGTH, STRENGTH
from olivelike.model.half_values import HALVES, to_half
from olivelike.model.targets import TARGETS, Target, float32_inputs

FLOAT = ir.DataType.FLOAT

_MOST = float(np.finfo(np.float16).max)
_SHAPE_READERS = frozenset({"Shape", "Size"})
_FLOAT_OUTPUTS = {"SkipLayerNormalization": (1, 2), "LayerNormalization": (1, 2)}
"""Outputs that are float32 in any precision: mean and inverse deviation."""
_GENERATORS = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"})


class HalfPrecision:
    """One conversion of one graph, in place."""

    def __init__(
        self,
        model: ir.Model,
        *,
        half: ir.DataType = ir.DataType.FLOAT16,
        keep_io: bool = False,
        forced_operators: Sequence[str] = (),
        forced_blocks: Sequence[str] = (),
        policy_operators: Sequence[str] = (),
        streams: Sequence[str] = (),
        target: Target | None = None,
    ) -> None:
        """Set up.

        Args:
            model: Converted in place by `convert`.
            half: One of `HALVES`.
            keep_io: Leave graph inputs and outputs in float32.
            forced_operators: Operator types that stay in float32.
            forced_blocks: Blocks that stay in float32, with wildcards and all that lies inside; `=NAME` is what
                `block_of` calls so alone.
            policy_operators: More operator types that stay in float32; they need not occur, nor exist.
            streams: Modules whose own sums leave float16's range, so that `widen_streams` has them in float32.
            target: Decides which inputs of fused operators stay float32, and which operators do in place of bfloat16.
        """
        self.model = model
        self._graph = model.graph
        self._half = half
        self._floats = frozenset({FLOAT, half})
        self._keep_io = keep_io
        self._asked = frozenset(forced_operators)
        self._forced_operators = self._asked | frozenset(policy_operators)
        self._forced_blocks = tuple(forced_blocks)
        self._streams = tuple(streams)
        self._wide = WideStreams()
        self._target = target
        self._casts: dict[tuple[int, ir.DataType], ir.Value] = {}
        self._weights = weight_values(model.graph)
        self._counts: Counter[str] = Counter()

    def convert(self) -> Json:
        """Convert the graph.

        Raises `PassError` when a forced operator or block does not exist, the type of a value is not known, or the
        graph is in the other half precision already.

        Returns:
            Counts for the run record: nodes in each precision, and constants that half precision can't hold.
        """
        self._check_names()
        self._infer_types()
        self._refuse_the_other_half()
        if self._half == ir.DataType.FLOAT16 and self._streams:
            self._wide = widen_streams(self._graph, self._streams, self._weights)
            self._counts["layers_on_a_part"] = self._wide.layers
        embedding = self._sinusoidal_nodes()
        self._convert_inputs(embedding)
        for node in list(self._graph):
            self._convert_node(node, node in embedding)
        self._convert_outputs()
        return dict(sorted(self._counts.items()))

    def _check_names(self) -> None:
        present = {node.op_type for node in self._graph}
        for name in sorted(self._asked - present):
            fused = any(name in target.kernels for target in TARGETS.values())
            if not fused and not onnx.defs.has(name):
                raise PassError(
                    f"force_fp32: the graph has no operator {name!r}; "
                    + did_you_mean(name, sorted(present), "operators")
                )
        blocks = {node.metadata_props.get(BLOCK_KEY, "") for node in self._graph} - {""}
        for pattern in self._forced_blocks:
            if not any(in_block(node, pattern) for node in self._graph if node.metadata_props.get(BLOCK_KEY)):
                raise PassError(
                    f"force_fp32_blocks: no block matches {pattern!r}; "
                    + did_you_mean(pattern, sorted(blocks), "blocks")
                )

    def _infer_types(self) -> None:
        """Fill in the types of values that a pass added without them."""

        def untyped() -> list[ir.Value]:
            values = (value for node in self._graph for value in node.outputs)
            return [value for value in values if value.dtype is None and (value.uses() or value.is_graph_output())]

        if untyped():
            ShapeInferencePass()(self.model)
        if left := untyped():
            raise PassError(
                f"the type of {left[0].name!r}, made by {node_of(left[0]).op_type}, is not known; "
                "the pass that added the node must set it"
            )

    def _refuse_the_other_half(self) -> None:
        found = {value.dtype for node in self._graph for value in node.outputs}
        for other in HALVES.keys() - {self._half}:
            if other in found:
                raise PassError(
                    f"the graph is in {ir.DataType(other).name.lower()} already; keep one of `float16` and `bfloat16` "
                    "in this chain"
                )

    def _sinusoidal_nodes(self) -> set[ir.Node]:
        """Return the nodes between an input and the sines of an embedding: timesteps lose too much in half."""
        found: set[ir.Node] = set()
        pending = [node for node in self._graph if node.op_type in {"Sin", "Cos"}]
        while pending:
            node = pending.pop()
            if node in found or all(value.dtype != FLOAT for value in node.outputs):
                continue
            found.add(node)
            producers = (value.producer() for value in node.inputs if value is not None)
            pending.extend(producer for producer in producers if producer is not None)
        return found

    def _convert_inputs(self, embedding: set[ir.Node]) -> None:
        for value in self._graph.inputs:
            if value.dtype != FLOAT or PARAMETER_KEY in value.metadata_props or self._keep_io:
                continue
            if value.name in (STRENGTH, IMAGE_STRENGTH):
                continue
            if any(node not in embedding for node, _ in value.uses()):
                value.dtype = self._half

    def _convert_node(self, node: ir.Node, in_embedding: bool) -> None:
        if node.op_type in _SHAPE_READERS or (
            node.op_type == "Cast" and node.attributes["to"].as_int() in self._floats
        ):
            return
        floats = [value for value in (*node.inputs, *node.outputs) if value is not None and value.dtype in self._floats]
        if not floats:
            return
        half = not in_embedding and not self._is_forced(node) and self._wants_half(node)
        wanted = self._half_operands(node) if half else frozenset()
        half = half and bool(wanted)
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype not in self._floats:
                continue
            dtype = self._half if half and index in wanted else FLOAT
            if value.dtype != dtype:
                node.replace_input_with(index, self._cast(value, dtype, node))
        for index, value in enumerate(node.outputs):
            if value.dtype in self._floats and index not in _FLOAT_OUTPUTS.get(node.op_type, ()):
                value.dtype = self._half if half else FLOAT
        self._counts[f"nodes_{HALVES[self._half] if half else 'fp32'}"] += 1

    def _half_operands(self, node: ir.Node) -> frozenset[int]:
        """Return the positions of inputs that may be half: by the operator's schema, or by the target's kernel."""
        positions = frozenset(range(len(node.inputs)))
        opset = self.model.opset_imports.get(node.domain, 1)
        if not onnx.defs.has(node.op_type, opset, node.domain):
            return positions - float32_inputs(self._target, node.op_type)
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        kind = f"tensor({self._half.name.lower()})"
        allowing = {c.type_param_str for c in schema.type_constraints if kind in c.allowed_type_strs}
        last = len(schema.inputs) - 1
        return frozenset(index for index in positions if schema.inputs[min(index, last)].type_str in allowing)

    def _is_forced(self, node: ir.Node) -> bool:
        operator = node.metadata_props.get(OPERATOR_KEY, node.op_type)
        if operator in self._forced_operators or node.op_type in _GENERATORS or node in self._wide.nodes:
            return True
        if self._half == ir.DataType.BFLOAT16 and self._target and not self._target.runs_bfloat16(node.op_type):
            return True
        if any(
            attribute.type in {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}
            for attribute in node.attributes.values()
        ):
            return True
        if _is_packed_attention(node):
            return False  # It has no float32 kernel; inside, every kernel accumulates in float32.
        return any(in_block(node, pattern) for pattern in self._forced_blocks)

    def _wants_half(self, node: ir.Node) -> bool:
        """Nodes over float32 values alone stay in float32: casting pays at the first parameter or half value."""
        return any(
            value.dtype == self._half or (value.dtype == FLOAT and value in self._weights)
            for value in node.inputs
            if value is not None
        )

    def _cast(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        key = (id(value), dtype)
        if key in self._casts:
            return self._casts[key]
        source = value.producer()
        if value.is_initializer():
            result = self._cast_constant(value, dtype)
        elif (
            source is not None
            and source.op_type == "Cast"
            and source.inputs[0] is not None
            and source.inputs[0].dtype == dtype
        ):
            result = source.inputs[0]
        else:
            if value in self._wide.values and dtype == self._half:
                value = self._clipped(value)
                source = node_of(value)
            node = ir.node("Cast", [value], {"to": int(dtype)}, name=f"{value.name}/{dtype.name.lower()}")
            node.metadata_props[BLOCK_KEY] = before.metadata_props.get(BLOCK_KEY, "")
            result = node.outputs[0]
            result.name = f"{value.name}.{dtype.name.lower()}"
            result.shape, result.dtype = value.shape, dtype
            if source is not None and source.graph is self._graph:
                self._graph.insert_after(source, node)
            else:
                self._graph.insert_before(self._graph[0], node)
        self._casts[key] = result
        if value in self._weights:
            self._weights.add(result)
        return result

    def _clipped(self, value: ir.Value) -> ir.Value:
        """Return a stream within float16's range, for what reads it as it is."""
        bounds = []
        for name, number in (("lowest", -_MOST), ("highest", _MOST)):
            if (known := self._graph.initializers.get(f"float16.{name}")) is None:
                known = ir.Value(name=f"float16.{name}", const_value=ir.Tensor(np.asarray(number, np.float32)))
                known.shape, known.dtype = ir.Shape([]), FLOAT
                self._graph.register_initializer(known)
            bounds.append(known)
        source = node_of(value)
        clip = ir.node("Clip", [value, *bounds], name=f"{value.name}/clipped")
        clip.metadata_props[BLOCK_KEY] = source.metadata_props.get(BLOCK_KEY, "")
        result = clip.outputs[0]
        result.name, result.shape, result.dtype = f"{value.name}.clipped", value.shape, FLOAT
        self._graph.insert_after(source, clip)
        self._counts["clipped"] += 1
        return result

    def _cast_constant(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        array = constant_of(value).numpy().astype(np.float32)
        lost: dict[str, int] = {}
        if dtype == self._half:
            array, lost = to_half(array, dtype)
        for kind, count in lost.items():
            self._counts[f"constants_{kind}"] += count
        name = f"{value.name}.{dtype.name.lower()}"
        result = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        result.shape, result.dtype = value.shape, dtype
        self._graph.register_initializer(result)
        return result

    def _convert_outputs(self) -> None:
        for index, value in enumerate(self._graph.outputs):
            wanted = FLOAT if self._keep_io else self._half
            if value.dtype not in self._floats or value.dtype == wanted:
                continue
            cast = self._cast(value, wanted, node_of(value))
            name = value.name
            value.name, cast.name = f"{name}.{value.dtype.name.lower()}", name
            self._graph.outputs[index] = cast


def _is_packed_attention(node: ir.Node) -> bool:
    return node.op_type == "MultiHeadAttention" and any(value is None for value in (*node.inputs, None, None)[1:3])

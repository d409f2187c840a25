"""Changing a weightless graph: new nodes with names, types, shapes and blocks; dead ones removed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from olivelike.graphs.editing.values import Attributes, Dims, dims_of
from olivelike.model.graph import BLOCK_KEY, is_barrier, weight_values

CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's fused operators."""


def remove_unused(graph: ir.Graph, is_kept: Callable[[ir.Value], bool]) -> None:
    """Remove nodes and initializers that no output needs, and inputs that nothing uses but for those that are kept."""
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
    inputs = [value for value in graph.inputs if value.uses() or is_kept(value)]
    graph.inputs.clear()
    graph.inputs.extend(inputs)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]


def _typed(attributes: Attributes) -> Attributes:
    """Return attributes in which lists of whole numbers have their type.

    `onnx_ir` tells the type of a list after it has asked for three protocols, which takes most of making a node.
    """
    return {
        name: ir.AttrInt64s(name, value)
        if isinstance(value, list | tuple) and all(isinstance(one, int) for one in value)
        else value
        for name, value in attributes.items()
    }


class GraphEditor:
    """One graph being rewritten; names, types, shapes, blocks and the set of weights are kept right.

    Public: `olivelike.pass_api.GraphEditor`, described in `docs/passes.md`.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.weights = weight_values(model.graph)
        """Values that derive from parameters alone; kept up to date as nodes are added."""
        self._names = {value.name for value in (*self.graph.inputs, *self.graph.initializers.values())}
        self._names.update(value.name for node in self.graph for value in node.outputs)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}

    def nodes(self, *op_types: str, domain: str = "") -> list[ir.Node]:
        """Return the nodes of these types, in order; rewriting while walking the list is safe."""
        return [node for node in self.graph if node.op_type in op_types and node.domain == domain]

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        shape: Dims,
        *,
        before: ir.Node,
        name: str,
        attributes: Attributes | None = None,
        domain: str = "",
        dtype: ir.DataType | None = None,
        block: str | None = None,
    ) -> ir.Value:
        """Insert a node with one output in front of `before`.

        Returns the output.

        Args:
            inputs: Its inputs; `None` for an absent optional one.
            before: Where to insert; also gives the block unless `block` does.
            name: Wanted name of the output; a number is added if it is taken.
            attributes: As `onnx_ir.node` takes them.
            dtype: Type of the output; that of the first input by default.
            block: Module that the node is from.
        """
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        known = next(value for value in trimmed if value is not None).dtype if dtype is None else dtype
        output = self.value(name, shape, known)
        node = ir.node(op_type, trimmed, _typed(attributes or {}), domain=domain, outputs=[output], name=output.name)
        self._place(node, before, block)
        return output

    def add_outputs(self, node: ir.Node, *outputs: ir.Value | None) -> None:
        """Give a node that has one output more of them; `None` leaves a gap."""
        for index, value in enumerate(outputs, start=1):
            node.resize_outputs(index + 1)
            fresh = node.outputs[index]
            if value is None:
                fresh.name = ""
                continue
            fresh.name, fresh.shape, fresh.type = value.name, value.shape, value.type

    def value(self, name: str, shape: Dims, dtype: ir.DataType | None) -> ir.Value:
        """Return a new value with a free name."""
        free, number = name, 1
        while free in self._names:
            number += 1
            free = f"{name}.{number}"
        self._names.add(free)
        return ir.Value(name=free, shape=ir.Shape(list(shape)), type=None if dtype is None else ir.TensorType(dtype))

    def constant(self, values: Sequence[int] | Sequence[float] | float, dtype: type[np.generic]) -> ir.Value:
        """Return an initializer with these values; equal constants are one."""
        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        known = self._constants.get(key)
        # What nothing used is gone where the graph was cleaned up.
        if known is None or known not in self.graph.initializers.values():
            fresh = self.value("constant", array.shape, ir.DataType.from_numpy(array.dtype))
            fresh.const_value = ir.Tensor(array, name=fresh.name)
            self.graph.register_initializer(fresh)
            self._constants[key] = fresh
        return self._constants[key]

    def shape_constant(self, *sizes: int) -> ir.Value:
        """Return whole numbers as a constant: a shape (0 copies a dimension, -1 is what is left), or axes."""
        return self.constant(sizes, np.int64)

    def transpose(self, value: ir.Value, perm: Sequence[int], *, before: ir.Node, name: str = "") -> ir.Value:
        """Insert a Transpose of `value`."""
        dims = dims_of(value)
        shape = tuple(dims[axis] for axis in perm)
        return self.add(
            "Transpose", [value], shape, before=before, attributes={"perm": list(perm)},
            name=name or f"{value.name}.transposed", block=_block_of(value),
        )  # fmt: skip

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let `new` take the place of `old` everywhere; a graph output keeps its name."""
        if old.is_graph_output():
            name = old.name
            old.name = f"{name}.replaced"
            new.name = name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        producer = old.producer()
        if producer is not None:
            self.prune(producer)

    def prune(self, node: ir.Node) -> None:
        """Remove a node that nothing uses, and what only it used."""
        pending = [node]
        while pending:
            candidate = pending.pop()
            if candidate.graph is None or any(v.uses() or v.is_graph_output() for v in candidate.outputs):
                continue
            sources = [value.producer() for value in candidate.inputs if value is not None]
            self.weights.difference_update(candidate.outputs)
            self.graph.remove(candidate, safe=True)
            pending.extend(source for source in sources if source is not None)

    def import_contrib(self) -> None:
        """Declare ONNX Runtime's domain if a node is of it."""
        used = any(node.domain == CONTRIB for node in self.graph)
        if used:
            self.model.opset_imports[CONTRIB] = 1
        else:
            self.model.opset_imports.pop(CONTRIB, None)

    def _place(self, node: ir.Node, before: ir.Node, block: str | None) -> None:
        wanted = before.metadata_props.get(BLOCK_KEY, "") if block is None else block
        if wanted:
            node.metadata_props[BLOCK_KEY] = wanted
        self.graph.insert_before(before, node)
        operands = [value for value in node.inputs if value is not None]
        derived = [value in self.weights for value in operands]
        known = all(flag or value.is_initializer() for flag, value in zip(derived, operands, strict=True))
        if known and any(derived) and not is_barrier(node):
            self.weights.update(node.outputs)


def _block_of(value: ir.Value) -> str | None:
    producer = value.producer()
    return None if producer is None else producer.metadata_props.get(BLOCK_KEY, "")

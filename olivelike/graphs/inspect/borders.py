"""Networks inside one graph: where each begins and ends, and how it is taken out again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

COMPONENTS_KEY: Final = "olivelike.components"
"""Metadata key of a model that holds networks; its value tells the border of each."""

_TYPES: Final = {
    dtype.name: dtype
    for dtype in (
        ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT32, ir.DataType.INT64,
        ir.DataType.BOOL, ir.DataType.STRING,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Border:
    """An input or output of a network inside a larger graph."""

    name: str
    """Name that the network itself has for it."""
    value: str
    """The value in the larger graph."""
    dtype: str
    dims: tuple[int | str | None, ...]


def write_borders(model: ir.Model, networks: Mapping[str, Mapping[str, Sequence[Border]]]) -> None:
    """Note in a model's metadata which networks it holds, each with its `inputs` and `outputs`."""
    content = {
        component: {
            side: [[one.name, one.value, one.dtype, list(one.dims)] for one in borders]
            for side, borders in sides.items()
        }
        for component, sides in networks.items()
    }
    model.metadata_props[COMPONENTS_KEY] = json.dumps(content)


def read_borders(metadata: Mapping[str, str]) -> dict[str, dict[str, list[Border]]]:
    """Return by component its inputs and outputs, as a model's metadata tells them; empty for other models.

    Raises `ValueError` if the entry is damaged.
    """
    try:
        content = json.loads(metadata.get(COMPONENTS_KEY, "{}"))
        return {
            component: {
                side: [Border(name, value, dtype, tuple(dims)) for name, value, dtype, dims in sides[side]]
                for side in ("inputs", "outputs")
            }
            for component, sides in content.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its metadata {COMPONENTS_KEY} is damaged: {error!r}") from error


def take_out(model: ir.Model, component: str) -> ir.Model:
    """Return a model of one network of another that holds several; the other one is emptied.

    Raises `ValueError` if it holds no such network, or is damaged.
    """
    borders = read_borders(model.metadata_props).get(component)
    if borders is None:
        raise ValueError(f"it holds no network {component}")
    prefix = f"{component}/"
    nodes = [node for node in RecursiveGraphIterator(model.graph) if (node.name or "").startswith(prefix)]
    values = {value.name: value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None}
    if any(one.value not in values or one.dtype not in _TYPES for side in borders.values() for one in side):
        raise ValueError(f"{component} has another border than its metadata tells")
    inputs = []
    for one in borders["inputs"]:
        fresh = ir.Value(name=one.name, shape=ir.Shape(list(one.dims)), type=ir.TensorType(_TYPES[one.dtype]))
        for node in nodes:
            for index, value in enumerate(node.inputs):
                if value is values[one.value]:
                    node.replace_input_with(index, fresh)
        inputs.append(fresh)
    made = {output for node in nodes for output in node.outputs}
    constants = {value for node in nodes for value in node.inputs if value is not None and value.is_initializer()}
    if odd := {
        value.name
        for node in nodes
        for value in node.inputs
        if value is not None and value not in {*made, *constants, *inputs}
    }:
        raise ValueError(f"{component} takes {', '.join(sorted(map(str, odd)))} of other networks")
    for node in nodes:
        assert node.graph is not None
        node.graph.remove(node)
    outputs = []
    for one in borders["outputs"]:
        values[one.value].name = one.name
        outputs.append(values[one.value])
    for value in constants:
        assert value.graph is not None
        del value.graph.initializers[value.name or ""]
    graph = ir.Graph(
        inputs, outputs, nodes=nodes, initializers=sorted(constants, key=lambda value: value.name or ""),
        opset_imports=dict(model.opset_imports), name=component,
    )  # fmt: skip
    return ir.Model(graph, ir_version=model.ir_version, producer_name=model.producer_name)

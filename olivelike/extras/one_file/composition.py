"""Graphs of networks inside one graph: their names behind a prefix, their weights in the outermost one.

What a network in a loop computes of nothing that changes from step to step is computed once, in front of the loop.
Derived weights are of that kind, so `materialize` finds them where it looks, and runtimes load each weight once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import remove_unused
from olivelike.graphs.editing.values import renamed, type_of
from olivelike.graphs.inspect.borders import Border
from olivelike.model.graph import PARAMETER_KEY, real_inputs

if TYPE_CHECKING:
    from olivelike.graphs.editing.arithmetic import Number, Writer


class Network:
    """A component's finished graph, about to be put into a larger one."""

    def __init__(self, component: str, model: ir.Model) -> None:
        """Take a model, which is emptied."""
        self.component, self.model = component, model
        self.inputs: dict[str, ir.Value] = {value.name or "": value for value in real_inputs(model.graph)}
        self.outputs: dict[str, ir.Value] = {value.name or "": value for value in model.graph.outputs}
        self.borders: dict[str, list[Border]] = {}

    def dtype(self, name: str) -> ir.DataType:
        """Return the type of an input or output."""
        return type_of({**self.outputs, **self.inputs}[name])

    def place(
        self, given: Mapping[str, Number], wanted: Sequence[str], writer: Writer, outer: Writer | None = None
    ) -> list[Number]:
        """Put the network's nodes behind those that were written, and return the outputs that are wanted.

        Raises `PassError` if the network has other inputs, or lacks an output.

        Args:
            given: What each of its inputs takes.
            wanted: Names of outputs; what leads to others alone is left out.
            writer: Of the graph where it goes.
            outer: Of the graph around that, if it is a loop's body; there goes what no step changes.
        """
        if missing := [name for name in wanted if name not in self.outputs]:
            raise PassError(
                f"layout single: the graph of {self.component} has no output {missing[0]!r}; it has "
                f"{', '.join(self.outputs)}; export it anew with `convert`"
            )
        if self.inputs.keys() != given.keys():
            odd = sorted(self.inputs.keys() ^ given.keys())
            raise PassError(
                f"layout single: the inputs of {self.component} are {', '.join(self.inputs)}, and one file feeds "
                f"{', '.join(given)}; {', '.join(odd)} can't be fed: take another layout"
            )
        graph = self.model.graph
        root = outer or writer
        changing = {value for name, value in self.inputs.items() if given[name].value.graph is writer.graph and outer}
        results = [self.outputs[name] for name in wanted]
        graph.outputs.clear()
        graph.outputs.extend(results)
        remove_unused(graph, lambda value: PARAMETER_KEY not in value.metadata_props)
        taken = [name for name, value in self.inputs.items() if value.uses()]
        inputs = [
            Border(name, given[name].value.name or "", self.dtype(name).name, _dims(self.inputs[name]))
            for name in taken
        ]
        self._prefix(graph)
        for value in list(graph.initializers.values()):
            del graph.initializers[value.name or ""]
            root.graph.register_initializer(value)
        parameters = [value for value in graph.inputs if PARAMETER_KEY in value.metadata_props]
        graph.inputs.clear()
        graph.outputs.clear()
        root.graph.inputs.extend(parameters)
        for name, value in self.inputs.items():
            ir.convenience.replace_all_uses_with(value, given[name].value)
        moving = {given[name].value for name, value in self.inputs.items() if value in changing}
        for node in list(graph):
            operands = [value for value in node.inputs if value is not None]
            stays = any(value in moving for value in operands) or _has_body(node)
            graph.remove(node)
            if stays and outer is not None:
                moving.update(node.outputs)
            (writer if stays or outer is None else root).graph.append(node)
        self.borders = {
            "inputs": inputs,
            "outputs": [
                Border(name, value.name or "", self.dtype(name).name, _dims(value))
                for name, value in zip(wanted, results, strict=True)
            ],
        }
        return [writer.here(value) for value in results]

    def _prefix(self, graph: ir.Graph) -> None:
        """Put the component's name before all names, those of parameters and sizes included."""
        prefix = f"{self.component}/"
        dims: dict[str, str] = {}
        for value in _values(graph):
            if not value.name:
                continue
            if value.is_initializer():  # Registered by name.
                del graph.initializers[value.name]
                value.name = prefix + value.name
                if value.const_value is not None:
                    value.const_value.name = value.name
                graph.register_initializer(value)
            else:
                value.name = prefix + value.name
            if (parameter := value.metadata_props.get(PARAMETER_KEY)) is not None:
                value.metadata_props[PARAMETER_KEY] = prefix + parameter
            if value.shape is not None and self.component.endswith("_2"):  # Two text encoders have the same names.
                dims |= {name: f"{name}_2" for dim in value.shape for name in _names(dim) if not name.endswith("_2")}
                value.shape = ir.Shape([dim if isinstance(dim, int) else _renamed(dim, dims) for dim in value.shape])
        for number, node in enumerate(RecursiveGraphIterator(graph)):
            node.name = prefix + (node.name or f"{node.op_type}.{number}")


def _names(dim: int | ir.SymbolicDim) -> list[str]:
    return [] if isinstance(dim, int) or dim.value is None else re.findall(r"[A-Za-z_]\w*", dim.value)


def _renamed(dim: ir.SymbolicDim, names: Mapping[str, str]) -> str | None:
    return None if dim.value is None else renamed(dim.value, dict(names))


def _has_body(node: ir.Node) -> bool:
    return any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())


def _dims(value: ir.Value) -> tuple[int | str | None, ...]:
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape or ())


def _values(graph: ir.Graph) -> list[ir.Value]:
    found = dict.fromkeys([*graph.inputs, *graph.initializers.values()])
    for node in RecursiveGraphIterator(graph):
        found |= dict.fromkeys(node.outputs)
    return list(found)

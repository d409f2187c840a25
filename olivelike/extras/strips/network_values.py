"""A network's graph by its values: what makes each, which type it has, and what constants hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from olivelike.model.onnx_messages import NodeProto, TensorProto, attribute, from_array, load_model, to_array
from olivelike.runtime.pipeline.strips import CutError

Array = np.ndarray[Any, Any]

CONVOLUTIONS: Final = frozenset({"Conv", "NhwcConv"})


class NetworkValues:
    """A graph whose values may be made in another way than the file says."""

    def __init__(self, path: Path, given: Mapping[str, Array]) -> None:
        """Read a graph; weights that are in a data file stay there.

        Args:
            path: An ONNX file.
            given: Arrays in place of its initializers.
        """
        self.proto = load_model(path)
        graph = self.proto.graph
        self.tensors: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        """Initializers, by name."""
        self.makers: dict[str, NodeProto] = {name: node for node in graph.node for name in node.output if name}
        """The node that makes each value."""
        self.elements: dict[str, int] = {
            value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)
        }
        """ONNX types of values, where the file says so."""
        self._folder = path.parent
        self._given = given
        self._users: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            if any(one.HasField("g") or one.graphs for one in node.attribute):
                raise CutError(f"it has {node.op_type} with a graph of its own")
            for name in node.input:
                self._users.setdefault(name, []).append(node)

    def element(self, name: str) -> int:
        """Return the ONNX type of a value: what the file says, or that of what it is made of."""
        if name in self.tensors:
            return int(self.tensors[name].data_type)
        if known := self.elements.get(name):
            return known
        node = self.makers[name]
        if node.op_type == "Cast":
            return int(attribute(node, "to"))
        return self.element(node.input[1 if node.op_type in CONVOLUTIONS else 0])

    def maker(self, name: str) -> str:
        """Return which operator makes a value; nothing for inputs and initializers."""
        return self.makers[name].op_type if name in self.makers else ""

    def only_user(self, node: NodeProto) -> NodeProto | None:
        """Return the node that alone uses the first output of a node."""
        users = self._users.get(node.output[0], [])
        return users[0] if len(users) == 1 else None

    def array(self, name: str) -> Array | None:
        """Return the values of a constant; `None` if it is none."""
        if name in self.tensors:
            return self._read(name)
        if self.maker(name) == "Constant" and (value := attribute(self.makers[name], "value")) is not None:
            return to_array(value)
        return None

    def vector(self, name: str) -> Array:
        """Return the values of a constant in one dimension, float32. Raises `CutError` if it is none."""
        array = self.array(name)
        if array is None:
            raise CutError(f"a normalisation takes {name}, which is no constant")
        return array.astype(np.float32).reshape(-1)

    def tensor(self, name: str) -> TensorProto:
        """Return an initializer with its values inside."""
        if name in self._given:
            return from_array(self._given[name], name)
        tensor = self.tensors[name]
        return from_array(self._read(name), name) if tensor.data_location == tensor.EXTERNAL else tensor

    def _read(self, name: str) -> Array:
        return self._given[name] if name in self._given else to_array(self.tensors[name], self._folder)

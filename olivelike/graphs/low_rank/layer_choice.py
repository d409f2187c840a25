"""Which layers of a written graph take the factors of LoRAs, and the mark of a graph that is to have such a one."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from olivelike.graphs.editing.editor import CONTRIB
from olivelike.graphs.low_rank.layer_factors import CONVOLUTIONS, MATRIX

if TYPE_CHECKING:
    import onnx_ir as ir

MARK: Final = "olivelike.lora_inputs"
"""Metadata key of a graph that is to have such a one beside it; its value is a `Choice`, as JSON."""
_PRODUCTS: Final = frozenset({
    ("", "MatMul"), ("", "Gemm"), ("", "Conv"), (CONTRIB, "MatMulNBits"), (CONTRIB, "NhwcConv"), (CONTRIB, "Attention"),
})  # fmt: skip
"""Operators that multiply what they take first by a weight that they take second."""
_FILTERS: Final = 4
"""Axes of a convolution's weight."""


@dataclass(frozen=True)
class LowRankLayer:
    """A weight of a graph whose products can take factors."""

    initializer: str
    """Its name; of one in several parts, that of the first."""
    nodes: tuple[ir.Node, ...]
    """Products by it, in order; most have one."""


@dataclass(frozen=True)
class Choice:
    """What a graph takes LoRAs for."""

    slots: int
    """LoRAs at once."""
    layers: tuple[str, ...] = ("*",)
    """Patterns of names of parameters, as `fnmatch` knows them; a layer is taken if one of its parameters fits one."""
    convolutions: str = "points"
    """Which take factors: `none`, `points` (of one pixel), `all`."""
    defaults: bool = True
    """Whether inputs have values of their own."""

    def takes(self, parameters: Sequence[tuple[str, Sequence[int]]]) -> bool:
        """Tell whether the layer of a weight takes factors, by the parameters of the weight and their shapes."""
        fits = any(fnmatch.fnmatchcase(one, pattern) for one, _ in parameters for pattern in self.layers)
        if len(parameters[0][1]) == MATRIX or self.convolutions == "all":
            return fits
        return fits and self.convolutions == "points" and tuple(parameters[0][1][2:]) == (1, 1)


def mark(model: ir.Model, choice: Choice) -> None:
    """Have a graph whose layers take factors written beside this one."""
    model.metadata_props[MARK] = json.dumps(astuple(choice))


def take_mark(model: ir.Model) -> Choice | None:
    """Take the mark off a graph, in place, and return what it says; `None` if it has none."""
    words = model.metadata_props.pop(MARK, None)
    if words is None:
        return None
    slots, layers, *rest = json.loads(words)
    return Choice(slots, tuple(layers), *rest)


def low_rank_layers(
    model: ir.Model, made_of: Mapping[str, Sequence[tuple[str, Sequence[int]]]], choice: Choice
) -> list[LowRankLayer]:
    """Return the layers of a written graph that can take factors, in order.

    None makes an output of the network, and none has a weight that does more than multiply.

    Args:
        model: Weights are initializers in it.
        made_of: Per initializer, name and shape of each parameter that it was derived from.
        choice: Says which.
    """
    found: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        name = _weight_of(node, made_of)
        if name is None or any(output.is_graph_output() for output in node.outputs):
            continue
        if choice.takes(made_of[name]):
            found.setdefault(name, []).append(node)
    return [
        LowRankLayer(name, tuple(nodes))
        for name, nodes in found.items()
        if set(nodes) >= set(_users(model.graph.initializers[name]))
    ]


def _users(constant: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that take a constant, or what is computed of constants alone, beside other things."""
    for user, _ in constant.uses():
        if _sources(user.outputs[0]):
            yield from _users(user.outputs[0])
        else:
            yield user


def _weight_of(node: ir.Node, made_of: Mapping[str, Sequence[tuple[str, Sequence[int]]]]) -> str | None:
    """Return the initializer that a node multiplies by, if that is a matrix, or a convolution's filters."""
    weight = node.inputs[1] if (node.domain, node.op_type) in _PRODUCTS and len(node.inputs) > 1 else None
    if weight is None:
        return None
    is_convolution = node.op_type in CONVOLUTIONS
    if is_convolution and "group" in node.attributes and node.attributes["group"].as_int() != 1:
        return None
    name = next((one for one in _sources(weight) if one in made_of), None)
    fits = name is not None and all(
        len(shape) == (_FILTERS if is_convolution else MATRIX) for _, shape in made_of[name]
    )
    return name if fits and not (is_convolution and len(made_of[str(name)]) > 1) else None


def _sources(value: ir.Value) -> list[str]:
    """Return the initializers that a constant value is computed from, and none for one that depends on inputs."""
    pending, names = [value], list[str]()
    while pending:
        one = pending.pop()
        if one.is_graph_input():
            return []
        if one.is_initializer():
            names.append(str(one.name))
        elif (node := one.producer()) is not None:
            pending.extend(operand for operand in reversed(node.inputs) if operand is not None)
    return names

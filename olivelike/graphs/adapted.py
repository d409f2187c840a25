"""A UNet that T2I-Adapters lead (https://arxiv.org/abs/2302.08453): their features are inputs of its graph.

They are added where `olivelike.model.adapter_features` says, to what goes further down as well as to what goes up: in
the graph which `materialize` has just written, as ControlNets' residuals are (`olivelike.graphs.controlled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import PassError
from olivelike.graphs.controlled import TO_CHANNELS_LAST, add_input, append_inputs, channels_axis
from olivelike.graphs.shallow import joints_of
from olivelike.model.adapter_features import MIDDLE, Feature
from olivelike.model.families import adapter_feature

if TYPE_CHECKING:
    import onnx_ir as ir

_MARK: Final = "olivelike.t2i_adapter_inputs"
"""Metadata key of a model that is to have such a graph beside it; its value is the connections' numbers."""
_CHANNELS_LAST: Final = 3
_TO_CHANNELS_FIRST: Final = (0, 3, 1, 2)
_NORMALISES_SUM: Final = "SkipGroupNorm"
"""An operator that gives a sum beside what it makes of it."""


def mark_adapted(model: ir.Model, features: Sequence[Feature], *, on_cpu: bool) -> dict[str, int]:
    """Have a graph with inputs for these features written beside a UNet's; return how many inputs and operators it has.

    `on_cpu` says that ONNX Runtime's CPU provider runs it. Raises `PassError` if the graph has not the connections that
    features are added to.
    """
    joints = len(joints_of(model.graph))
    if not joints or max(feature.connection for feature in features) >= joints:
        raise PassError(
            f"t2i_adapter_inputs: the graph has {joints} connections from its way down to its way up, and its config "
            "says more; it is no UNet, or one of another config"
        )
    before = len(model.graph.inputs)
    places = Places(tuple(feature.connection for feature in features), on_cpu)
    adapted = add_feature_inputs(model.clone(), places)
    model.metadata_props[_MARK] = places.text()
    return {"inputs": len(adapted.graph.inputs) - before, "adapted_operators": len(adapted.graph)}


def unmark_adapted(model: ir.Model) -> Places | None:
    """Have no such graph written, for clients that feed no features; return what there was to be."""
    text = model.metadata_props.pop(_MARK, None)
    return None if text is None else Places.of(text)


@dataclass(frozen=True)
class Places:
    """Where features are added."""

    connections: tuple[int, ...]
    """Numbers of connections, or `MIDDLE`."""
    on_cpu: bool
    """Whether ONNX Runtime's CPU provider runs the graph."""

    def text(self) -> str:
        """Return it as a mark has it."""
        return " ".join([*map(str, self.connections), *(["cpu"] if self.on_cpu else [])])

    @classmethod
    def of(cls, text: str) -> Places:
        """Read what `text` returned."""
        words = text.split()
        return cls(tuple(int(word) for word in words if word != "cpu"), "cpu" in words)


def add_feature_inputs(model: ir.Model, places: Places) -> ir.Model:
    """Give a UNet's graph, in place, an input for each feature, behind its other inputs, and return it.

    Inputs are (batch, channels, height, width), of the type of `sample`.
    """
    graph = model.graph
    joints = joints_of(graph)
    added = []
    for number, place in enumerate(places.connections):
        joint = joints[0] if place == MIDDLE else joints[-1 - place]
        name = adapter_feature(number)
        added.append(_add(graph, joint, 0 if place == MIDDLE else 1, name, in_blocks=places.on_cpu))
    append_inputs(graph, added)
    return model


def _add(graph: ir.Graph, joint: ir.Node, place: int, name: str, *, in_blocks: bool) -> ir.Value:
    """Add features to what comes in at a joint, there and wherever else it is used; return the input."""
    features, axis = _source(joint.inputs[place], channels_axis(joint))
    node = features.producer()
    if node is not None and node.op_type == _NORMALISES_SUM:
        # The sum is used inside, too: the features join what is summed, which is in NHWC.
        summand = node.inputs[0]
        assert summand is not None
        fed, total = add_input(graph, node, summand, _CHANNELS_LAST, name)
        node.replace_input_with(0, total)
        return fed
    users = features.uses()
    first = next(node for node in graph if any(user is node for user, _ in users))
    fed, total = add_input(graph, first, features, axis, name, in_blocks=in_blocks)
    for user, index in users:
        user.replace_input_with(index, total)
    return fed


def _source(value: ir.Value | None, axis: int) -> tuple[ir.Value, int]:
    """Return a value before changes of layout and type, and the axis of its channels there."""
    assert value is not None
    node = value.producer()
    while node is not None and node.op_type in ("Cast", "Identity", "Transpose"):
        if node.op_type == "Transpose":
            order = tuple(node.attributes["perm"].as_ints())
            if order != (TO_CHANNELS_LAST if axis == _CHANNELS_LAST else _TO_CHANNELS_FIRST):
                break
            axis = 1 if axis == _CHANNELS_LAST else _CHANNELS_LAST
        assert node.inputs[0] is not None
        value = node.inputs[0]
        node = value.producer()
    return value, axis

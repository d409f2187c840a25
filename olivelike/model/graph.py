"""The graph facet: an ONNX model without weight bytes.

Parameters are graph inputs behind the real ones. Each is marked in its `metadata_props` with the parameter
that it stands for, under the key `olivelike.parameter`. A derived weight (a transpose, a concatenation, a cast)
is ordinary nodes. So the file is valid ONNX at every step and runs when weights are fed as inputs.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from olivelike.digest import digest_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

PARAMETER_KEY = "olivelike.parameter"
"""Metadata key of a graph input that stands for a parameter; its value is the parameter's name."""

BLOCK_KEY = "olivelike.block"
"""Metadata key of a node: dotted path of the module that it comes from, such as `down_blocks.0.resnets.1`."""

OPERATOR_KEY = "olivelike.operator"
"""Metadata key of a node that spells out a part of an operator that stays in float32; its value is that operator."""

FACTOR_KEY = "olivelike.pixels_per_latent"
"""Metadata key of a pipeline in one file: how many pixels a latent is, along a side."""

SIZE_KEY = "olivelike.size"
"""Metadata key of a pipeline in one file: width and height in pixels that its UNet was trained on, as `512x512`."""

BARRIERS = frozenset(
    {
        ("", "DequantizeLinear"),
        ("com.microsoft", "DequantizeLinear"),
        ("com.microsoft", "DequantizeBFP"),
        ("com.microsoft", "DequantizeWithOrder"),
    }
)
"""Operators, as (domain, type), that belong to the graph that runs even where all they take is weights.

They make large values of small ones: folded into the weights, a quantised weight would be a float one again. So their
inputs are written as they are, and what follows them is no weight. Operators that make small values of large ones, such
as `QuantizeLinear` and `DynamicQuantizeLinear`, are evaluated like all others; those that compute on quantised weights,
such as `MatMulNBits`, take an activation, and thus are never weights."""

QUANTISE_DOMAIN = "olivelike"
"""Domain of operators that derive numbers, scales and what else there is of a quantised weight; no written file has it.
What reads such parts is a barrier too."""

_MEMBER = re.compile(r".*s\.\d+(?=\.|$)")
"""Up to the innermost member of a list of modules; such lists have names in the plural, unlike `to_out` and `net`."""


@dataclass(frozen=True)
class Graph:
    """A serialised weightless ONNX model, a few MB."""

    data: bytes

    @classmethod
    def from_ir(cls, model: ir.Model) -> Graph:
        """Serialise deterministically: equal models give equal bytes."""
        import onnx_ir as ir

        return cls(ir.to_proto(model).SerializeToString(deterministic=True))

    def to_ir(self) -> ir.Model:
        """Return a fresh, mutable `onnx_ir.Model`; changes to it do not reach this graph."""
        import onnx
        import onnx_ir as ir

        model: ir.Model = ir.from_proto(onnx.load_model_from_string(self.data))
        return model

    def to_bytes(self) -> bytes:
        """Return the serialised model, an ONNX `ModelProto`."""
        return self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> Graph:
        """Take the bytes of an ONNX `ModelProto`."""
        return cls(data)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return digest_bytes(self.data)


def block_of(node: ir.Node) -> str | None:
    """Return the block of an operator, such as `down_blocks.0.resnets.1`; `None` between blocks.

    It is a member of the innermost list of modules, or what lies in no list, such as `conv_in`.
    """
    path = node.metadata_props.get(BLOCK_KEY, "")
    member = _MEMBER.match(path)
    return (member.group() if member else path) or None


def in_block(node: ir.Node, pattern: str) -> bool:
    """Tell whether an operator is from a module that a pattern with wildcards names, or from one inside it.

    Of `=PATH` only what no member of a list inside that module has.
    """
    if pattern.startswith("="):
        return block_of(node) == pattern[1:]
    path = node.metadata_props.get(BLOCK_KEY, "")
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}.*")


def parameter_inputs(graph: ir.Graph) -> dict[str, ir.Value]:
    """Return the graph inputs that stand for parameters, by parameter name, in input order."""
    marked = ((value.metadata_props.get(PARAMETER_KEY), value) for value in graph.inputs)
    return {name: value for name, value in marked if name is not None}


def real_inputs(graph: ir.Graph) -> list[ir.Value]:
    """Return the graph inputs that a caller feeds: those that stand for no parameter."""
    return [value for value in graph.inputs if PARAMETER_KEY not in value.metadata_props]


def is_barrier(node: ir.Node) -> bool:
    """Tell whether an operator belongs to the graph that runs even where all it takes is weights."""
    if (node.domain, node.op_type) in BARRIERS:
        return True
    makers = [value.producer() for value in node.inputs if value is not None]
    return any(maker is not None and maker.domain == QUANTISE_DOMAIN for maker in makers)


def weight_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that depend on parameters (and constants) alone: parameters, and what derives from them.

    What a barrier makes (`is_barrier`) is not among them, nor what derives from that.
    """
    import onnx_ir as ir

    weights = {value for value in graph.inputs if PARAMETER_KEY in value.metadata_props}
    for node in graph:
        if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
            continue  # what its subgraph takes from outside is no operand
        if is_barrier(node):
            continue
        operands = [value for value in node.inputs if value is not None]
        known = [value in weights or value.is_initializer() for value in operands]
        if all(known) and any(value in weights for value in operands):
            weights.update(node.outputs)
    return weights

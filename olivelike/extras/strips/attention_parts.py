"""Attention for some of the queries at a time: scores of all of them grow with the square of the picture's area."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from olivelike.model.onnx_messages import NodeProto, TensorProto, attribute_value, from_array, make_node

_SCORES: Final = 1 << 26
"""Scores at once: 256 MB in float32."""
_CONTRIB: Final = "com.microsoft"
_BETWEEN: Final = frozenset({"Mul", "Div", "Cast"})
"""Operators that may stand between the products and Softmax, and between Softmax and the values."""


def attend_in_parts(
    nodes: Sequence[NodeProto], constants: Collection[TensorProto], tokens: int
) -> tuple[list[NodeProto], list[TensorProto]]:
    """Return nodes that compute what others do, attention a few queries at a time, and constants that they need.

    Known are the operators of ONNX and of ONNX Runtime, without masks, and MatMul, Softmax, MatMul. Others stay.

    Args:
        nodes: In an order in which they can run.
        constants: Initializers of the graph.
        tokens: How many each query sees.
    """
    at_once = max(1, _SCORES // tokens)
    if at_once >= tokens:
        return list(nodes), []
    more: list[TensorProto] = []

    def constant(name: str, *values: int) -> str:
        more.append(from_array(np.array(values, np.int64), name))
        return name

    fixed = {tensor.name: list(tensor.dims) for tensor in constants}
    apart = [part for node in nodes for part in _with_own_projection(node, fixed, constant)]
    cores = {id(core[-1]): core for node in apart if (core := _core(node, apart, fixed))}
    inner = {id(node) for core in cores.values() for node in core[:-1]}
    written: list[NodeProto] = []
    for node in apart:
        if id(node) in inner:
            continue
        if id(node) not in cores:
            written.append(node)
            continue
        core, result = cores[id(node)], node.output[0]
        query, axis, parts = core[0].input[0], constant(f"{result}.axis", -2), []
        for number, first in enumerate(range(0, tokens, at_once)):
            start, end = (
                constant(f"{result}.{number}.start", first),
                constant(f"{result}.{number}.end", first + at_once),
            )
            names = {name: f"{name}.{number}" for one in core for name in one.output if name}
            names[query] = f"{query}.{number}"
            written.append(make_node("Slice", [query, start, end, axis], [names[query]]))
            written += [_renamed(one, names) for one in core]
            parts.append(names[result])
        written.append(make_node("Concat", parts, [result], axis=-2))
    return written, more


def _with_own_projection(node: NodeProto, fixed: dict[str, list[int]], constant: Callable[..., str]) -> list[NodeProto]:
    """Return ONNX Runtime's Attention as the projection, in a MatMul, and the rest of it, a MultiHeadAttention."""
    attributes = {one.name: attribute_value(one) for one in node.attribute}
    plain = set(attributes) <= {"num_heads", "scale"} and not any(node.input[3:])
    if (node.op_type, node.domain) != ("Attention", _CONTRIB) or not plain or node.input[1] not in fixed:
        return [node]
    (result,), width = node.output, fixed[node.input[1]][1] // 3
    names = [f"{result}.{part}" for part in ("query", "key", "value")]
    joined, biased = f"{result}.product", f"{result}.projected"
    sizes = constant(f"{result}.widths", *[width] * 3)
    return [
        make_node("MatMul", [node.input[0], node.input[1]], [joined]),
        *([make_node("Add", [joined, node.input[2]], [biased])] if any(node.input[2:3]) else []),
        make_node("Split", [biased if any(node.input[2:3]) else joined, sizes], names, axis=-1),
        make_node("MultiHeadAttention", names, [result], domain=_CONTRIB, **attributes),
    ]


def _core(node: NodeProto, nodes: Sequence[NodeProto], fixed: Collection[str]) -> list[NodeProto]:
    """Return the nodes of an attention that begins with a node; its first input are the queries, (…, tokens, width)."""
    attributes = {one.name: attribute_value(one) for one in node.attribute}
    if node.op_type == "MultiHeadAttention":
        alone = all(node.input[:3]) and not any(node.input[4:]) and len(node.output) == 1
        return [node] if alone and not attributes.get("unidirectional") else []
    if node.op_type == "Attention" and not node.domain:
        return [node] if not any(node.input[3:]) and len(node.output) == 1 and not attributes.get("is_causal") else []
    if node.op_type != "MatMul" or any(name in fixed for name in node.input):
        return []
    chain, shares = [node], False
    while True:
        users = [one for one in nodes if chain[-1].output[0] in one.input]
        if len(users) != 1:
            return []
        (user,) = users
        others = [name for name in user.input if name != chain[-1].output[0]]
        chain.append(user)
        if user.op_type == "MatMul" and shares:
            return chain
        if user.op_type == "Softmax":
            shares = True
        elif user.op_type not in _BETWEEN or any(name not in fixed for name in others):
            return []


def _renamed(node: NodeProto, names: dict[str, str]) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.ClearField("name")
    for values in (copy.input, copy.output):
        values[:] = [names.get(name, name) for name in values]
    return copy

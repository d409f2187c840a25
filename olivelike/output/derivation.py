"""How an initializer is derived from parameters: an expression that can be evaluated, and kept as JSON.

An expression is `{"parameter": NAME, "shape": […]}`, `{"constant": VALUES, "dtype": …, "shape": […]}`, or an operator
`{"op": "Transpose", "attributes": {"perm": [1, 0]}, "inputs": […]}` with `domain` where that is not ONNX's own, and
`output` where it is not the first. `null` stands for an input that is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.half import to_half
from olivelike.model.graph import PARAMETER_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Array = np.ndarray[Any, Any]
Expression = dict[str, Any]

FLOAT16 = int(ir.DataType.FLOAT16)
_LARGEST_CONSTANT = 4096
"""Elements of a constant that a record holds; no derivation of ours comes near."""


def derive(value: ir.Value) -> Expression:
    """Return the expression of a value that depends on parameters and constants alone.

    Raises:
        PassError: when an attribute or constant can't be kept.
    """
    name = value.metadata_props.get(PARAMETER_KEY)
    if name is not None:
        assert value.shape is not None
        assert value.dtype is not None
        dtype = {} if value.dtype == ir.DataType.FLOAT else {"dtype": value.dtype.name}
        return {"parameter": name, "shape": list(value.shape.numpy()), **dtype}
    if value.const_value is not None:
        return _constant(value)
    node = value.producer()
    assert node is not None
    expression: Expression = {"op": node.op_type}
    if node.domain:
        expression["domain"] = node.domain
    if node.attributes:
        expression["attributes"] = {a.name: _attribute(node, a) for a in node.attributes.values()}
    if (index := value.index()) not in (None, 0):
        expression["output"] = index
    expression["inputs"] = [None if operand is None else derive(operand) for operand in node.inputs]
    return expression


def parameters(expression: Expression | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of each parameter of an expression, as often as it occurs."""
    if expression is None:
        return
    if "parameter" in expression:
        yield expression["parameter"], tuple(expression["shape"])
    for operand in expression.get("inputs", ()):
        yield from parameters(operand)


def operators(expression: Expression | None) -> Iterator[str]:
    """Yield the operator types of an expression."""
    if expression is not None and "op" in expression:
        yield expression["op"]
        for operand in expression["inputs"]:
            yield from operators(operand)


@dataclass
class Evaluator:
    """Evaluates expressions by ONNX's reference implementation; what two of them share is computed twice."""

    parameter: Callable[[str], Array]
    """Returns the values of a parameter."""
    opsets: Mapping[str, int]
    ir_version: int
    name: str = ""
    """What the expression derives, for messages."""
    lost: dict[str, int] = field(default_factory=dict)
    """Values that half precision could not hold: `saturated` and `flushed`, summed over all evaluations."""

    def evaluate(self, expression: Expression) -> Array:
        """Return the values of an expression.

        Raises:
            PassError: when an operator has no reference implementation.
        """
        if "parameter" in expression:
            dtype = ir.DataType[expression.get("dtype", "FLOAT")].numpy()
            return self.parameter(expression["parameter"]).astype(dtype, copy=False)
        if "constant" in expression:
            values = np.array(expression["constant"], ir.DataType[expression["dtype"]].numpy())
            return values.reshape(expression["shape"])
        operands = [None if operand is None else self.evaluate(operand) for operand in expression["inputs"]]
        if expression["op"] == "Cast" and expression["attributes"]["to"] == FLOAT16:
            assert operands[0] is not None
            half, lost = to_half(operands[0])
            for kind, count in lost.items():
                self.lost[kind] = self.lost.get(kind, 0) + count
            return half
        return _run(expression, operands, self.opsets, self.ir_version, self.name)


MOVING = frozenset(
    {
        "Cast",
        "Transpose",
        "Concat",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Identity",
        "Slice",
        "Split",
    }
)
"""Operators that move values and change none; `Cast` changes their precision alone."""


def positions(expression: Expression, opsets: Mapping[str, int], ir_version: int) -> Array:
    """Return where each value of a derived weight comes from, for an expression of `MOVING` operators alone.

    Returns:
        An int32 array of the weight's shape: positions in all parameters of the expression, flattened and put one after
        another in the order of `parameters`.
    """
    start = 0

    def trace(part: Expression) -> Array:
        nonlocal start
        if "parameter" in part:
            first, start = start, start + math.prod(part["shape"])
            return np.arange(first, start, dtype=np.int32).reshape(part["shape"])
        if "constant" in part:
            return np.array(part["constant"], ir.DataType[part["dtype"]].numpy()).reshape(part["shape"])
        operands = [None if operand is None else trace(operand) for operand in part["inputs"]]
        if part["op"] == "Cast":
            assert operands[0] is not None
            return operands[0]
        return _run(part, operands, opsets, ir_version, "positions")

    return trace(expression)


def _run(
    expression: Expression,
    operands: list[Array | None],
    opsets: Mapping[str, int],
    ir_version: int,
    name: str,
) -> Array:
    """Run one operator by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    names = ["" if operand is None else f"in{i}" for i, operand in enumerate(operands)]
    outputs = [f"out{i}" for i in range(expression.get("output", 0) + 1)]
    node = onnx.helper.make_node(
        expression["op"],
        names,
        outputs,
        domain=expression.get("domain", ""),
        **expression.get("attributes", {}),
    )
    feeds = {name: array for name, array in zip(names, operands, strict=True) if array is not None}
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    result = onnx.helper.make_empty_tensor_value_info(outputs[-1])
    graph = onnx.helper.make_graph([node], "derivation", inputs, [result])
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    single = onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    try:
        (array,) = ReferenceEvaluator(single).run([outputs[-1]], feeds)
    except NotImplementedError as error:
        raise PassError(f"can't derive {name!r}: no reference for operator {expression['op']!r}") from error
    return np.asarray(array)


def _constant(value: ir.Value) -> Expression:
    assert value.const_value is not None
    array = value.const_value.numpy()
    if array.size > _LARGEST_CONSTANT:
        raise PassError(
            f"weight {value.name!r} derives from a constant of {array.size} values; make it a parameter"
        )
    return {
        "constant": array.reshape(-1).tolist(),
        "dtype": value.const_value.dtype.name,
        "shape": list(array.shape),
    }


def _attribute(node: ir.Node, attribute: ir.Attr) -> Any:
    """Return an attribute as a JSON value."""
    value = attribute.value
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, int | float | str) for item in values):
        raise PassError(
            f"operator {node.op_type!r} derives a weight with attribute {attribute.name!r}, which a record can't hold"
        )
    return list(value) if isinstance(value, list | tuple) else value

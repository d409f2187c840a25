"""Facts that rules read off values and nodes: shapes, constants, attributes, who computes and who uses what.

Sizes of dynamic dimensions are formulas over names, such as `8*decoder_height`. `(2*h + 2)*(2*w + 2)` and `4*(h + 1)*(w
+ 1)` are one size. To tell, a formula is brought to a normal form: a polynomial with integer coefficients over names
and integer divisions.
"""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

Attributes: TypeAlias = dict[str, Any]
"""Values of a node's attributes by name, as `onnx_ir.node` takes them."""

Dim = int | str | None
"""A size, the name or formula of a dynamic one, or `None` if nothing is known."""

_Polynomial = dict[tuple[str, ...], int]
"""Coefficient of each product of sorted factors; the empty product is the constant."""

_LONGEST: Final = 500
"""Letters of a formula; a file from anywhere may have others as names of sizes."""
_MOST_TERMS: Final = 1000
"""Products in a normal form that come of a multiplication; one of more sums is one factor."""
_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def same_dim(left: Dim, right: Dim) -> bool:
    """Say whether two dimensions are equal for sure."""
    if left is None or right is None:
        return False
    return left == right or normal_form(str(left)) == normal_form(str(right))


def evaluate(formula: str, size_of: Callable[[str], int]) -> int:
    """Return the value of a formula.

    Raises `ValueError` for what is no formula, such as the name `input.1` of another exporter. `size_of` returns the
    size that a name stands for; what it raises is passed on. `a/b`, as in sizes of a UNet's features, is rounded up.
    """

    def value(tree: ast.expr) -> int:
        match tree:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return size_of(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                with contextlib.suppress(ZeroDivisionError):
                    return int(_OPERATORS[type(op)](value(left), value(right)))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                if (share := value(right)) != 0:
                    return -(-value(left) // share)
        raise ValueError(f"{formula!r} is no formula of names, numbers, +, -, *, / and //")

    return value(_parsed(formula))


def _parsed(formula: str) -> ast.expr:
    """Return the tree of a formula. Raises `ValueError` for what is none, or too long to be one."""
    if len(formula) <= _LONGEST:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.parse(formula, mode="eval").body
    raise ValueError(f"{formula[:_LONGEST]!r} is no formula")


def renamed(formula: str, names: Mapping[str, str]) -> str:
    """Return a formula with other names in place of some."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), formula)


def spaced(formula: str) -> str:
    """Return a formula with spaces around names, `8* height`, for who splits it there."""
    return re.sub(r"[A-Za-z_]\w*", r" \g<0> ", formula).strip()


@lru_cache(maxsize=4096)
def normal_form(formula: str) -> str:
    """Return the formula as a sum of products in a fixed order; what is no formula comes back unchanged."""
    try:
        return _text(_polynomial(_parsed(formula)))
    except ValueError:
        return formula


def _polynomial(tree: ast.expr) -> _Polynomial:
    match tree:
        case ast.Constant(value=int(value)):
            return {(): value}
        case ast.Name(id=name):
            return {(name,): 1}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _times({(): -1}, _polynomial(operand))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _plus(_polynomial(left), _polynomial(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _plus(_polynomial(left), _times({(): -1}, _polynomial(right)))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factors = _polynomial(left), _polynomial(right)
            if math.prod(map(len, factors)) <= _MOST_TERMS:
                return _times(*factors)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return {(f"({_text(_polynomial(left))}//{_text(_polynomial(right))})",): 1}
    return {(ast.unparse(tree),): 1}


def _plus(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    total = Counter(left)
    for factors, coefficient in right.items():
        total[factors] += coefficient
    return {factors: coefficient for factors, coefficient in total.items() if coefficient}


def _times(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    total: Counter[tuple[str, ...]] = Counter()
    for factors, coefficient in left.items():
        for others, times in right.items():
            total[tuple(sorted((*factors, *others)))] += coefficient * times
    return {factors: coefficient for factors, coefficient in total.items() if coefficient}


def _text(polynomial: _Polynomial) -> str:
    terms = sorted(polynomial.items())
    return "+".join("*".join((str(coefficient), *factors)) for factors, coefficient in terms) or "0"


Dims = tuple[Dim, ...]


def dims_of(value: ir.Value) -> Dims:
    """Return the dimensions of a value; empty for a scalar and for a value of unknown rank."""
    if value.shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def fixed_dims(value: ir.Value) -> tuple[int, ...]:
    """Return the shape of a weight. Raises `TypeError` when a dimension is dynamic."""
    dims = [dim for dim in dims_of(value) if isinstance(dim, int)]
    if len(dims) != rank_of(value):
        raise TypeError(f"{value.name!r} is no weight: its shape {value.shape} is dynamic")
    return tuple(dims)


def rank_of(value: ir.Value) -> int | None:
    """Return the number of dimensions, or `None` if it is unknown."""
    return None if value.shape is None else len(value.shape)


def width_of(value: ir.Value) -> int | None:
    """Return the size of the last dimension if it is fixed."""
    dims = dims_of(value)
    return dims[-1] if dims and isinstance(dims[-1], int) else None


def same_dims(left: Dims, right: Dims) -> bool:
    """Say whether two shapes are equal for sure: sizes and formulas agree, and none is unknown."""
    return len(left) == len(right) and all(map(same_dim, left, right))


def same_shape(left: ir.Value, right: ir.Value) -> bool:
    """Say whether two values have equal shapes for sure."""
    known = left.shape is not None and right.shape is not None
    return known and same_dims(dims_of(left), dims_of(right))


def node_of(value: ir.Value) -> ir.Node:
    """Return the node that computes `value`. Raises `TypeError` when `value` is an input or a constant."""
    node = value.producer()
    if node is None:
        raise TypeError(f"{value.name!r} is computed by no node")
    return node


def producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that computes `value` if it is of this type, which is one of ONNX's own."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and not node.domain else None


def only_user(value: ir.Value, op_type: str | None = None) -> ir.Node | None:
    """Return the one node that uses `value`, once; `None` if there are more, or if it is a graph output."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    ((node, _),) = uses
    return node if op_type is None or (node.op_type == op_type and not node.domain) else None


def is_used_once(value: ir.Value) -> bool:
    """Say whether exactly one input of one node uses `value` and it is no graph output."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input; `None` if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def required(node: ir.Node, index: int) -> ir.Value:
    """Return an input that the operator demands. Raises `TypeError` when it is absent."""
    value = node.inputs[index]
    if value is None:
        raise TypeError(f"{node.op_type} {node.name!r} lacks input {index}")
    return value


def type_of(value: ir.Value) -> ir.DataType:
    """Return the type of a value's elements. Raises `TypeError` when no pass has set it."""
    if value.dtype is None:
        raise TypeError(f"the type of {value.name!r} is not known; the pass that made it must set it")
    return value.dtype


def constant_of(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of a constant. Raises `TypeError` when the value is none."""
    if value.const_value is None:
        raise TypeError(f"{value.name!r} is no constant")
    return value.const_value


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return an attribute's value as a plain Python one."""
    found = node.attributes.get(name)
    if found is None:
        return default
    return list(found.value) if isinstance(found.value, tuple) else found.value


def perm_of(node: ir.Node) -> tuple[int, ...]:
    """Return the permutation of a Transpose; the default reverses the axes."""
    rank = rank_of(required(node, 0)) or 0
    return tuple(attribute(node, "perm", list(reversed(range(rank)))))


def constant_array(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """Return the values of a constant."""
    if value is None or value.const_value is None:
        return None
    return value.const_value.numpy()


def constant_float(value: ir.Value | None) -> float | None:
    """Return the value of a constant with one element."""
    array = constant_array(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value:
    """Return the second operand of a binary node."""
    first, second = required(node, 0), required(node, 1)
    return second if first is value else first

"""Sizes of dynamic dimensions: formulas over names, such as `8*decoder_height`.

`(2*h + 2)*(2*w + 2)` and `4*(h + 1)*(w + 1)` are one size. To tell, a formula is brought to a normal form: a polynomial
with integer coefficients over names and integer divisions.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

Dim = int | str | None
"""A size, the name or formula of a dynamic one, or `None` if nothing is known."""

_Polynomial = dict[tuple[str, ...], int]
"""Coefficient of each product of sorted factors; the empty product is the constant."""

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

    Args:
        formula: Over names and whole numbers.
        size_of: Returns the size that a name stands for; what it raises is passed on.

    Raises:
        ValueError: for what is no formula, such as the name `input.1` of another exporter.
    """

    def value(tree: ast.expr) -> int:
        match tree:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return size_of(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return int(_OPERATORS[type(op)](value(left), value(right)))
        raise ValueError(f"{formula!r} is no formula of names, numbers, +, -, * and //")

    try:
        tree = ast.parse(formula, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{formula!r} is no formula") from error
    return value(tree.body)


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
        tree = ast.parse(formula, mode="eval")
    except SyntaxError:
        return formula
    return _text(_polynomial(tree.body))


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
            return _times(_polynomial(left), _polynomial(right))
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

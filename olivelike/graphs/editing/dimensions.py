"""Comparing sizes that are spelled differently: `(2*h + 2)*(2*w + 2)` and `4*(h + 1)*(w + 1)` are one.

A size is brought to a normal form: a polynomial with integer coefficients over names and integer divisions.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import lru_cache

Dim = int | str | None
"""A size, the name or formula of a dynamic one, or `None` if nothing is known."""

_Polynomial = dict[tuple[str, ...], int]
"""Coefficient of each product of sorted factors; the empty product is the constant."""


def same_dim(left: Dim, right: Dim) -> bool:
    """Say whether two dimensions are equal for sure."""
    if left is None or right is None:
        return False
    return left == right or normal_form(str(left)) == normal_form(str(right))


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

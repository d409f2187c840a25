"""Sizes that are spelled differently."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from olivelike.graphs.editing.values import evaluate, normal_form, same_dim


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("(2*h + 2)*(2*w + 2)", "4*(h + 1)*(w + 1)"),
        ("2*((((h - 1)//2)) + 1)", "2*((h - 1)//2) + 2"),
        ("h*w", "w*h"),
        (7, 7),
        ("3 + 4", 7),
    ],
)
def test_one_size_in_two_spellings_is_one(left, right):
    assert same_dim(left, right)


@pytest.mark.parametrize(
    ("left", "right"), [("h", "w"), ("(h - 1)//2", "h//2"), (1, 2), (None, None), ("h", None), ("2*(h//2)", "h")]
)
def test_different_and_unknown_sizes_are_not_one(left, right):
    assert not same_dim(left, right)


def test_what_is_no_formula_is_compared_as_it_stands():
    assert normal_form("a b") == "a b"
    assert same_dim("Max(1, h)", "Max(1, h)")


@pytest.mark.parametrize(
    "text", ["a//0", "(a - a)//1//0", "-" * 100_000 + "a", "a\0", "+".join("a" * 9_999), "9" * 5_000]
)
def test_what_a_stranger_calls_a_size_is_no_formula(text):
    with pytest.raises(ValueError, match="is no formula"):
        evaluate(text, lambda _: 4)
    normal_form(text)


def test_a_product_of_many_sums_is_not_multiplied_out():
    many = "*".join(f"(a{number} + b{number})" for number in range(30))
    assert normal_form(many).count("+") < 2_000
    assert same_dim(many, many)


formulas = st.recursive(
    st.sampled_from(["h", "w", "1", "2", "3"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner)
        | st.builds("({} // {})".format, inner, st.sampled_from(["2", "8"]))
    ),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # On a busy machine, making formulas is.
@given(formulas, formulas)
def test_sizes_that_count_as_one_have_equal_values(left, right):
    if same_dim(left, right):
        for height, width in ((5, 9), (8, 3), (64, 72)):
            names = {"h": height, "w": width}
            assert eval(left, names.copy()) == eval(right, names.copy())

"""The figures of a comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest

from olivelike.digest import canonical_json
from olivelike.measure.verify.original import compare, relative_error, summary

EXPECTED = np.array([[3.0, 0.0], [0.0, 4.0]])


def test_equal_arrays_are_no_distance_apart():
    found = compare(EXPECTED.astype(np.float32), EXPECTED)
    assert (found.relative_error, found.worst, found.cosine) == (0.0, 0.0, 1.0)
    assert found.within(1e-9)


def test_the_relative_error_is_the_distance_over_the_length():
    assert relative_error(EXPECTED + 0.5, EXPECTED) == pytest.approx(1.0 / 5)


def test_the_worst_element_is_named():
    found = compare(EXPECTED + np.array([[0.0, 0.25], [-0.5, 0.0]]), EXPECTED)
    assert (found.worst, found.worst_at) == (0.5, (1, 0))


def test_the_cosine_does_not_see_a_scale():
    assert compare(2 * EXPECTED, EXPECTED).cosine == pytest.approx(1.0)
    assert compare(-EXPECTED, EXPECTED).cosine == pytest.approx(-1.0)
    assert compare(np.zeros((2, 2)), EXPECTED).cosine == 0.0
    assert compare(np.zeros((2, 2)), np.zeros((2, 2))).cosine == 1.0


def test_what_is_not_finite_is_counted_and_within_no_limit():
    bad = compare(np.array([[np.nan, 0.0], [np.inf, -np.inf]]), EXPECTED)
    assert (bad.nan, bad.inf) == (1, 2)
    assert not bad.is_finite
    assert not bad.within(math.inf)


def test_an_infinity_that_torch_has_too_is_right():
    expected = np.array([-np.inf, 2.0])
    found = compare(expected.astype(np.float16), expected)
    assert (found.inf, found.relative_error, found.worst) == (0, 0.0, 0.0)
    assert compare(np.array([-65504.0, 2.0]), expected).relative_error == math.inf


def test_only_zeros_have_no_relative_error_but_from_zeros():
    zeros = np.zeros(3)
    assert relative_error(zeros, zeros) == 0.0
    assert relative_error(np.ones(3), zeros) == math.inf
    assert math.isnan(relative_error(np.full(3, np.nan), zeros))


def test_booleans_count_as_numbers():
    expected = np.array([True, False, True, True])
    assert relative_error(expected, expected) == 0.0
    assert relative_error(np.array([True, True, True, True]), expected) == pytest.approx(1 / math.sqrt(3))


def test_another_shape_is_infinitely_far_off():
    assert not compare(np.zeros((2, 3)), np.zeros((3, 2))).within(1e9)


def test_half_precision_does_not_overflow_the_figures():
    big = np.full(4, 60000.0, np.float16)
    assert relative_error(big, big.astype(np.float64)) == 0.0


def test_figures_are_json_whatever_they_are():
    found = [compare(np.array([np.nan, 1.0]), np.array([1.0, 1.0])), compare(EXPECTED, EXPECTED)]
    assert canonical_json([one.to_json() for one in found])
    whole = summary(found)
    assert (whole["relative_error"], whole["nan"], whole["inf"]) == (None, 1, 0)
    assert summary(found[1:])["relative_error"] == 0.0

"""What calibration notes of values: ranges, histograms that widen without error, and the ranges that methods keep."""

from __future__ import annotations

import numpy as np
import pytest

from olivelike.model.observations import BINS, Observer, from_bytes, to_bytes


def observed(*arrays):
    observer = Observer()
    for array in arrays:
        observer.add(float(array.min()), float(array.max()), array)
    return observer


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(4096) * scale).astype(np.float32) for scale in (1, 30, 1e-3, 5)]


def test_neither_order_nor_merging_makes_a_difference(arrays):
    wanted = observed(*arrays).result()
    assert observed(*reversed(arrays)).result() == wanted
    merged = observed(*arrays[2:])
    merged.merge(observed(*arrays[:2]))
    assert merged.result() == wanted
    assert sum(wanted.counts) == 4 * 4096
    assert (wanted.low, wanted.high) == (min(a.min() for a in arrays), max(a.max() for a in arrays))


def test_bins_are_those_of_numpy(arrays):
    one = observed(*arrays).result()
    edges = np.linspace(-(2.0**one.exponent), 2.0**one.exponent, BINS + 1)
    assert one.counts == tuple(np.histogram(np.concatenate(arrays), edges)[0])


def test_bytes_come_back(arrays):
    seen = {"a": observed(*arrays).result(), "zero": observed(np.zeros(8, np.float32)).result()}
    assert from_bytes(to_bytes(seen)) == seen
    assert len(to_bytes(seen)) < 12_000


def test_bytes_of_another_kind_are_no_observations():
    with pytest.raises(ValueError, match="found 'other/1'"):
        from_bytes(b'["other/1", {}]')


def test_methods_cut_outliers_off(arrays):
    outlier = np.append(arrays[0], np.float32(900))
    one = observed(outlier).result()
    assert one.range("min_max", 100) == (outlier.min(), 900)
    low, high = one.range("percentile", 99.9)
    assert low == pytest.approx(np.percentile(outlier, 0.05), abs=2)
    assert high == pytest.approx(np.percentile(outlier, 99.95), abs=2)
    assert 3 < one.range("entropy", 100)[1] < 450

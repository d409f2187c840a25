from __future__ import annotations

import pytest

from olivelike._text import count, duration, size


@pytest.mark.parametrize(
    ("bytes_", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5.2e9, "5.2 GB"),
        (3e15, "3000.0 TB"),
    ],
)
def test_sizes_have_the_unit_that_keeps_them_short(bytes_, shown):
    assert size(bytes_) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (119.9, "119.9 s"), (125, "2 min 05 s"), (3599.6, "60 min 00 s")]
)
def test_durations_of_minutes_drop_the_fraction(seconds, shown):
    assert duration(seconds) == shown


def test_one_is_not_plural():
    assert (count(1, "node"), count(0, "node")) == ("1 node", "0 nodes")

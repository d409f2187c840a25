"""Results in order, while threads make the next ones."""

from __future__ import annotations

import threading
import time

import pytest

from olivelike.engine.output.work_ahead import ahead


def test_results_come_in_order_whatever_takes_how_long():
    def work(number):
        time.sleep(0.01 if number % 2 else 0)
        return number * 10

    assert list(ahead(work, range(20))) == [(number, number * 10) for number in range(20)]


def test_no_more_bytes_wait_than_allowed_unless_a_single_item_has_more():
    held, lock, most = 0, threading.Lock(), 0

    def work(size):
        nonlocal held, most
        with lock:
            held += size
            most = max(most, held)
        return size

    for size, _ in ahead(work, [3, 3, 3, 20, 3, 3], lambda size: size, 7):
        with lock:
            held -= size
    assert most <= 20 + 3


def test_an_error_is_raised_where_its_item_comes_and_the_rest_is_not_worked_on():
    done = []

    def work(number):
        if number == 2:
            raise ValueError("two")
        done.append(number)
        return number

    found = ahead(work, range(100))
    assert [next(found), next(found)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="two"):
        next(found)
    assert len(done) < 10


def test_whoever_stops_listening_ends_the_threads():
    before = set(threading.enumerate())
    found = ahead(lambda number: number, range(1000))
    next(found)
    found.close()
    assert not set(threading.enumerate()) - before

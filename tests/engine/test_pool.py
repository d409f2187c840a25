"""Worker processes that die while nobody waits for them."""

from __future__ import annotations

from pathlib import Path

import psutil

from olivelike.engine.execute.pool import Pool


def test_a_worker_that_died_while_idle_is_replaced(tmp_path: Path) -> None:
    pool = Pool(1, tmp_path / "log")
    try:
        first = pool.idle()
        assert first is not None
        psutil.Process(first.pid).kill()
        assert pool.answers.get(timeout=10).kind == "died"
        second = pool.idle()
        assert second is not None
        assert second.pid != first.pid
    finally:
        pool.close()


def test_a_worker_that_does_not_fit_is_replaced_only_when_all_places_are_taken(tmp_path: Path) -> None:
    pool = Pool(2, tmp_path / "log")
    try:
        first = pool.idle()
        assert first is not None
        second = pool.idle(lambda worker: worker is not first)
        assert second is not None
        assert second is not first
        assert first in pool.workers
        third = pool.idle(lambda worker: worker not in (first, second))
        assert third is not None
        assert len(pool.workers) == 2
    finally:
        pool.close()

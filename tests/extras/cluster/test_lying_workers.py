"""Runs to which a worker gives made-up answers: no file but their own, no crash, at most one warning."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from olivelike.extras.cluster import cluster_site
from olivelike.extras.cluster.cluster_data import packed, unpacked
from olivelike.extras.cluster.cluster_executor import ClusterExecutor
from tests.engine.conftest import Project
from tests.fixtures.late import Late
from tests.fixtures.lying_store import Files, Honest, lying_answers

distributed = Late("distributed")
lying_machines = pytest.importorskip(
    "tests.extras.shared_store.test_lying_machines", reason="networks come from a shared store"
)
honest_run = lying_machines.honest_run


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    with distributed.LocalCluster(
        1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=":0"
    ) as made:
        yield made
    cluster_site.end_sides()  # The worker is this process.


_REAL = cluster_site.answer_task
_answers: list[Callable[[dict[str, Any]], dict[str, Any]]] = []


def lying(parcel: cluster_site.Parcel) -> bytes:
    """Do a task, and lie; it goes to workers by its name."""
    said = unpacked(_REAL(parcel))
    assert said["error"] is None
    return packed({**said, "value": _answers[0](said["value"])})


@pytest.mark.parametrize("count", [1, pytest.param(60, marks=pytest.mark.slow)])
def test_a_lying_worker_harms_nothing(
    honest_run, cluster, checkpoints: Path, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, known, rest = honest_run
    lying_machines.write_all(tmp_path / "share", {**rest, **known.files()})
    monkeypatch.setenv(cluster_site.STORE_VARIABLE, str(tmp_path / "theirs"))
    cluster_site._store.cache_clear()
    rng, tally = random.Random(4), lying_machines.Tally()
    for number in range(count):
        change, at, tasks = lying_answers(rng, tmp_path / "box-0" / "victim.txt"), rng.randrange(2), itertools.count()

        def answer(made: dict[str, Any], change=change, at=at, tasks=tasks) -> dict[str, Any]:
            return change(made, cluster_site.own_store().put_bytes) if next(tasks) == at else made

        def run(project: Project, _: Path) -> int:
            project.executor = lambda _, log: ClusterExecutor(cluster.scheduler_address, None, log)
            # The assets and two folders are made by workers; networks come from the folder.
            share = without_assets(known, rest, tmp_path / "share")
            project.run(shared_cache=f"{share.as_uri()}?read-only")
            return 0

        _answers[:] = [answer]
        monkeypatch.setattr(cluster_site, "answer_task", lying)
        lying_machines.try_lie(tmp_path / "box-0", checkpoints, honest, tally, f"lie {number}", run)
    tally.check()


def without_assets(known: Honest, rest: Files, share: Path) -> Path:
    shutil.rmtree(share, ignore_errors=True)
    gone = known.of_pass("assets")["key"]
    lying_machines.write_all(
        share, {name: data for name, data in {**rest, **known.files()}.items() if gone not in name}
    )
    return share

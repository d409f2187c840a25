"""What a cluster can do to the machine that asks it: a local one hears nobody, and answers are data."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from olivelike.errors import MissingError, SessionError
from olivelike.extras.cluster import cluster_data, cluster_site
from olivelike.extras.cluster.cluster_data import DataConnection, ForeignError
from olivelike.extras.cluster.cluster_workers import ClusterWorkers, LostError
from olivelike.measure.doctor import diagnosis
from olivelike.measure.doctor.diagnosis import ProviderCheck, Status
from tests.fixtures.late import Late
from tests.fixtures.sockets import listening

distributed, protocol, comm = map(Late, ("distributed", "distributed.protocol", "distributed.comm.utils"))

_called: list[str] = []


def test_dask_reads_pickles_by_one_module() -> None:
    assert {"dumps", "loads", "to_serialize", "ToPickle", "pickle"} <= vars(distributed.protocol).keys()
    assert distributed.protocol.pickle.pickle.loads
    assert callable(distributed.client.loads)
    assert callable(distributed.core.clean_exception)


def call() -> dict[str, str]:
    """Note the thread that has run this."""
    _called.append(threading.current_thread().name)
    return {}


class Hostile:
    def __reduce__(self) -> object:
        return call, ()


class HostileError(OSError):
    def __reduce__(self) -> object:
        return call, ()


@pytest.fixture(autouse=True)
def called() -> Iterator[list[str]]:
    """The threads that have run what a worker sent; those that read for a run are never among them."""
    _called.clear()
    yield _called
    assert not {"MainThread", "cluster-reader"} & set(_called)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with distributed.LocalCluster(
        1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as made:
        yield made.scheduler_address


@pytest.fixture
def workers(address: str, tmp_path: Path) -> Iterator[ClusterWorkers]:
    made = ClusterWorkers(address, tmp_path)
    yield made
    made.close()


def test_a_local_cluster_listens_nowhere(tmp_path: Path) -> None:
    before = listening()
    workers = ClusterWorkers("local:2", tmp_path)
    assert len(workers.sites) == 2
    assert listening() == before
    workers.close()


@pytest.mark.slow
def test_no_other_process_gets_into_a_local_cluster(tmp_path: Path) -> None:
    workers = ClusterWorkers("local:1", tmp_path)
    code = "import sys; from distributed import Client; Client(sys.argv[1], timeout=2).run(print)"
    for address in (workers.client.scheduler.address, *workers.sites):
        ended = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "does not match host" in ended.stderr
    workers.close()


def test_what_a_worker_answers_is_never_run(
    workers: ClusterWorkers, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (site,) = workers.sites.values()

    async def answer(*_values: object, dask_worker: object) -> object:
        return Hostile()

    monkeypatch.setattr(cluster_site, "answer", answer)
    with pytest.raises(SessionError, match=r"gave an answer that olivelike can't read .+call\) in place of bytes"):
        workers.ask(site, cluster_site.sees, [])

    async def failing(*_values: object, dask_worker: object) -> object:
        raise HostileError

    monkeypatch.setattr(cluster_site, "answer", failing)
    with pytest.raises(SessionError, match="gave an answer that olivelike can't read"):
        workers.ask(site, cluster_site.sees, [])
    assert called  # By the worker, which tries whether its error can be sent.


def test_a_worker_whose_first_answer_is_none_is_not_used(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_values: object, dask_worker: object) -> object:
        return Hostile()

    monkeypatch.setattr(cluster_site, "answer", answer)
    with pytest.raises(SessionError, match=r"no worker .+\n  tcp://.+ gave an answer that olivelike can't read"):
        ClusterWorkers(address, tmp_path)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"\xc1", "FormatError"),
        (cluster_data.packed([1, 2]), "Reply"),
        (cluster_data.packed({"value": "no list"}), "valid list"),
        ("text", "str in place of bytes"),
        (None, "NoneType in place of bytes"),
    ],
)
def test_an_answer_of_another_form_is_one_clear_error(
    workers: ClusterWorkers, monkeypatch: pytest.MonkeyPatch, reply: object, said: str
) -> None:
    (site,) = workers.sites.values()

    async def answer(*_values: object, dask_worker: object) -> object:
        return reply

    monkeypatch.setattr(cluster_site, "answer", answer)
    with pytest.raises(SessionError, match=said) as error:
        workers.ask(site, cluster_site.lacking, [])
    assert str(error.value).startswith(f"{site.host} gave an answer")
    assert "\n" not in str(error.value)


def test_errors_of_a_worker_come_over_by_kind(workers: ClusterWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    (site,) = workers.sites.values()

    def sees(raised: str) -> bool:
        kinds = {"missing": MissingError("no such"), "os": OSError(28, "full"), "gone": cluster_site.ReplacedError()}
        raise kinds[raised]

    with pytest.raises(MissingError, match="^no such$"):
        workers.ask(site, sees, "missing")
    for raised in ("os", "gone"):
        with pytest.raises(LostError):
            workers.ask(site, sees, raised)
    monkeypatch.setattr(cluster_site, "packed", lambda _: b"")
    with pytest.raises(SessionError, match="can't read"):
        workers.ask(site, cluster_site.sees, [])


def test_whatever_way_a_pickle_comes_it_is_read_as_data(address: str) -> None:
    connection = DataConnection(address, 10)
    large = [Hostile(), b"x" * (11 << 20)]

    async def read() -> list[object]:
        frames = [protocol.dumps(kind(Hostile())) for kind in (protocol.to_serialize, protocol.ToPickle)]
        frames.append(protocol.dumps(protocol.ToPickle(large)))
        return [protocol.pickle.loads(pickle.dumps(Hostile())), *[await comm.from_frames(one) for one in frames]]

    *small, (big, rest) = connection.client.sync(read)
    assert all(isinstance(one, ForeignError) for one in [*small, big])
    assert len(rest) == 11 << 20
    connection.client.close()
    connection.close()
    assert protocol.pickle.loads(pickle.dumps(OSError(1))).args == (1,)


def test_a_dask_that_reads_pickles_in_another_way_is_not_used(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol.pickle, "pickle", pickle)
    with pytest.raises(MissingError, match="can't see how this Dask reads answers"):
        DataConnection(address, 10)


@pytest.mark.parametrize("status", ["usable", "unusable"])
def test_a_worker_tries_a_provider_as_doctor_does(monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    monkeypatch.setattr(diagnosis, "check_provider", lambda name: ProviderCheck(name, status, "tried"))
    assert asyncio.run(cluster_site.runs("CUDAExecutionProvider")) == (status == "usable")

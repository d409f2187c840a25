"""Several processes use one store at once, and some are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from olivelike.store import Store

WORKER = """
import pathlib, random, sys
from store_faults import make_action, put
from olivelike.errors import DamagedError
from olivelike.store import Store, new_run_id
from olivelike.digest import digest_bytes

root, seed, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
store = Store.open(root)
for number in range(rounds):
    name = random.choice("abcdefgh")
    graph, tensor = (name * 2000).encode(), (name.upper() * 5000).encode()
    action = make_action(name, graph, tensor)
    choice = random.random()
    if choice < 0.1:
        store.gc(max_bytes=random.choice([0, 20_000, 1 << 30]), grace_seconds=0)
        continue
    if choice < 0.2:
        store.drop_action(action.key)
        continue
    with store.live_run(new_run_id()) as live, store.lock(action.key):
        live.add(keys=[action.key], digests=action.parts)
        for attempt in range(5):  # Without grace, a collection may take a part away before its action is there.
            try:
                if store.get_action(action.key) is None:
                    put(store, name, graph, tensor)
                break
            except DamagedError:
                assert attempt < 4
        data = store.read_bytes(action.outputs["graph"])
        assert data in (None, graph), (name, data and data[:9])
        if random.random() < 0.2:
            store.remember_json("test", name, name * 3)
        assert store.recall_json("test", name) in (None, name * 3)
"""


def start(root: Path, seed: int, rounds: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", WORKER, root, str(seed), str(rounds)],
        cwd=Path(__file__).parent,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("members_are_killed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_processes_that_share_a_store_never_see_a_wrong_result(store: Store, members_are_killed: bool) -> None:
    processes = [start(store.root, seed, 40) for seed in range(3)]
    for seed in range(10, 16) if members_are_killed else ():
        victim = start(store.root, seed, 100_000)
        with pytest.raises(subprocess.TimeoutExpired):
            victim.communicate(timeout=0.3 + random.random() / 10)
        victim.kill()
        victim.communicate()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    after = Store.open(store.root)
    assert after.verify().ok
    assert list(store.root.joinpath("tmp").iterdir()) == []
    after.gc(max_bytes=0, grace_seconds=0)
    assert after.size().files["objects"] == 0
    assert after.size().files["roots"] == 0


def test_threads_share_one_store(store: Store) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(number: int) -> bytes | None:
        data = f"{number % 5}".encode() * 1000
        with store.live_run(f"run-{number}") as root:
            digest = store.put_bytes(data)
            root.add(digests=[digest])
            return store.read_bytes(digest)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(40)))
    assert results == [f"{number % 5}".encode() * 1000 for number in range(40)]

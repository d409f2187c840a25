"""How long nodes and plans are expected to take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from olivelike._text import roughly
from olivelike.engine.plan.forecast import Forecast
from olivelike.engine.plan.node import Node
from olivelike.model.records.run_record import NodeRecord, RunRecord
from tests.fixtures.sample_records import run_record


@dataclass
class Network:
    """What a forecast asks of a checkpoint."""

    elements: int
    tensors: dict[str, Any]
    largest: int = 0
    second_largest: int = 0


def record(seconds: dict[str, float], status: str = "executed", **sizes: int) -> RunRecord:
    nodes = [NodeRecord(name, *name.split("."), status, seconds=value) for name, value in seconds.items()]
    return run_record(elements=sizes, nodes=tuple(nodes))


def chain(component: str, *names: str) -> list[Node]:
    """Return nodes one behind the other, kinds being names."""
    nodes: list[Node] = []
    for name in names:
        kind: Any = name
        nodes.append(Node(f"{component}.{name}", component, kind, nodes[-1].id if nodes else None))
    return nodes


def forecast(
    nodes: list[Node], *records: RunRecord, workers: int = 2, memory_limit: int = 1 << 40, **sizes: int
) -> Forecast:
    source: Any = SimpleNamespace(checkpoints={name: Network(size, {}) for name, size in sizes.items()})
    source.checkpoint = source.checkpoints.__getitem__
    return Forecast(nodes, source, records, workers, memory_limit)


def test_a_node_takes_what_it_took_the_last_times():
    runs = [record({"unet.load": seconds}, unet=100) for seconds in (4, 5, 60, 5, 4, 900, 900)]
    assert forecast(chain("unet", "load"), *runs, unet=100).seconds("unet.load") == 5


def test_a_node_that_never_ran_is_like_that_of_the_nearest_size():
    runs = [record({"vae.load": 4, "text.load": 50}, vae=80, text=55)]
    assert forecast(chain("unet", "load"), *runs, unet=100).seconds("unet.load") == 5


def test_the_same_component_tells_more_than_another_of_the_same_size():
    runs = [record({"vae.load": 4, "unet.load": 60}, vae=100, unet=120)]
    assert forecast(chain("unet", "load"), *runs, unet=100).seconds("unet.load") == 50


def test_a_network_of_quite_another_size_tells_nothing():
    runs = [record({"unet.load": 5}, unet=10), run_record(nodes=(NodeRecord("x", "x", "x", "executed"),))]
    runs.append(record({"unet.load": 5}, status="failed", unet=100))
    found = forecast(chain("unet", "load"), *runs, unet=100)
    assert found.seconds("unet.load") is None
    assert found.left({"unet.load"}).to_json() == {"seconds_left": None, "unknown_nodes": 1}


@pytest.fixture
def two_chains():
    nodes = [*chain("unet", "load", "materialize"), *chain("vae", "load", "materialize")]
    took = {"unet.load": 10, "unet.materialize": 30, "vae.load": 5, "vae.materialize": 5}
    return nodes, record(took, unet=100, vae=10)


def test_chains_run_beside_each_other_on_several_workers(two_chains):
    nodes, before = two_chains
    ids = {node.id for node in nodes}
    assert forecast(nodes, before, unet=100, vae=10).left(ids).seconds == 40
    assert forecast(nodes, before, workers=1, unet=100, vae=10).left(ids).seconds == 50


def test_what_does_not_fit_into_memory_together_runs_one_after_the_other(two_chains):
    nodes, before = two_chains
    ids = {node.id for node in nodes}
    assert forecast(nodes, before, memory_limit=1, unet=100, vae=10).left(ids).seconds == 50


def test_a_node_that_runs_counts_what_is_left_of_it(two_chains):
    nodes, before = two_chains
    found = forecast(nodes, before, unet=100, vae=10)
    assert found.left({"unet.materialize"}, {"unet.load": 4}).seconds == 36
    assert found.left({"unet.materialize"}, {"unet.load": 400}).seconds == 30
    assert found.left(()).seconds == 0


def test_nodes_of_unknown_time_are_counted_apart(two_chains):
    nodes, before = two_chains
    before = replace(before, nodes=tuple(node for node in before.nodes if node.component == "unet"))
    left = forecast(nodes, before, unet=100, vae=10).left({node.id for node in nodes})
    assert (left.seconds, left.unknown) == (40, 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3, "less than 10 s"), (42, "about 40 s"), (58, "about 1 min"), (200, "about 3 min"),
        (43 * 60, "about 45 min"), (80 * 60, "about 1 h 20 min"), (121 * 60, "about 2 h"),
        (59.6 * 60, "about 1 h"),
    ],
)  # fmt: skip
def test_an_estimate_is_no_more_exact_than_it_can_be(seconds, text):
    assert roughly(seconds) == text

"""What an execution tells of itself while nodes run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from olivelike.engine.execute import telling
from olivelike.engine.execute.events import Event
from olivelike.engine.execute.executor import Advanced
from olivelike.engine.plan.forecast import Forecast
from olivelike.engine.plan.node import Node
from olivelike.model.records.run_record import NodeRecord


def test_a_run_tells_how_far_it_is_once_per_change_and_what_runs_long(monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(telling, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    nodes = [Node("unet.load", "unet", "load", None), Node("unet.materialize", "unet", "tokenizer", "unet.load")]
    node = NodeRecord("unet.load", "unet", "load", "executed", seconds=40.04)
    runs: Any = [SimpleNamespace(elements={"unet": 7}, nodes=[node])]
    source: Any = SimpleNamespace(checkpoints={"unet": SimpleNamespace(elements=7)})
    events: list[Event] = []
    teller = telling.Teller([node.id for node in nodes], Forecast(nodes, source, runs, 2, 1 << 40), events.append)
    assert teller.begin("unet.load") == 40.0
    teller.tell(())
    clock[0] += 9
    teller.tell(())
    assert [event.to_json() for event in events] == [
        {"event": "run_progress", "done": 0, "total": 2, "seconds_left": 40.0, "unknown_nodes": 1}
    ]
    clock[0] += 2
    teller.tell(())
    clock[0] += 5
    teller.tell(())
    assert events[1:] == [Event("node_running", {"node": "unet.load", "seconds": 11.0})]
    teller.tell(["unet.load"])
    assert events[-1].data == {"done": 1, "total": 2, "seconds_left": None, "unknown_nodes": 1}


def test_time_left_follows_the_pace_since_nothing_was_done(monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(telling, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    nothing: Any = SimpleNamespace()
    teller = telling.Teller([], nothing, lambda _: None)

    def left(seconds: float, done: int) -> float | None:
        clock[0] += seconds
        return teller.advance("pipeline.calibrate", Advanced(done, 10, "a note"))

    assert left(0, 0) is None
    assert left(60, 0) is None  # What took so long is no part of the pace.
    assert left(2, 1) == 18.0
    assert left(4, 3) == 14.0
    assert left(0, 10) == 0.0
    assert teller.advance("unet.convert", Advanced(4, 10)) is None

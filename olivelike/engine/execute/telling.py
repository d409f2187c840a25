"""Telling how far an execution is, and what runs meanwhile, so that no front end is silent for minutes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from olivelike.engine.execute.events import Event, Listener

if TYPE_CHECKING:
    from collections.abc import Collection

    from olivelike.engine.execute.executor import Advanced
    from olivelike.engine.plan.forecast import Forecast

INTERVAL = 10.0
"""How often a node that runs is told of, in seconds."""


class Teller:
    """Emits `run_progress` whenever a node began or ended, and `node_running` for nodes that take long."""

    def __init__(self, nodes: Collection[str], forecast: Forecast, listener: Listener) -> None:
        self._nodes, self._forecast, self._listener = set(nodes), forecast, listener
        self._since: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._paces: dict[str, tuple[float, int]] = {}
        """When what of a node was done, as its time left is counted from there."""
        self._last: tuple[int, int] | None = None

    def begin(self, node: str) -> float | None:
        """Note that a node begins, and return how many seconds it is expected to take."""
        self._since[node], self._told[node] = time.monotonic(), 0.0
        return self._forecast.seconds(node)

    def advance(self, node: str, advanced: Advanced) -> float | None:
        """Return how many seconds a node that is so far still takes, if it goes on as it did since its first unit."""
        now, done = time.monotonic(), advanced.done
        since, before = self._paces.get(node, (now, done))
        if done <= before or not done:  # What comes before the first unit has a pace of its own.
            self._paces[node] = now, done
            return None
        return round((now - since) / (done - before) * (advanced.total - done), 1)

    def tell(self, ended: Collection[str]) -> None:
        """Emit what is due.

        Args:
            ended: Ids of the nodes that have ended, hits and skipped ones included.
        """
        now = time.monotonic()
        begun = {node: now - since for node, since in self._since.items() if node not in ended}
        if (state := (len(ended), len(begun))) != self._last:
            self._last = state
            left = self._forecast.left(self._nodes - set(ended) - begun.keys(), begun)
            data = {"done": len(ended), "total": len(self._nodes), **left.to_json()}
            self._listener(Event("run_progress", data))
        for node, seconds in begun.items():
            if seconds - self._told[node] >= INTERVAL:
                self._told[node] = seconds
                self._listener(Event("node_running", {"node": node, "seconds": round(seconds, 1)}))

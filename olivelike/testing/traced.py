"""Graphs that torch's exporter made once on this machine, shared by all processes and sessions that test with them."""

from __future__ import annotations

import datetime as dt
import logging
import time
from typing import TYPE_CHECKING

from olivelike.engine.keys.formulas import pass_key
from olivelike.engine.plan import Key
from olivelike.model import Graph
from olivelike.store import Action, Store
from olivelike.workflow.passes import Registry

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from olivelike.model import Architecture

_MOST_BYTES = 256 << 20
"""What the shared folder may take; graphs of older code are collected first."""


def traced_graph(architecture: Architecture) -> Graph:
    """Return the graph that `convert` makes of an architecture.

    It is traced at most once on a machine for each state of the exporter's code and libraries: results lie in a
    store in the user's cache folder, under the key of the `convert` node.

    Raises:
        PassError: when the network can't be traced.
        StoreError: when the cache folder can't be written; `$XDG_CACHE_HOME` names another one.
    """
    key = _key(architecture)
    store = Store.open(shared_folder())
    with store.lock(key.digest):
        graph = _stored(store, key)
        if graph is None:
            graph = _trace(store, key, architecture)
    return graph


def lend_graphs(folder: Path, architectures: Iterable[Architecture]) -> None:
    """Put the graphs of architectures into another store, so that a run of its project finds `convert` done."""
    store = Store.open(folder)
    for architecture in architectures:
        _keep(store, _key(architecture), traced_graph(architecture), 0.0)


def shared_folder() -> Path:
    """Return the folder of the shared store; nothing in it is needed for long, so it may be removed at any time."""
    from platformdirs import user_cache_path

    return user_cache_path("olivelike", appauthor=False) / "testing"


def _key(architecture: Architecture) -> Key:
    entry = Registry.built_in().get("convert")
    key = pass_key(entry, entry.cls(), {"architecture": architecture.digest}, None)
    assert isinstance(key, Key), key
    return key


def _stored(store: Store, key: Key) -> Graph | None:
    action = store.get_action(key.digest)
    data = store.read_bytes(action.outputs["graph"]) if action is not None else None
    return Graph.from_bytes(data) if data is not None else None


def _trace(store: Store, key: Key, architecture: Architecture) -> Graph:
    from olivelike.graphs.export import export_component

    start = time.perf_counter()
    graph = export_component(architecture, logging.getLogger(__name__))
    _keep(store, key, graph, time.perf_counter() - start)
    store.gc(_MOST_BYTES)
    return graph


def _keep(store: Store, key: Key, graph: Graph, seconds: float) -> None:
    data = graph.to_bytes()
    digest = store.put_bytes(data)
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    store.put_action(
        Action(key.digest, key.inputs(), {"graph": digest}, {digest: len(data)}, {}, seconds, 0, created)
    )

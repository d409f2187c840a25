"""Results that a workflow needs, as far as they are known before it has run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.engine.fleet import plan_fleet
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.workflow.matrix import UnnamedCombinationError

if TYPE_CHECKING:
    from olivelike.extras.shared_store.address import Address


def needed_keys(ref: str, store: Path, shared: Address) -> frozenset[str]:
    """Return the keys of a workflow's stored results, here or in a shared store.

    Raises `OlivelikeError` as `plan`.

    Args:
        ref: Path of a workflow file, or name of a shipped one; with a matrix, all combinations count.
        store: The store's folder.
        shared: The shared store.
    """
    options = Options(cache_dir=store, shared_cache=shared.url)
    try:
        plans = [plan(ref, options)[1]]
    except UnnamedCombinationError:
        plans = [one for _, one in plan_fleet(ref, options).plans.values()]
    return frozenset(
        planned.key.digest
        for found in plans
        for planned in found.nodes
        if planned.status == "hit" and planned.key is not None and planned.node.output is None
    )

"""Why a node runs: the parts of its key that differ from the nearest earlier run of the same node."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from olivelike._text import listed
from olivelike._untrusted import JsonView
from olivelike.engine.keys import CONTENT
from olivelike.model.records.run_record import RunRecord

_SHOWN: Final = 8
"""Most modules that are named: a release changes dozens."""


def differences(now: JsonView, before: JsonView) -> list[str]:
    """Compare the parts of two keys.

    Returns one sentence per part that differs; empty if the keys are equal.

    Args:
        now: Parts of the key that is wanted, as `Key.inputs` gives them.
        before: Parts of an earlier key of the same node.
    """
    found: list[str] = []
    if now["pass"] != before["pass"]:
        found.append(f"pass {before['pass']} became {now['pass']}")
    found += _changes("option", now["options"], before["options"])
    found += _changes("target fact", now["target"] or {}, before["target"] or {})
    found += _changes("version of", now["tools"], before["tools"])
    found += _code(now, before)
    found += _named(now.get("named", {}), before.get("named", {}))
    for facet in sorted(now["facets"].keys() | before["facets"].keys()):
        if now["facets"].get(facet) != before["facets"].get(facet):
            found += _items(facet, now, before) or [f"the {facet} changed"]
    return found


class Earlier(Protocol):
    """Earlier runs, as far as they explain a miss."""

    def groups(self) -> Iterable[Iterable[RunRecord]]:
        """Return run records: those of this workflow, and those of others, which count where it has none."""
        ...


def nearest_of(node_id: str, inputs: JsonView, earlier: Earlier) -> JsonView | None:
    """Return the nearest earlier parts of the same node, of this workflow's runs if one of them had it."""
    found = (nearest(node_id, inputs, runs) for runs in earlier.groups())
    return next((parts for parts in found if parts is not None), None)


def nearest(node_id: str, inputs: JsonView, runs: Iterable[RunRecord]) -> JsonView | None:
    """Return the earlier parts of the same node that differ least from `inputs`, the latest of equals.

    Args:
        node_id: The node, such as `unet.convert`.
        inputs: The parts of the key that is wanted.
        runs: Run records, newest first.
    """
    best: JsonView | None = None
    least = float("inf")
    for run in runs:
        for node in run.nodes:
            if node.id != node_id or node.inputs is None or node.status == "failed":
                continue
            count = len(differences(inputs, node.inputs))
            if count < least:
                best, least = node.inputs, count
    return best


def _changes(what: str, now: JsonView, before: JsonView) -> list[str]:
    found = []
    for name in sorted(now.keys() | before.keys()):
        if name not in before:
            found.append(f"{what} {name} is new ({told(now[name])})")
        elif name not in now:
            found.append(f"{what} {name} is gone (was {told(before[name])})")
        elif now[name] != before[name]:
            found.append(f"{what} {name} changed from {told(before[name])} to {told(now[name])}")
    return found


def _code(now: JsonView, before: JsonView) -> list[str]:
    if now["code"] == before["code"]:
        return []
    new, old = now["modules"], before["modules"]
    changed = sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))
    return [f"code changed: {listed(changed, _SHOWN)}" if changed else "code changed"]


def _named(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    """Compare data files and variables, whose values nobody needs to see."""
    return [f"{name} changed" for name in sorted(now.keys() | before.keys()) if now.get(name) != before.get(name)]


_ITEMS: Final = {"loras": "LoRA", "embeddings": "embedding"}
"""Word for one item of a facet that is a list."""


def _items(facet: str, now: JsonView, before: JsonView) -> list[str]:
    """Compare the items of a facet that is a list, by their names; empty where records do not tell."""
    new, old = (one.get("behind", {}).get(facet) for one in (now, before))
    if new is None or old is None:
        return []
    found, what = [], _ITEMS.get(facet, facet)
    for name in sorted(new.keys() | old.keys()):
        label = f"{what} {name}"
        if name not in old:
            found.append(f"{label} is new{_weight(new[name])}")
        elif name not in new:
            found.append(f"{label} is gone{_weight(old[name])}")
        else:
            for part in sorted(new[name].keys() | old[name].keys()):
                after, earlier = new[name].get(part), old[name].get(part)
                if after != earlier and part == CONTENT:
                    found.append(f"{label}: its content changed")
                elif after != earlier:
                    found.append(f"{label}: {part} changed from {told(earlier)} to {told(after)}")
    return found


def _weight(item: JsonView) -> str:
    return f" (weight {told(item['weight'])})" if "weight" in item else ""


def told(value: Any) -> str:
    """Return a value as a workflow file has it, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Why a node runs: the parts of its key that differ from the nearest earlier run of the same node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from olivelike.model.records.run_record import RunRecord


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Compare the parts of two keys.

    Args:
        now: Parts of the key that is wanted, as `Key.inputs` gives them.
        before: Parts of an earlier key of the same node.

    Returns:
        One sentence per part that differs; empty if the keys are equal."""
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
            found.append(f"the {facet} changed")
    return found


def nearest(node_id: str, inputs: Mapping[str, Any], runs: Iterable[RunRecord]) -> Mapping[str, Any] | None:
    """Return the earlier parts of the same node that differ least from `inputs`, the latest of equals.

    Args:
        node_id: The node, such as `unet.convert`.
        inputs: The parts of the key that is wanted.
        runs: Run records of the same workflow, newest first."""
    best: Mapping[str, Any] | None = None
    least = float("inf")
    for run in runs:
        for node in run.nodes:
            if node.id != node_id or node.inputs is None or node.status == "failed":
                continue
            count = len(differences(inputs, node.inputs))
            if count < least:
                best, least = node.inputs, count
    return best


def _changes(what: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    found = []
    for name in sorted(now.keys() | before.keys()):
        if name not in before:
            found.append(f"{what} {name} is new ({told(now[name])})")
        elif name not in now:
            found.append(f"{what} {name} is gone (was {told(before[name])})")
        elif now[name] != before[name]:
            found.append(f"{what} {name} changed from {told(before[name])} to {told(now[name])}")
    return found


def _code(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    if now["code"] == before["code"]:
        return []
    new, old = now["modules"], before["modules"]
    changed = sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))
    return [f"code changed: {', '.join(changed)}" if changed else "code changed"]


def _named(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    """Compare data files and variables, whose values nobody needs to see."""
    return [f"{name} changed" for name in sorted(now.keys() | before.keys()) if now.get(name) != before.get(name)]


def told(value: Any) -> str:
    """Return a value as a workflow file has it, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."

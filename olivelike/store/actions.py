"""Action records: which objects a key stands for. A record without all its parts is a miss."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from olivelike._untrusted import Json, parse_json
from olivelike.errors import DamagedError
from olivelike.store import objects
from olivelike.store.folder import StoreFolder, is_digest, seal, unseal

KIND = "action/1"
"""Kind of the sealed record; a change of meaning takes the next number."""


@dataclass(frozen=True)
class Action:
    """The record of one executed node: what went in, what came out, what it cost."""

    key: str
    """SHA-256 of all that decides the result."""
    inputs: Json
    """The parts of the key, as JSON."""
    outputs: dict[str, str]
    """Digest of each facet that was produced, by facet name."""
    parts: dict[str, int]
    """Size in bytes of every object that the result needs, by digest: outputs and tensors."""
    facts: Json
    """Report of the pass: counts, decisions, warnings."""
    seconds: float
    peak_memory_bytes: int
    created: str
    """Time in UTC, ISO 8601."""


def put(folder: StoreFolder, action: Action) -> None:
    """Write the record; raises as `Store.put_action`."""
    path = folder.action(action.key)
    data = seal(KIND, asdict(action))
    if parse(folder, path, data) is None:
        raise ValueError(f"the action {action.key} has digests, sizes or outputs that don't fit together")
    if missing := missing_part(folder, action):
        raise DamagedError(
            f"can't record the result {action.key}: its part {folder.object(missing)} is missing or "
            "has the wrong size. Was the store cleared meanwhile? Run again."
        )
    folder.write(path, data)


def recorded(folder: StoreFolder, key: str) -> Action | None:
    """Return the action as recorded, parts or not; a damaged record goes to quarantine."""
    path = folder.action(key)
    data = folder.read(path)
    if data is None:
        return None
    action = parse(folder, path, data)
    if action is None:
        folder.set_aside(path)
    return action


def readable(folder: StoreFolder, paths: Iterable[Path]) -> Iterator[Action]:
    """Yield the records among some files."""
    for path in paths:
        if is_digest(path.stem):
            action = recorded(folder, path.stem)
            if action is not None:
                yield action


def paths(folder: StoreFolder) -> Iterator[Path]:
    """Yield the path of every file that should be a record."""
    for parent in folder.names(folder.actions):
        for name in folder.names(folder.actions / parent):
            yield folder.actions / parent / name


def missing_part(folder: StoreFolder, action: Action) -> str | None:
    """Return the first part that is absent or has the wrong size."""
    return next((part for part, size in action.parts.items() if objects.size(folder, part) != size), None)


def parse(folder: StoreFolder, path: Path, data: bytes | None) -> Action | None:
    """Return the action that a record at `path` holds, or `None` if it is damaged or misplaced."""
    action = decoded(data, path.stem)
    return action if action is not None and folder.action(action.key) == path else None


def decoded(data: bytes | None, key: str) -> Action | None:
    """Return the action that a record holds, or `None` if it is damaged or has another key."""
    content = unseal(KIND, data)
    if content is None or content.keys() != _FIELDS.keys() or content["key"] != key:
        return None
    if not all(is_right(content[name]) for name, is_right in _FIELDS.items()):
        return None
    return Action(**content) if content["parts"].keys() >= set(content["outputs"].values()) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_duration(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST  # type: ignore[operator]


def _is_moment(value: object) -> bool:
    try:
        return isinstance(value, str) and dt.datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_shallow(value: object) -> bool:
    """Tell whether a value is a table of JSON, nested no deeper than what else we read."""
    try:
        return isinstance(value, dict) and parse_json(json.dumps(value)) == value
    except (ValueError, RecursionError):
        return False


_MOST: Final = (1 << 63) - 1
"""Most bytes or seconds; more is no measurement."""
_FIELDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "key": is_digest,
    "inputs": _is_shallow,
    "outputs": lambda table: isinstance(table, dict) and all(map(is_digest, table.values())),
    "parts": lambda table: (
        isinstance(table, dict) and all(map(is_digest, table)) and all(map(_is_count, table.values()))
    ),
    "facts": _is_shallow,
    "seconds": _is_duration,
    "peak_memory_bytes": _is_count,
    "created": _is_moment,
}
"""Tests of each field of a record; each may come from another machine."""

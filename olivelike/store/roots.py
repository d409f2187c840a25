"""Results that garbage collection leaves alone: the roots of live runs, and pins."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from olivelike._untrusted import Json
from olivelike.store import actions
from olivelike.store.folder import StoreFolder, checked_digest, is_digest, seal, unseal

_ROOT = "root/1"
_PIN = "pin/1"


class Root:
    """A live run's list of what it uses; it counts as long as the run's process lives."""

    def __init__(self, folder: StoreFolder, run_id: str) -> None:
        self._folder = folder
        self._path = folder.live_root(run_id)
        self._owner = folder.own_claim().token
        self._keys: set[str] = set()
        self._digests: set[str] = set()
        self._guard = threading.Lock()
        self.add()

    def add(self, keys: Iterable[str] = (), digests: Iterable[str] = ()) -> None:
        """Keep these actions with their parts, and these objects, until the run ends.

        An action that is not recorded yet is kept from the moment that it is.
        """
        with self._guard:
            for key in keys:
                self._keys.add(checked_digest(key))
                # The parts by name too: the record may be dropped while the run still reads them.
                action = actions.recorded(self._folder, key)
                self._digests.update(action.parts if action else ())
            self._digests.update(map(checked_digest, digests))
            content = {"owner": self._owner, "keys": sorted(self._keys), "digests": sorted(self._digests)}
            # Not durable: after a power loss the run is dead.
            self._folder.write(self._path, seal(_ROOT, content), durable=False)


def pin(folder: StoreFolder, name: str, keys: Iterable[str]) -> None:
    """Keep these actions until the pin is removed; one of the same name is replaced."""
    content = {"name": name, "keys": sorted(map(checked_digest, keys))}
    folder.write(folder.pin(name), seal(_PIN, content))


def pins(folder: StoreFolder) -> dict[str, list[str]]:
    """Return the keys of each pin, by its name; damaged ones are left out."""
    found = (read_pin(folder, path) for path in pin_paths(folder))
    return {content["name"]: content["keys"] for content in found if content is not None}


def pin_paths(folder: StoreFolder) -> list[Path]:
    """Return the path of every pin."""
    return [folder.pins / name for name in folder.names(folder.pins)]


def read_pin(folder: StoreFolder, path: Path) -> Json | None:
    """Return a pin's content, or `None` if it is damaged; a pin answers to the name that it was given."""
    content = unseal(_PIN, folder.read(path))
    return content if content and path == folder.pin(content["name"]) else None


def protected(folder: StoreFolder) -> tuple[set[str], set[str]]:
    """Return the keys and the digests that live runs and pins keep; parts of kept actions included."""
    keys = {key for pinned in pins(folder).values() for key in pinned}
    digests: set[str] = set()
    for path in _live_paths(folder):
        if content := _read_live(folder, path):
            keys.update(filter(is_digest, content["keys"]))
            digests.update(content["digests"])
    for key in keys:
        action = actions.recorded(folder, key)
        digests.update(action.parts if action else ())
    return keys, digests


def drop_dead(folder: StoreFolder) -> None:
    """Remove the roots of processes that are gone."""
    for path in _live_paths(folder):
        if _read_live(folder, path) is None:
            folder.fs.remove(path)


def _live_paths(folder: StoreFolder) -> list[Path]:
    return [folder.live_roots / name for name in folder.names(folder.live_roots)]


def _read_live(folder: StoreFolder, path: Path) -> Json | None:
    content = unseal(_ROOT, folder.read(path))
    return content if content and folder.claims.is_live(content["owner"]) else None

"""What garbage collection leaves alone: the roots of live runs, and pins."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from olivelike.store.failures import explained
from olivelike.store.layout import checked_digest, file_name, is_digest
from olivelike.store.records import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from olivelike.store.actions import Actions
    from olivelike.store.liveness import Claims
    from olivelike.store.publisher import Publisher

_ROOT = "root/1"
_PIN = "pin/1"


class Root:
    """A live run's list of what it uses; it counts as long as the run's process lives."""

    def __init__(self, path: Path, owner: str, publisher: Publisher, actions: Actions) -> None:
        self._path = path
        self._owner = owner
        self._publisher = publisher
        self._actions = actions
        self._keys: set[str] = set()
        self._digests: set[str] = set()
        self._guard = threading.Lock()

    def add(self, keys: Iterable[str] = (), digests: Iterable[str] = ()) -> None:
        """Keep these actions with their parts, and these objects, until the run ends.

        An action that is not recorded yet is kept from the moment that it is.
        """
        with self._guard:
            for key in keys:
                self._keys.add(checked_digest(key))
                # The parts by name too: the record may be dropped while the run still reads them.
                action = self._actions.record(key)
                self._digests.update(action.parts if action else ())
            self._digests.update(map(checked_digest, digests))
            self._write()

    def _write(self) -> None:
        content = {"owner": self._owner, "keys": sorted(self._keys), "digests": sorted(self._digests)}
        # Not durable: after a power loss the run is dead.
        self._publisher.write(self._path, seal(_ROOT, content), durable=False)


class Roots:
    """The live roots and the pins of one store."""

    def __init__(self, publisher: Publisher, actions: Actions, claims: Claims) -> None:
        self._publisher = publisher
        self._actions = actions
        self._claims = claims
        self._layout = publisher.layout

    def open(self, run_id: str) -> Root:
        """Register a live run of this process."""
        self._publisher.check_writable()
        path = self._layout.live_root(run_id)
        root = Root(path, self._claims.own().token, self._publisher, self._actions)
        root.add()
        return root

    def close(self, run_id: str) -> None:
        """Forget a run that has ended."""
        path = self._layout.live_root(run_id)
        with explained(path):
            self._publisher.fs.remove(path)

    def pin(self, name: str, keys: Iterable[str]) -> None:
        """Keep these actions until `unpin`; a pin of the same name is replaced."""
        content = {"name": name, "keys": sorted(map(checked_digest, keys))}
        self._publisher.write(self._layout.pin(name), seal(_PIN, content))

    def unpin(self, name: str) -> None:
        """Forget a pin; one that does not exist is no error."""
        self._publisher.check_writable()
        with explained(self._layout.pins):
            self._publisher.fs.remove(self._layout.pin(name))

    def pins(self) -> dict[str, list[str]]:
        """Return the keys of each pin, by its name; damaged ones are left out."""
        found: dict[str, list[str]] = {}
        for path in self.pin_paths():
            content = self.read_pin(path)
            if content is not None:
                found[content["name"]] = content["keys"]
        return found

    def pin_paths(self) -> Iterator[Path]:
        """Yield the path of every pin."""
        return (self._layout.pins / name for name in self._publisher.names(self._layout.pins))

    def read_pin(self, path: Path) -> dict[str, Any] | None:
        """Return a pin's content, or `None` if it is damaged; a pin answers to the name that it was given."""
        content = unseal(_PIN, self._publisher.read(path) or b"")
        return content if content and path.name == f"{file_name(content['name'])}.json" else None

    def protected(self) -> tuple[set[str], set[str]]:
        """Return the keys and the digests that live runs and pins keep; parts of kept actions included."""
        keys = {key for pinned in self.pins().values() for key in pinned}
        digests: set[str] = set()
        for content in self._live():
            keys.update(filter(is_digest, content["keys"]))
            digests.update(content["digests"])
        for key in keys:
            action = self._actions.record(key)
            digests.update(action.parts if action else ())
        return keys, digests

    def drop_dead(self) -> None:
        """Remove the roots of processes that are gone."""
        for path in self._paths():
            if self._read_live(path) is None:
                self._publisher.fs.remove(path)

    def _live(self) -> Iterator[dict[str, list[str]]]:
        for path in self._paths():
            content = self._read_live(path)
            if content is not None:
                yield content

    def _read_live(self, path: Path) -> dict[str, list[str]] | None:
        content = unseal(_ROOT, self._publisher.read(path) or b"")
        return content if content and self._claims.is_live(content["owner"]) else None

    def _paths(self) -> list[Path]:
        return [self._layout.live_roots / name for name in self._publisher.names(self._layout.live_roots)]

"""Action records: which objects a key stands for. A record without all its parts is a miss."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from olivelike.errors import DamagedError
from olivelike.store.action import KIND, Action
from olivelike.store.layout import is_digest
from olivelike.store.records import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from olivelike.store.objects import Objects
    from olivelike.store.publisher import Publisher


class Actions:
    """The action records of one store."""

    def __init__(self, publisher: Publisher, objects: Objects) -> None:
        self._publisher = publisher
        self._objects = objects
        self._layout = publisher.layout

    def get(self, key: str) -> Action | None:
        """Return the action if its record and all its parts are there; note the time of use."""
        action = self.record(key)
        if action is None or self.missing_part(action) is not None:
            return None
        if self._publisher.writable:
            with contextlib.suppress(OSError):  # the time only decides what is collected first
                self._publisher.fs.touch(self._layout.action(key))
        return action

    def put(self, action: Action) -> None:
        """Write the record; every part must be in the store.

        Raises:
            ValueError: if an output is not among the parts.
            DamagedError: if a part is missing: the store was cleared or collected meanwhile.
            StoreError: if the disk refuses.
        """
        data = seal(KIND, action.to_content())
        content = unseal(KIND, data)
        if content is None or Action.from_content(content) is None:
            raise ValueError(f"the action {action.key} has digests, sizes or outputs that don't fit together")
        if missing := self.missing_part(action):
            raise DamagedError(
                f"can't record the result {action.key}: its part {self._objects.path(missing)} is missing or "
                "has the wrong size. Was the store cleared meanwhile? Run again."
            )
        self._publisher.write(self._layout.action(action.key), data)

    def record(self, key: str) -> Action | None:
        """Return the action as recorded, parts or not; a damaged record goes to quarantine."""
        path = self._layout.action(key)
        data = self._publisher.read(path)
        if data is None:
            return None
        action = self.parse(path, data)
        if action is None:
            self._publisher.set_aside(path)
        return action

    def parse(self, path: Path, data: bytes) -> Action | None:
        """Return the action that a record at `path` holds, or `None` if it is damaged or misplaced."""
        content = unseal(KIND, data)
        action = Action.from_content(content) if content is not None else None
        return action if action is not None and self._layout.action(action.key) == path else None

    def records(self) -> Iterator[Action]:
        """Yield every readable record, by key."""
        for path in self.paths():
            if is_digest(path.stem):
                action = self.record(path.stem)
                if action is not None:
                    yield action

    def paths(self) -> Iterator[Path]:
        """Yield the path of every file that should be a record."""
        names = self._publisher.names
        for folder in names(self._layout.actions):
            for name in names(self._layout.actions / folder):
                yield self._layout.actions / folder / name

    def missing_part(self, action: Action) -> str | None:
        """Return the first part that is absent or has the wrong size."""
        return next((part for part, size in action.parts.items() if self._objects.size(part) != size), None)

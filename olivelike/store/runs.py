"""Run records and logs: what each run did, for `explain` and for people."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.store.failures import explained
from olivelike.store.layout import Layout
from olivelike.store.records import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.store.publisher import Publisher

_KIND = "run/1"
KEPT_RUNS = 200
"""How many run records, with their logs, garbage collection leaves."""


def new_run_id() -> str:
    """Return a new run id; ids sort by time."""
    from datetime import UTC, datetime

    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.urandom(3).hex()}"


class Runs:
    """The run records and logs of one store."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._layout = publisher.layout

    @cached_property
    def _elsewhere(self) -> Layout:
        """Where a store that can't be written has its logs."""
        import tempfile

        return Layout(Path(tempfile.mkdtemp(prefix="olivelike-logs-")))

    def put(self, record: dict[str, Any]) -> Path:
        """Write a run's record under its `run_id`; a later record of the same run replaces it."""
        path = self._layout.run(record["run_id"])
        self._publisher.write(path, seal(_KIND, record))
        return path

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records, newest first; damaged ones are left out."""
        for path in reversed(self.paths()):
            record = self.read(path)
            if record is not None:
                yield record

    def paths(self) -> list[Path]:
        """Return the paths of all records, oldest first."""
        return [self._layout.runs / name for name in self._publisher.names(self._layout.runs)]

    def read(self, path: Path) -> dict[str, Any] | None:
        """Return one record, or `None` if it is damaged."""
        record = unseal(_KIND, self._publisher.read(path) or b"")
        return record if record and f"{record['run_id']}.json" == path.name else None

    def log_path(self, run_id: str, node: str) -> Path:
        """Return the path of a node's log; its folder exists at return, in the system's temporary one if need be."""
        path = (self._layout if self._publisher.writable else self._elsewhere).log(run_id, node)
        with explained(path):
            self._publisher.fs.make_folder(path.parent)
        return path

    def folder(self, run_id: str) -> Path:
        """Return the folder of a run's logs; it exists at return."""
        return self.log_path(run_id, "workers").parent

    def drop_elsewhere(self) -> None:
        """Remove the logs of a store that can't be written."""
        if "_elsewhere" in self.__dict__:
            self._publisher.fs.remove(self._elsewhere.root)
            del self._elsewhere

    def drop_old(self) -> None:
        """Remove all but the newest records, and the logs of runs older than those."""
        kept = {path.stem for path in self.paths()[-KEPT_RUNS:]}
        for path in self.paths():
            if path.stem not in kept:
                self._publisher.fs.remove(path)
        oldest = min(kept, default="")
        for name in self._publisher.names(self._layout.logs):
            if name < oldest:
                self._publisher.fs.remove(self._layout.logs / name)

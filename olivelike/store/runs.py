"""Run records and logs: what each run did, for `explain` and for people."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from olivelike._untrusted import Json
from olivelike.store.folder import StoreFolder, unseal

KIND = "run/1"
"""Kind of the sealed record."""
KEPT_RUNS = 200
"""Number of run records, with their logs, that garbage collection leaves."""


def new_run_id() -> str:
    """Return a new run id; ids sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.urandom(3).hex()}"


def paths(folder: StoreFolder) -> list[Path]:
    """Return the paths of all records, oldest first."""
    return [folder.runs / name for name in folder.names(folder.runs)]


def read(folder: StoreFolder, path: Path) -> Json | None:
    """Return one record, or `None` if it is damaged."""
    record = unseal(KIND, folder.read(path))
    return record if record and f"{record['run_id']}.json" == path.name else None


def drop_old(folder: StoreFolder) -> None:
    """Remove all but the newest records, and the logs of runs older than those."""
    kept = {path.stem for path in paths(folder)[-KEPT_RUNS:]}
    for path in paths(folder):
        if path.stem not in kept:
            folder.fs.remove(path)
    oldest = min(kept, default="")
    for name in folder.names(folder.logs):
        if name < oldest:
            folder.fs.remove(folder.logs / name)

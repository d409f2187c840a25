"""Checks every byte of the store against its hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from olivelike.store import actions, objects, roots, runs
from olivelike.store.folder import StoreFolder, is_digest


@dataclass(frozen=True)
class Problem:
    """One entry that is not as it should be."""

    path: Path
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` read and found."""

    objects: int
    bytes: int
    actions: int
    problems: list[Problem] = field(default_factory=list)
    repaired: bool = False
    """Whether each problem was moved to quarantine or removed; what needs it is then remade."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify(folder: StoreFolder, *, repair: bool, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Read everything; if `repair`, move what is wrong to quarantine."""
    if repair:
        folder.check_writable()
    files = sorted(folder.fs.files(folder.objects))
    total, done = sum(status.st_size for _, status in files), 0
    problems: list[Problem] = []

    def report(path: Path, reason: str | None) -> None:
        if reason is not None:
            problems.append(Problem(path, reason))
            if repair:
                folder.set_aside(path)

    for path, status in files:
        report(path, _wrong_object(folder, path))
        done += status.st_size
        if progress is not None:
            progress(done, total)
    damaged = {problem.path for problem in problems}
    records = list(actions.paths(folder))
    for path in records:
        report(path, _wrong_action(folder, path, damaged))
    for path in _unreadable(folder):
        report(path, "is damaged")
    return VerifyReport(len(files), total, len(records), problems, repair and bool(problems))


def _wrong_object(folder: StoreFolder, path: Path) -> str | None:
    if not is_digest(path.name) or folder.object(path.name) != path:
        return "is no object"
    whole = objects.is_whole(folder, path.name) or not path.exists()
    return None if whole else "does not match its hash"


def _wrong_action(folder: StoreFolder, path: Path, damaged: set[Path]) -> str | None:
    action = actions.parse(folder, path, folder.read(path))
    if action is None:
        return "is damaged" if path.exists() else None
    missing = actions.missing_part(folder, action)
    missing = missing or next((part for part in action.parts if folder.object(part) in damaged), None)
    return missing and f"needs the object {missing}, which is missing or damaged"


def _unreadable(folder: StoreFolder) -> Iterator[Path]:
    """Yield the run records and pins that are there and can't be read."""
    for path in runs.paths(folder):
        if runs.read(folder, path) is None and path.exists():
            yield path
    for path in roots.pin_paths(folder):
        if roots.read_pin(folder, path) is None and path.exists():
            yield path

"""Checks every byte of the store against its hash."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from olivelike.store.layout import is_digest
from olivelike.store.reports import Problem, VerifyReport

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from olivelike.store.actions import Actions
    from olivelike.store.objects import Objects
    from olivelike.store.publisher import Publisher
    from olivelike.store.roots import Roots
    from olivelike.store.runs import Runs


@dataclass
class Verifier:
    """One pass over a store; what it finds is collected in `problems`."""

    publisher: Publisher
    objects: Objects
    actions: Actions
    roots: Roots
    runs: Runs
    repair: bool
    progress: Callable[[int, int], None] | None = None
    problems: list[Problem] = field(default_factory=list)

    def verify(self) -> VerifyReport:
        """Read everything; if `repair`, move what is wrong to quarantine."""
        if self.repair:
            self.publisher.check_writable()
        objects, size = self._check_objects()
        actions = self._check_actions()
        self._check_records()
        return VerifyReport(objects, size, actions, self.problems, self.repair and bool(self.problems))

    def _check_objects(self) -> tuple[int, int]:
        files = sorted(self.publisher.fs.files(self.publisher.layout.objects))
        total = sum(status.st_size for _, status in files)
        done = 0
        for path, status in files:
            if not is_digest(path.name) or self.objects.path(path.name) != path:
                self._report(path, "is no object")
            elif not self.objects.is_whole(path.name) and path.exists():
                self._report(path, "does not match its hash")
            done += status.st_size
            if self.progress is not None:
                self.progress(done, total)
        return len(files), total

    def _check_actions(self) -> int:
        damaged = {problem.path for problem in self.problems}
        count = 0
        for path in self.actions.paths():
            count += 1
            action = self.actions.parse(path, self.publisher.read(path) or b"")
            if action is None:
                if path.exists():
                    self._report(path, "is damaged")
                continue
            missing = self.actions.missing_part(action)
            if missing is None:
                missing = next((part for part in action.parts if self.objects.path(part) in damaged), None)
            if missing is not None:
                self._report(path, f"needs the object {missing}, which is missing or damaged")
        return count

    def _check_records(self) -> None:
        for path in self.runs.paths():
            if self.runs.read(path) is None and path.exists():
                self._report(path, "is damaged")
        for path in self.roots.pin_paths():
            if self.roots.read_pin(path) is None and path.exists():
                self._report(path, "is damaged")

    def _report(self, path: Path, reason: str) -> None:
        self.problems.append(Problem(path, reason))
        if self.repair:
            self.publisher.set_aside(path)

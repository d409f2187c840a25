"""Findings: what is wrong with a workflow, and exactly where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from olivelike._text import listed
from olivelike.errors import WorkflowError

_MOST = 100
"""Findings; who has more has one mistake that repeats."""
_LONGEST = 2000
_SHOWN = 8
"""Places that a message names where one thing is wrong in several."""
_WIDEST = 120


@dataclass(frozen=True)
class Document:
    """A text that values come from: a workflow file, or one `--set` argument."""

    label: str
    """How messages name it."""
    lines: tuple[str, ...] = ()
    """Lines that messages may quote."""
    path: Path | None = None
    """`None` for a `--set` argument."""


@dataclass(frozen=True)
class Position:
    """A place in a document; line and column count from 1."""

    document: Document
    line: int
    column: int

    def __str__(self) -> str:
        """Return `file:line:column`, or the `--set` argument as it was given."""
        if self.document.path is None:
            return self.document.label
        return f"{self.document.label}:{self.line}:{self.column}"

    def excerpt(self) -> str:
        """Return the line with a caret under the column; empty for a `--set` argument."""
        if self.document.path is None or self.line > len(self.document.lines):
            return ""
        line, column = _window(self.document.lines[self.line - 1], self.column)
        # Tabs stay tabs, so that the caret stands under the right character.
        pad = "".join("\t" if char == "\t" else " " for char in line[: column - 1])
        return f"\n  {line}\n  {pad}^"

    def error(self, message: str) -> WorkflowError:
        """Return an error about this place alone."""
        return WorkflowError(f"{self}: {message}{self.excerpt()}")


class Findings:
    """Collects all that is wrong, so that one run reports everything."""

    def __init__(self) -> None:
        self._found: list[tuple[Position, str]] = []

    def add(self, position: Position, message: str) -> None:
        """Note one finding. Raises `WorkflowError` with all that was found, if that is a lot."""
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
        if (position, message) not in self._found:
            self._found.append((position, message))
        if len(self._found) == _MOST:
            raise WorkflowError(*self._rendered(), "there may be more; correct these first")

    def take(self, others: Findings) -> None:
        """Note what another collection holds."""
        for position, message in others._found:
            self.add(position, message)

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_if_any(self) -> None:
        """Raise all findings as one error, in the order of the files. Raises `WorkflowError` if there are findings."""
        if self._found:
            raise WorkflowError(*self._rendered())

    def _rendered(self) -> Iterator[str]:
        labels = list(dict.fromkeys(position.document.label for position, _ in self._found))
        ordered = sorted(
            self._found, key=lambda found: (labels.index(found[0].document.label), found[0].line, found[0].column)
        )
        same: dict[tuple[str, str], list[Position]] = {}
        for position, message in ordered:
            same.setdefault((position.document.label, message), []).append(position)
        for (_, message), (first, *others) in same.items():
            places = [f"{one.line}:{one.column}" for one in others if one.document.path is not None]
            too = f" (also at {listed(places, _SHOWN)})" if places else ""
            yield f"{first}: {message}{too}{first.excerpt()}"


def _window(line: str, column: int) -> tuple[str, int]:
    """Return what to show of a line, and the column in it."""
    if len(line) <= _WIDEST:
        return line, column
    start = max(0, min(column - _WIDEST // 2, len(line) - _WIDEST))
    before, after = "…" if start else "", "…" if start + _WIDEST < len(line) else ""
    return f"{before}{line[start : start + _WIDEST]}{after}", column - start + len(before)


def file_label(path: Path) -> str:
    """Return how messages name an absolute path: relative to the current folder if it lies in it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)

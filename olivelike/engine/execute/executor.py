"""Runners of tasks: four methods, behind which are worker processes, or an extra."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from olivelike._untrusted import JsonView

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.engine.kinds.kind import Done, Task


@dataclass(frozen=True)
class Demand:
    """Memory, provider and time that a task asks of its runner."""

    heavy: bool = False
    """Whether it fills memory with libraries in any case, so that a process that holds much will do."""
    memory_bytes: int = 0
    """Peak resident memory of its process, as expected."""
    provider: str | None = None
    """Execution provider that it runs networks on."""
    key: str | None = None
    """Digest of the node's key."""
    seconds: float | None = None
    """How long it may take, from when a process is given it; `None` for ever."""


@dataclass(frozen=True)
class Advanced:
    """How far a task is: `done` of `total`, in a unit of its own."""

    done: int
    total: int
    note: str = ""
    """The work at hand, in words: `picture 1 of 2, step 3 of 8`."""


@dataclass(frozen=True)
class Failed:
    """Why a task has no result."""

    message: str
    error: str
    """The kind of error: `OlivelikeError.word`."""
    facts: JsonView = field(default_factory=dict)
    memory_before_bytes: int = 0
    """Resident memory of the worker as it began."""


@dataclass(frozen=True)
class Answer:
    """A task's word on how it goes; after `Done` or `Failed` it says no more."""

    node: str
    content: Advanced | Done | Failed
    peak_memory_bytes: int = 0
    """The most that the task's process had resident while it ran, with what that had before."""
    host: str | None = None
    """The machine that did it, if that may be another one."""


LIGHT = Demand()


class Executor(Protocol):
    """Runs tasks, any number at once that whoever submits them thinks right."""

    @property
    def size(self) -> int:
        """Number of tasks that it does at once now."""

    @property
    def memory_limit(self) -> int | None:
        """Bytes that they may take together; `None` for the run's own limit on this machine."""

    def submit(self, task: Task, demand: Demand = LIGHT) -> None:
        """Begin a task."""

    def next_answer(self, timeout: float) -> Answer | None:
        """Return what a task says next; `None` if none says anything within so many seconds."""

    def cancel(self, node: str) -> None:
        """End a node's task; it says no more."""

    def close(self) -> int:
        """End all tasks; return the most bytes that everything together had resident at once."""


class ExecutorMaker(Protocol):
    """A class of executors."""

    def __call__(self, size: int, log: Path) -> Executor:
        """Make one for so many tasks at once; what is said outside of them goes to `log`."""

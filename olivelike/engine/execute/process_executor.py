"""Tasks in worker processes: started when first needed, reused while they live, replaced when they die."""

from __future__ import annotations

import queue
import time
from pathlib import Path

from olivelike._json_child import JsonChild, how_it_ended
from olivelike._memory import MemoryWatch, resident
from olivelike._untrusted import Json
from olivelike.engine.execute.executor import LIGHT, Advanced, Answer, Demand, Failed
from olivelike.engine.kinds.kind import Done, Task
from olivelike.errors import PassError

_REUSE_BELOW = 700 << 20
"""A worker that holds more than this is replaced before a task that needs no heavy library."""
_CONTENTS = {"advanced": Advanced, "done": Done, "failed": Failed}


class _Worker(JsonChild):
    """One child process, and the node whose task it does."""

    def __init__(self, heard: queue.SimpleQueue[tuple[_Worker, Json | int]], log: Path) -> None:
        self.node: str | None = None
        self.limit: float | None = None
        """Seconds that the task may take."""
        self.began = 0.0
        self._heard = heard
        super().__init__("olivelike.engine.execute.worker", log, self._hear, self._hear)

    def _hear(self, message: Json | int) -> None:
        self._heard.put((self, message))


class ProcessExecutor:
    """At most `size` worker processes."""

    memory_limit = None

    def __init__(self, size: int, log: Path) -> None:
        """Start nothing yet; what workers say outside of a task goes to `log`."""
        self.size, self._log = size, log
        self._workers: list[_Worker] = []
        self._heard: queue.SimpleQueue[tuple[_Worker, Json | int]] = queue.SimpleQueue()
        """Answers, and the status of a process that has ended."""
        self._memory = MemoryWatch(lambda: [worker.pid for worker in list(self._workers)])

    def submit(self, task: Task, demand: Demand = LIGHT) -> None:
        """Begin a task in a worker that is idle."""
        worker = self._idle(heavy=demand.heavy)
        worker.node, worker.limit, worker.began = task.place.node, demand.seconds, time.monotonic()
        self._memory.begin(worker.pid)
        worker.send(task.to_json())

    def next_answer(self, timeout: float) -> Answer | None:
        """Return what a task says next; a worker that died has failed, and so has one that takes longer than it may."""
        if (late := self._late()) is not None:
            return late
        try:
            worker, message = self._heard.get(timeout=timeout)
        except queue.Empty:
            return None
        node = worker.node
        if node is None:
            return None
        if isinstance(message, int):
            hint = "; try --workers 1" if message < 0 else ""
            failed = Failed(f"its process {how_it_ended(message)}{hint}", PassError.word)
            answer = Answer(node, failed, self._memory.peak_of(worker.pid))
            self._drop(worker)
            return answer
        content = _CONTENTS[message.pop("answer")](**message)
        if not isinstance(content, Advanced):
            worker.node = None
        return Answer(node, content, self._memory.peak_of(worker.pid))

    def _late(self) -> Answer | None:
        """End a worker whose task takes longer than it may, and return that it failed."""
        for worker in self._workers:
            limit, node = worker.limit, worker.node
            if node is not None and limit is not None and time.monotonic() - worker.began > limit:
                failed = Failed(
                    f"took more than {limit:g} s, which --step-timeout allows, and was ended", PassError.word
                )
                answer = Answer(node, failed, self._memory.peak_of(worker.pid))
                self._drop(worker)
                return answer
        return None

    def cancel(self, node: str) -> None:
        """End the worker that does a node's task."""
        for worker in [worker for worker in self._workers if worker.node == node]:
            self._drop(worker)

    def close(self) -> int:
        """End all workers."""
        for worker in list(self._workers):
            self._drop(worker)
        return self._memory.stop()

    @property
    def pids(self) -> dict[int, str | None]:
        """The node whose task each worker does, by process id."""
        return {worker.pid: worker.node for worker in self._workers}

    def _idle(self, *, heavy: bool) -> _Worker:
        for worker in [worker for worker in self._workers if worker.node is None and worker.has_ended]:
            self._drop(worker)
        idle = [worker for worker in self._workers if worker.node is None]
        fitting = [worker for worker in idle if heavy or resident(worker.pid) < _REUSE_BELOW]
        if fitting:
            return fitting[-1]
        if len(self._workers) >= self.size and idle:
            self._drop(idle[0])
        self._workers.append(_Worker(self._heard, self._log))
        return self._workers[-1]

    def _drop(self, worker: _Worker) -> None:
        worker.node = None
        worker.stop()
        self._workers.remove(worker)

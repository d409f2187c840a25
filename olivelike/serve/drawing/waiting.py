"""The queue: clients take turns, and each one's jobs are drawn in the order in which they came."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import chain, zip_longest


class FairQueue:
    """Jobs that wait, by id."""

    def __init__(self, order: Iterable[tuple[str, str | None]] = ()) -> None:
        """Begin with jobs in an order that `order` has returned, with their clients; those without one were begun."""
        self._first: deque[str] = deque()
        self._lines: OrderedDict[str, deque[str]] = OrderedDict()
        """Each client's jobs; the client that is next comes first."""
        for job, client in order:
            if client is None:
                self._first.append(job)
            else:
                self.push(job, client)

    def __len__(self) -> int:
        return len(self._first) + sum(map(len, self._lines.values()))

    def push(self, job: str, client: str) -> None:
        """Put a job behind the others of its client."""
        self._lines.setdefault(client, deque()).append(job)

    def push_front(self, job: str) -> None:
        """Put a job before all others: one that was begun already."""
        self._first.appendleft(job)

    def pop(self) -> str | None:
        """Take the next job; `None` if there is none."""
        if self._first:
            return self._first.popleft()
        if not self._lines:
            return None
        client, line = self._lines.popitem(last=False)
        job = line.popleft()
        if line:
            self._lines[client] = line  # Behind the other clients.
        return job

    def remove(self, job: str) -> bool:
        """Take a job out; say whether it waited."""
        if job in self._first:
            self._first.remove(job)
            return True
        for client, line in self._lines.items():
            if job in line:
                line.remove(job)
                if not line:
                    del self._lines[client]
                return True
        return False

    def move(self, job: str, places: int) -> bool:
        """Move a job so many places among those of its client, to the front where that is below 0; say if it waited."""
        for line in self._lines.values():
            if job in line:
                place = line.index(job)
                line.remove(job)
                line.insert(max(0, place + places), job)
                return True
        return job in self._first  # It was begun already, and goes first.

    @property
    def begun(self) -> list[str]:
        """Return the jobs that were begun already, whoever's they are."""
        return list(self._first)

    def first_of(self, client: str) -> str | None:
        """Return a client's job that is next, of those that were not begun."""
        line = self._lines.get(client)
        return line[0] if line else None

    def order(self) -> list[str]:
        """Return all jobs as they will be drawn, if no other comes."""
        rounds = chain.from_iterable(zip_longest(*self._lines.values()))
        return [*self._first, *(job for job in rounds if job is not None)]

    def places(self) -> dict[str, int]:
        """Return the place of each job in that order, from 0."""
        return {job: place for place, job in enumerate(self.order())}

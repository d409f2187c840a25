"""Work on some items ahead of the one that is needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS: Final = 2
_AHEAD: Final = 64
"""Items that may wait to be taken, if their bytes are limited: most are small, and none should wait for them."""


def ahead(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    nbytes: Callable[[Item], int] = lambda _: 0,
    most_bytes: int = 0,
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with what `work` makes of it, in order, while two threads work on the next ones.

    Args:
        work: Called in a thread; what it raises is raised where its item comes.
        items: Taken as room for them comes.
        nbytes: What an item holds in memory until it is yielded.
        most_bytes: Of all items that are worked on or wait, unless a single one has more.
    """
    pending: deque[tuple[Item, int, Future[Result]]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for item in items:
                size = nbytes(item)
                held = sum(n for _, n, _ in pending)
                while pending and (len(pending) > (_AHEAD if most_bytes else _THREADS) or held + size > most_bytes > 0):
                    done, freed, future = pending.popleft()
                    held -= freed
                    yield done, future.result()
                pending.append((item, size, pool.submit(work, item)))
            while pending:
                done, _, future = pending.popleft()
                yield done, future.result()
        finally:
            pool.shutdown(cancel_futures=True)

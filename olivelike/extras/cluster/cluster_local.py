"""The cluster of `local:N`: a Dask scheduler and N workers in this process, which no other process can reach.

They speak through memory (`inproc://`), and their HTTP servers are left out, so nothing listens on a socket. Tasks and
pictures are made in child processes of ours as anywhere else.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import SpecCluster


def local_cluster(workers: int) -> SpecCluster:
    """Start so many workers, which do one task each at once."""
    from distributed import Scheduler, SpecCluster, Worker

    class Deaf:
        """A part of a cluster without the HTTP server, which Dask has on all interfaces where it is left alone."""

        def start_http_server(self, *_arguments: Any, **_named: Any) -> None:
            """Start none."""

    class DeafScheduler(Deaf, Scheduler):
        pass

    class DeafWorker(Deaf, Worker):
        pass

    return SpecCluster(
        scheduler={"cls": DeafScheduler, "options": {"protocol": "inproc://", "dashboard": False}},
        workers={one: {"cls": DeafWorker, "options": {"nthreads": 1, "memory_limit": 0}} for one in range(workers)},
        silence_logs=logging.CRITICAL,
    )

"""The workers of a Dask cluster: which of them can do our work, and asking one of them something."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from pydantic import TypeAdapter

from olivelike._untrusted import JsonView, one_line, open_file
from olivelike.engine.execute.executor import LIGHT, Demand
from olivelike.engine.run_result import versions
from olivelike.errors import MissingError, SessionError, UsageError, error_of
from olivelike.extras.cluster import cluster_site
from olivelike.extras.cluster.cluster_data import LOST, DataConnection, ForeignError, Reply, unpacked
from olivelike.extras.cluster.cluster_site import Facts
from olivelike.workflow.code.code_digest import engine_code

if TYPE_CHECKING:
    from distributed import Client, SpecCluster


_CONNECT_SECONDS: Final = 20
_MOST_SAID: Final = 300
_LOSSES: Final = re.compile(
    r".*\.(KilledWorker|CancelledError|TimeoutError|OSError|BrokenPipeError|CommClosedError|Connection[A-Za-z]*Error)"
)
"""Kinds of errors by which Dask says that a worker is gone."""
_LOCAL = re.compile(r"local:([1-9][0-9]{0,2})")
_REPLY = TypeAdapter(Reply)
_FACTS = TypeAdapter(Facts)


@dataclass
class Site:
    """A worker of the cluster, as we know it."""

    address: str
    facts: JsonView
    threads: int
    busy: dict[str, int] = field(default_factory=dict)
    """Expected bytes of what it does for us, by name."""
    runs: dict[str | None, bool] = field(default_factory=dict)
    """Whether it runs networks on an execution provider, by name, as far as that was asked."""

    @property
    def host(self) -> str:
        """Its machine, and its address."""
        return f"{self.facts['host']} ({self.address})"

    def has_room(self, demand: Demand) -> bool:
        """Tell whether it may do more."""
        used = sum(self.busy.values())
        fits = not self.busy or used + demand.memory_bytes <= self.facts["memory_bytes"]
        return len(self.busy) < self.threads and fits


class LostError(Exception):
    """A worker is gone, or started anew."""


class ClusterWorkers:
    """The workers of `tcp://HOST:PORT`, the scheduler of a Dask cluster, or of `local:N`, so many processes here."""

    def __init__(self, address: str, folder: Path) -> None:
        """Connect, and see which workers fit.

        Raises `MissingError` if Dask is not installed, nothing answers, or there is no worker, and `SessionError` if no
        worker has this olivelike with these libraries.

        Args:
            address: The cluster.
            folder: A folder of ours, by which a worker tells whether it sees our files.
        """
        self._folder, self._token = folder, secrets.token_hex(6)
        self._link, self.client = _connect(address)
        self.are_ours = _LOCAL.fullmatch(address) is not None
        """Whether the workers are parts of this process: they see its files, and run what it runs."""
        self.sites: dict[str, Site] = {}
        """Workers that can do our work, by address; changed under `changed`."""
        self._refused: dict[str, str] = {}
        self.changed = threading.Condition()
        try:
            self.wait_for_workers()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the cluster go; one of this process ends."""
        with contextlib.suppress(Exception):
            self.client.close()
        self._link.close()
        if self.are_ours:
            cluster_site.end_sides()

    def ask(self, site: Site, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Have a short function run at a worker, beside the task that it does, and return its answer.

        Raises:
            LostError: if it is not there.
            OlivelikeError: that the function has raised.
            SessionError: if the answer is not of the type that the function names.
        """
        try:
            answer = self.client.run(cluster_site.answer, function, *values, workers=[site.address], **named)
            data = answer[site.address]
        except Exception as error:  # noqa: BLE001  (whatever a worker or a scheduler says in place of an answer)
            if is_loss(error) or not self.is_there(site):
                raise LostError from None
            raise nonsense(site.host, error) from None
        return read_answer(site, data, _type_of(function))

    def send(self, site: Site, name: str, files: Mapping[str, Path], between: Callable[[], None]) -> None:
        """Send a worker's own store what it lacks of some files.

        Raises `LostError` if the worker is not there, and `FileNotFoundError` if a file is not.

        Args:
            site: The worker.
            name: What they are for; what comes for it is forgotten when that is cancelled.
            files: By digest.
            between: Called before each piece; raising from it gives up.
        """
        for digest in self.ask(site, cluster_site.lacking, list(files)):
            with open_file(files[digest]) as file:
                piece, last = file.read(cluster_site.PIECE_BYTES), False
                while not last:
                    between()
                    following = file.read(cluster_site.PIECE_BYTES)
                    last = not following
                    self.ask(site, cluster_site.receive, name, digest, piece, last)
                    piece = following

    def fetch(self, site: Site, what: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of an object of a worker's own store, by its digest, or of a file there, by its path.

        Raises `LostError` if the worker is not there, or has fewer bytes.
        """
        offset = 0
        while offset < size:
            piece = self.ask(site, cluster_site.give, what, offset)
            if not isinstance(piece, bytes) or not 0 < len(piece) <= size - offset:
                raise LostError
            offset += len(piece)
            yield piece

    def try_provider(self, provider: str | None) -> None:
        """Learn which workers run networks on a provider."""
        for site in list(self.sites.values()) if provider is not None else ():
            if provider not in site.runs:
                with contextlib.suppress(LostError):
                    site.runs[provider] = self.ask(site, cluster_site.runs, provider)

    def lack(self, demand: Demand) -> str:
        """Return why no worker can do something."""
        if self.sites and demand.provider:
            return f"no worker of the cluster has {demand.provider}; start one on a machine that has it"
        refused = "".join(f"\n  {address}: {why}" for address, why in self._refused.items())
        return "no worker of the cluster can do it; start one with `dask worker`" + refused

    def wait_for_workers(self) -> None:
        """Wait for the first workers; raises as the constructor."""
        try:
            self.client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except TimeoutError:
            raise MissingError("the cluster has no worker; start one with `dask worker ADDRESS`") from None
        self.look()
        if not self.sites:
            raise SessionError(self.lack(LIGHT))

    def look(self) -> None:
        """Learn of workers that came or went."""
        try:
            known = self.client.scheduler_info(n_workers=-1)["workers"]
            threads = {str(address): int(worker["nthreads"]) for address, worker in known.items()}
        except (OSError, TimeoutError) as error:
            raise SessionError(f"the scheduler of the cluster no longer answers ({error}); run again") from None
        except Exception as error:  # noqa: BLE001  (whatever a scheduler says in place of an answer)
            raise nonsense("the scheduler of the cluster", error) from None
        with self.changed:
            for address in self.sites.keys() - threads.keys():
                del self.sites[address]
            new = [address for address in threads if address not in self.sites and address not in self._refused]
        for address in new:
            try:
                facts = self._describe(address)
                reason = _difference(facts)
            except LostError:
                continue
            except SessionError as error:
                facts, reason = {}, str(error)
            with self.changed:
                if reason is None:
                    self.sites[address] = Site(address, facts, threads[address])
                else:
                    self._refused[address] = reason
                self.changed.notify_all()

    def _describe(self, address: str) -> JsonView:
        """Return what a worker says of itself; raises as `ask`."""
        probe, token = self._folder / f"probe-{self._token}", secrets.token_hex(8)
        probe.write_text(token, encoding="ascii")
        try:
            found = self.client.run(cluster_site.answer, cluster_site.describe, str(probe), token, workers=[address])
            facts = vars(read_answer(Site(address, {"host": "a worker"}, 0), found[address], _FACTS))
        except (ForeignError, OSError, KeyError, TimeoutError, ValueError) as error:
            if not isinstance(error, ForeignError) or is_loss(error):
                raise LostError from None  # It is gone again, or not there yet.
            if any("ModuleNotFoundError" in name for name in error.names()):
                return {"lack": "it has no olivelike, or lacks what that takes"}
            raise nonsense(address, error) from None
        finally:
            probe.unlink(missing_ok=True)
        return {**facts, "shares": True} if self.are_ours else facts

    def forget(self, site: Site) -> None:
        """Note that a worker is lost; one that comes back is another one."""
        with self.changed:
            if self.sites.get(site.address) is site:
                del self.sites[site.address]

    def is_there(self, site: Site) -> bool:
        """Tell whether a worker is there still, and not another one at its address."""
        self.look()
        return self.sites.get(site.address) is site


def _difference(facts: JsonView) -> str | None:
    """Return why a worker would not give the same results, `None` if it would."""
    if "lack" in facts:
        return f"{facts['lack']}; install olivelike there"
    theirs, ours = facts["versions"], versions()
    for name in ("olivelike", *ours):
        if name != "python" and theirs.get(name) != ours.get(name):
            there, here = theirs.get(name, "is missing"), ours.get(name, "is missing")
            return f"{name} {there} there, and {here} on this machine; install the same"
    if facts["code"] != engine_code():
        return f"its olivelike {ours['olivelike']} has other code than this machine's; install the same"
    return None


def read_answer(site: Site, data: object, kind: TypeAdapter[Any]) -> Any:
    """Return the value in an answer of a worker; raises as `ClusterWorkers.ask`."""
    try:
        answer = _REPLY.validate_python(unpacked(data))
        if answer.error is None:
            return kind.validate_python(answer.value)
    except (TypeError, ValueError) as error:  # of msgpack, for keys that are none; pydantic's is a ValueError
        raise nonsense(site.host, error) from None
    if answer.error == LOST:
        raise LostError
    text = answer.text or "it failed, and gave no reason; see its log"
    raise error_of(answer.error)(text if answer.error and answer.text else f"{site.host}: {text}")


def is_loss(error: Exception) -> bool:
    """Tell whether an error, raised here or told by the scheduler, says that a worker is gone."""
    if isinstance(error, ForeignError):
        return any(_LOSSES.fullmatch(name) for name in error.names())
    return isinstance(error, OSError | TimeoutError)


def nonsense(who: str, error: Exception) -> SessionError:
    """Return the error of a worker, or a scheduler, whose answer is none."""
    said = one_line(f"{type(error).__name__}: {error}")[:_MOST_SAID]
    return SessionError(f"{who} gave an answer that olivelike can't read ({said}); see the log of that worker")


@cache
def _type_of(function: Callable[..., Any]) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(function)["return"])


def _connect(address: str) -> tuple[SpecCluster | DataConnection, Client]:
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise MissingError("a cluster takes Dask; run `pip install 'olivelike[cluster]'`") from None
    if (local := _LOCAL.fullmatch(address)) is not None:
        cluster = local_cluster(int(local[1]))
        return cluster, Client(cluster)
    if re.fullmatch(r"(tcp|tls|ws|wss)://[^\s/]+:[0-9]{1,5}", address) is None:
        raise UsageError(f"--cluster {address!r} is no cluster; give tcp://HOST:PORT of a Dask scheduler, or local:N")
    try:
        connection = DataConnection(address, _CONNECT_SECONDS)
    except (OSError, TimeoutError) as error:
        raise MissingError(
            f"no Dask scheduler answers at {address} ({error}); start one with `dask scheduler`"
        ) from None
    except (AssertionError, ForeignError, LookupError, TypeError, ValueError) as error:
        raise nonsense(f"the scheduler at {address}", error) from None
    return connection, connection.client


def local_cluster(workers: int) -> SpecCluster:
    """Start the cluster of `local:N`: a scheduler and so many workers in this process, which do one task each at once.

    They speak through memory (`inproc://`), and their HTTP servers are left out, so nothing listens on a socket. Tasks
    and pictures are made in child processes of ours as anywhere else.
    """
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

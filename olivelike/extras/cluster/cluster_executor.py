"""Tasks on the workers of a Dask cluster, with the same keys and files as on this machine.

A worker that sees this machine's folders works in them. To any other one goes what a task needs, as objects under their
digests, and its results come back as such. What a lost worker was doing is done again by another one.
"""

from __future__ import annotations

import contextlib
import queue
import re
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from olivelike._text import listed
from olivelike._untrusted import one_line
from olivelike.digest import canonical_json, digest_file
from olivelike.engine.execute.executor import LIGHT, Advanced, Answer, Demand, Failed
from olivelike.engine.kinds.kind import Done, Needs, Task
from olivelike.errors import DamagedError, OlivelikeError, PassError, PluginError, SessionError
from olivelike.extras.cluster import cluster_site
from olivelike.extras.cluster.cluster_data import ForeignError
from olivelike.extras.cluster.cluster_site import Outcome
from olivelike.extras.cluster.cluster_workers import ClusterWorkers, LostError, Site, is_loss, nonsense, read_answer
from olivelike.model.records.output import FileFacts
from olivelike.model.records.reading import RecordError, from_json
from olivelike.store import Store
from olivelike.workflow.code.code_digest import plugin_sources
from olivelike.workflow.passes import Registry

if TYPE_CHECKING:
    from distributed import Future


_WAIT_SECONDS: Final = 60
"""Longest wait of a task for a worker that can do it, where there is none at all."""
_LOOK_SECONDS: Final = 1.0
_MOST_LOSSES: Final = 25
"""Most workers that a task may lose before it is taken to be what kills them."""
_SHOWN: Final = 5
_MOST_SECONDS: Final = 1e12
_MOST_SAID: Final = 300
"""Letters of what a worker says of itself."""
_MOST_PLUGIN_BYTES: Final = 64 << 20
_OUTCOME = TypeAdapter(Outcome)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class _Told:
    """Message of a worker on a task that it does."""

    advanced: Advanced | None = None
    log: str = ""


_TOLD = TypeAdapter(_Told)


class _CancelledError(Exception):
    """Nobody waits for a task any more."""


class ClusterExecutor:
    """Tasks on `tcp://HOST:PORT`, the scheduler of a Dask cluster, or on `local:N`, one of so many processes here."""

    def __init__(self, address: str, most: int | None, log: Path) -> None:
        """Connect, and see which workers fit.

        Raises `MissingError` if Dask is not installed, nothing answers, or there is no worker, and `SessionError` if no
        worker has this olivelike with these libraries.

        Args:
            address: The cluster.
            most: How many tasks run at once at most; `None` for as many as there are threads.
            log: Takes what is said outside of tasks.
        """
        self._most, self._log = most, log
        self._workers = ClusterWorkers(address, log.parent)
        self._run = secrets.token_hex(6)
        self._cancelled: set[str] = set()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(256, "cluster-task")
        self._store: Store | None = None
        self._peak = 0

    @property
    def size(self) -> int:
        """Number of tasks that the workers do at once now."""
        self._workers.look()
        threads = sum(site.threads for site in self._workers.sites.values()) or 1
        return min(threads, self._most or threads)

    @property
    def memory_limit(self) -> int:
        """Bytes of memory of all workers together."""
        return sum(site.facts["memory_bytes"] for site in self._workers.sites.values()) or 1

    def submit(self, task: Task, demand: Demand = LIGHT) -> None:
        """Begin a task as soon as a worker has room."""
        self._cancelled.discard(task.place.node)
        self._threads.submit(self._do, task, demand)

    def next_answer(self, timeout: float) -> Answer | None:
        """Return what a task says next."""
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            return None
        self._peak = max(self._peak, answer.peak_memory_bytes)
        return None if answer.node in self._cancelled else answer

    def cancel(self, node: str) -> None:
        """End a node's task."""
        self._cancelled.add(node)

    def close(self) -> int:
        """End all tasks; return the most bytes that one of them had resident."""
        with self._workers.changed:
            self._cancelled |= {node for site in self._workers.sites.values() for node in site.busy}
            self._workers.changed.notify_all()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._workers.close()
        return self._peak

    # One task, in a thread of its own

    def _do(self, task: Task, demand: Demand) -> None:
        node, host = task.place.node, None
        try:
            for _ in range(_MOST_LOSSES):
                site = self._take_site(node, demand)
                host = site.host
                try:
                    answer = self._do_at(site, task, demand)
                    break
                except LostError:
                    self._workers.forget(site)
                finally:
                    with self._workers.changed:
                        site.busy.pop(node, None)
                        self._workers.changed.notify_all()
            else:
                message = f"{_MOST_LOSSES} workers of the cluster were lost while they did it, the last one {host}"
                answer = Answer(node, Failed(message, PassError.word), host=host)
        except _CancelledError:
            return
        except OlivelikeError as error:
            answer = Answer(node, Failed(str(error), error.word), host=host)
        except Exception as error:  # noqa: BLE001  (the boundary of a thread)
            what = one_line(f"{type(error).__name__}: {error}".partition("\n")[0])[:_MOST_SAID]
            message = f"{node}: its worker {host} gave no answer ({what}); its log says more"
            answer = Answer(node, Failed(message, PassError.word), host=host)
        self._answers.put(answer)

    def _do_at(self, site: Site, task: Task, demand: Demand) -> Answer:
        store = self._open_store(task)
        needs = task.needs(store)
        links = {path: store.file_digest(Path(path)) for path in needs.files}
        plugins = self._plugins(site, needs, task)
        shares = site.facts["shares"] and self._workers.ask(site, cluster_site.sees, _paths(needs))
        name = f"olivelike-{task.place.node}-{(demand.key or self._run)[:16]}-{secrets.token_hex(4)}"
        if not shares:
            task = task.elsewhere()
            files = {digest: Path(path) for path, digest in links.items()}
            files |= {d: Path(plugin).parent.joinpath(file) if Path(plugin).is_file() else Path(plugin, file)
                      for plugin, found in plugins.items() for file, d in found.items()}  # fmt: skip
            self._send(site, name, {**{digest: store.object_path(digest) for digest in needs.objects}, **files}, task)
        parcel = cluster_site.Parcel(
            name, site.facts["worker"], task.to_json(), asdict(demand), shares, links, plugins, needs.folder
        )
        outcome = self._watch(site, task, parcel)
        answer = _answered(outcome, f"{task.place.node}: its worker {site.host}")
        if isinstance(answer, Done):
            written = _written(answer, needs, f"{task.place.node}: its worker {site.host}")
            if not shares:
                self._fetch(site, store, answer, outcome, written, needs, task)
        if not shares and outcome.folder is not None:
            with contextlib.suppress(LostError):
                self._workers.ask(site, cluster_site.forget, str(Path(outcome.folder).parent))
        return Answer(task.place.node, answer, outcome.peak_memory_bytes, site.host)

    def _watch(self, site: Site, task: Task, parcel: Any) -> Outcome:
        """Have a task done, and pass on what is told meanwhile."""
        from distributed import CancelledError, KilledWorker

        node = task.place.node

        def hear(event: tuple[float, Any]) -> None:
            try:
                said = _TOLD.validate_python(event[1])
            except ValueError:
                return  # What is told meanwhile decides nothing.
            if said.log:
                with contextlib.suppress(OSError), Path(task.place.log).open("a", encoding="utf-8") as log:
                    log.write(said.log)
            if (advanced := said.advanced) is not None:
                if len(advanced.note) > _MOST_SAID or not advanced.note.isprintable():
                    advanced = replace(advanced, note="")
                self._answers.put(Answer(node, advanced))

        self._workers.client.subscribe_topic(parcel.name, hear)
        future: Future[Any] = self._workers.client.submit(
            cluster_site.answer_task, parcel, key=parcel.name, workers=[site.address], pure=False, retries=0
        )
        try:
            while True:
                try:
                    outcome: Outcome = read_answer(site, future.result(timeout=_LOOK_SECONDS), _OUTCOME)
                    return outcome
                except TimeoutError:
                    self._stop_if_cancelled(site, node, parcel.name)
                    if not self._workers.is_there(site):
                        raise LostError from None
                except (KilledWorker, CancelledError):
                    raise LostError from None
                except (AssertionError, ForeignError, OSError, TypeError, ValueError) as error:
                    if is_loss(error):
                        raise LostError from None
                    raise nonsense(site.host, error) from None
        finally:
            with contextlib.suppress(Exception):
                future.cancel()
                self._workers.client.unsubscribe_topic(parcel.name)

    def _stop_if_cancelled(self, site: Site, node: str, name: str) -> None:
        if node in self._cancelled:
            with contextlib.suppress(LostError):
                self._workers.ask(site, cluster_site.cancel, name)
            raise _CancelledError

    def _plugins(self, site: Site, needs: Needs, task: Task) -> dict[str, dict[str, str]]:
        """Return the files of each plugin, if the worker allows its code.

        Raises `PluginError` naming the digest to allow.
        """
        if not needs.plugins or self._workers.are_ours:
            return {}
        from olivelike.workflow.passes.allowed_plugins import plugin_code

        codes = {plugin: plugin_code(Path(plugin)) for plugin in needs.plugins}
        for plugin in self._workers.ask(site, cluster_site.refused_plugins, codes):
            raise PluginError(
                f"the worker {site.host} does not allow the code of {plugin}; whoever keeps the worker allows it with "
                f"{cluster_site.PLUGINS_VARIABLE}={codes[plugin]}, or any code with `any`"
            )
        return {plugin: _plugin_files(Path(plugin), task) for plugin in needs.plugins}

    # What goes there and comes back

    def _send(self, site: Site, name: str, files: Mapping[str, Path], task: Task) -> None:
        try:
            self._workers.send(site, name, files, lambda: self._stop_if_cancelled(site, task.place.node, name))
        except FileNotFoundError as error:
            raise DamagedError(f"{task.place.node}: {error.filename} was lost; run again to remake it") from None

    def _fetch(
        self,
        site: Site,
        store: Store,
        done: Done,
        outcome: Outcome,
        written: Mapping[str, FileFacts],
        needs: Needs,
        task: Task,
    ) -> None:
        for digest, size in done.parts.items():
            if not store.check_object(digest):
                with store.writer() as writer:
                    for piece in self._workers.fetch(site, digest, size):
                        writer.write(piece)
                    found = writer.commit()
                if found != digest:
                    raise DamagedError(f"{task.place.node}: {digest[:12]} came back as {found[:12]}; run again")
        if more := sorted(outcome.written.keys() - written.keys()):
            shown = listed([one_line(name)[:100] for name in more], _SHOWN)
            raise PassError(
                f"{task.place.node}: its worker {site.host} left files that its task does not name: {shown}"
            )
        for relative, facts in written.items():
            assert needs.folder is not None
            path = Path(needs.folder, relative)
            with path.open("wb") as file:
                for piece in self._workers.fetch(site, str(Path(outcome.folder or "", relative)), facts.size):
                    file.write(piece)
            if digest_file(path) != facts.sha256:
                raise DamagedError(f"{task.place.node}: {relative} came back damaged; run again")

    def _open_store(self, task: Task) -> Store:
        with self._workers.changed:
            if self._store is None:
                self._store = Store.open(Path(task.place.store))
            return self._store

    # Workers

    def _take_site(self, node: str, demand: Demand) -> Site:
        """Wait for a worker with room, and note that it has the task. Raises `SessionError` if no worker can do it."""
        waited = time.monotonic()
        while True:
            self._workers.look()
            self._workers.try_provider(demand.provider)
            with self._workers.changed:
                if node in self._cancelled:
                    raise _CancelledError
                sites = self._workers.sites.values()
                able = [site for site in sites if site.runs.get(demand.provider, demand.provider is None)]
                free = [site for site in able if site.has_room(demand)]
                if free:
                    site = min(free, key=lambda site: (len(site.busy) / site.threads, site.address))
                    site.busy[node] = demand.memory_bytes
                    return site
                if able:
                    waited = time.monotonic()
                elif time.monotonic() - waited > _WAIT_SECONDS or (self._workers.sites and demand.provider):
                    raise SessionError(self._workers.lack(demand))
                self._workers.changed.wait(_LOOK_SECONDS)


def _answered(outcome: Outcome, who: str) -> Done | Failed:
    """Return how a worker says that a task ended. Raises `PassError` if that is no answer; `who` names the worker."""
    try:
        answer, done = outcome.done or outcome.failed, outcome.done or Done()
        if answer is None:
            raise RecordError("it is neither done nor failed")
        canonical_json(answer.facts)
        digests = [*done.parts, *done.outputs.values()]
        counts = [*done.parts.values(), answer.memory_before_bytes, outcome.peak_memory_bytes]
        if not all(map(_DIGEST.fullmatch, digests)) or not done.parts.keys() >= {*done.outputs.values()}:
            raise RecordError("its outputs are not among its parts")
        if min(counts) < 0 or not 0 <= done.seconds < _MOST_SECONDS:
            raise RecordError("it has a size or a time that can't be")
    except (TypeError, ValueError, RecursionError) as error:
        raise PassError(f"{who} gave no answer to its task: {one_line(str(error))[:200]}; run without it") from None
    return answer


@dataclass(frozen=True)
class _Written:
    """Report of a task that writes a folder: see `Materialized`."""

    files: Mapping[str, FileFacts]
    derivations: Mapping[str, Mapping[str, object]]
    saturated: Mapping[str, int]
    flushed: Mapping[str, int]
    not_finite: Mapping[str, int]


def _written(done: Done, needs: Needs, who: str) -> Mapping[str, FileFacts]:
    """Return the files that a task reports to have written, none where it writes no folder.

    Raises `PassError` if they are not those that it may write; `who` names the worker.
    """
    if needs.folder is None:
        return {}
    try:
        files = from_json(_Written, done.facts).files
    except RecordError as error:
        raise PassError(f"{who} did not report what it wrote: {error}; run without it") from None
    for name, facts in files.items():
        if not needs.writes(name) or facts.size < 0:
            raise PassError(f"{who} reports a file that no task of it writes: {one_line(name)[:100]}; run without it")
    return files


def _paths(needs: Needs) -> list[str]:
    return [*needs.files, *needs.plugins, *([] if needs.folder is None else [needs.folder])]


def _plugin_files(plugin: Path, task: Task) -> dict[str, str]:
    """Return the digest of each file of a plugin that its pass may use, by path relative to its folder.

    Those are its modules, and the data files that the pass names. Raises `PluginError` if they are too large to send.
    """
    folder = plugin if plugin.is_dir() else plugin.parent
    entry = Registry.load_pass(task.pass_name, task.plugin, task.rule_plugins)  # type: ignore[attr-defined]
    data = [folder / name for name in entry.cls.files or ()] if entry.plugin == str(plugin) else []
    files = [path for path in {*plugin_sources(plugin), *data} if path.is_relative_to(folder)]
    if sum(path.stat().st_size for path in files) > _MOST_PLUGIN_BYTES:
        raise PluginError(f"{plugin}: its files are larger than {_MOST_PLUGIN_BYTES >> 20} MB, which is not sent about")
    return {path.relative_to(folder).as_posix(): digest_file(path) for path in files}

"""Work of a Dask cluster's worker for a run on another machine: takes what a task needs, does it, gives the result.

A worker that sees the run's own folders (a local cluster, a file share) works in them. Any other one, and one that was
given `$OLIVELIKE_CACHE_DIR`, has a store of its own: objects and source files go there under their digests, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from olivelike._untrusted import Json, JsonView, open_file, read_bytes
from olivelike.digest import digest_file
from olivelike.engine.execute.executor import Advanced, Demand, Failed
from olivelike.engine.execute.process_executor import ProcessExecutor
from olivelike.engine.kinds import KINDS  # noqa: F401  (their tasks are found by name)
from olivelike.engine.kinds.kind import Done, Task
from olivelike.errors import DamagedError, OlivelikeError, PassError
from olivelike.extras.cluster.cluster_data import LOST, Reply, packed
from olivelike.store import Store
from olivelike.store.objects import ObjectWriter
from olivelike.workflow.code.code_digest import engine_code

PIECE_BYTES: Final = 8 << 20
"""Bytes that go over the wire at once."""
PLUGINS_VARIABLE: Final = "OLIVELIKE_CLUSTER_PLUGINS"
"""Says which plugins a worker runs: digests with commas between, or `any`; by default none."""
STORE_VARIABLE: Final = "OLIVELIKE_CACHE_DIR"
_LISTEN_SECONDS = 0.2
_SIDES: Final[queue.SimpleQueue[ProcessExecutor]] = queue.SimpleQueue()
"""Worker processes that are idle; they keep what they have imported."""
_LOCK = threading.Lock()
_cancelled: set[str] = set()
_homes: Final[list[Path]] = []
"""The folder of this worker, once it is known."""
_receiving: dict[str, ObjectWriter] = {}


@dataclass(frozen=True)
class Parcel:
    """A task, and what it needs of the machine that sends it."""

    name: str
    """Name of this attempt; what is told meanwhile is told under it."""
    worker: str
    """Id of the Dask worker that it is for: one that was started anew at the same address has lost what it was sent."""
    task: JsonView
    demand: JsonView
    shares: bool
    """Whether the worker sees the folders of the run."""
    links: Mapping[str, str]
    """Digest of each file, by its path over there."""
    plugins: Mapping[str, Mapping[str, str]]
    """Digest of each file of each plugin, by its path relative to the plugin's folder, by the plugin's path."""
    folder: str | None
    """The folder to write, over there."""


@dataclass(frozen=True)
class Outcome:
    """End of a task on a worker."""

    done: Done | None
    failed: Failed | None
    peak_memory_bytes: int
    written: Mapping[str, tuple[int, str]]
    """Size and digest of each file in the folder, by relative path; empty where the folder is seen from over there."""
    folder: str | None
    """Folder of those files, until `forget`."""


@dataclass(frozen=True)
class Facts:
    """Answer of `describe`."""

    worker: str
    host: str
    shares: bool
    versions: dict[str, str]
    code: str
    memory_bytes: int


class ReplacedError(Exception):
    """The worker is another one than the task was sent to."""


async def answer(function: Callable[..., Any], *values: Any, dask_worker: Any, **named: Any) -> bytes:
    """Return what a function answers, or how it failed, as data; the rest of this file is asked through here.

    Args:
        function: One of this file, or of `painting_site`.
        values: What it takes.
        dask_worker: The `distributed.Worker`, which Dask fills in, and which the function is given if it takes one.
        named: What it takes by name.
    """
    if "dask_worker" in inspect.signature(function).parameters:
        named["dask_worker"] = dask_worker
    try:
        value = function(*values, **named)
        return _reply(await value if inspect.isawaitable(value) else value)
    except Exception as error:  # noqa: BLE001  (the worker boundary)
        return _failure(error)


def answer_task(parcel: Parcel) -> bytes:
    """Do a task as `do`, and answer as `answer`."""
    try:
        return _reply(asdict(do(parcel)))
    except Exception as error:  # noqa: BLE001  (the worker boundary)
        return _failure(error)


def _reply(value: object) -> bytes:
    return packed(asdict(Reply(value)))


def _failure(error: Exception) -> bytes:
    if isinstance(error, OlivelikeError):
        return packed(asdict(Reply(error=error.word, text=str(error))))
    word = LOST if isinstance(error, ReplacedError | OSError) else ""
    return packed(asdict(Reply(error=word, text=f"{type(error).__name__}: {error}")))


def describe(probe: str, token: str, dask_worker: Any) -> Json:
    """Return what a run wants to know of a worker; the first thing that it asks.

    Args:
        probe: a file that the run has just written in its store.
        token: what is in it.
        dask_worker: the `distributed.Worker`, which Dask fills in.
    """
    import psutil

    from olivelike.engine.run_result import versions

    shares = False
    with contextlib.suppress(OSError):
        shares = not os.environ.get(STORE_VARIABLE) and read_bytes(Path(probe)).decode("ascii", "replace") == token
    home = Path(dask_worker.local_directory) / "olivelike"
    home.mkdir(parents=True, exist_ok=True)
    _homes[:] = [home]
    limit = dask_worker.memory_manager.memory_limit
    return {
        "worker": dask_worker.id,
        "host": socket.gethostname(),
        "shares": shares,
        "versions": versions(),
        "code": engine_code(),
        "memory_bytes": limit or psutil.virtual_memory().total,
    }


async def lacking(digests: Sequence[str]) -> list[str]:
    """Return the objects that this worker's own store lacks."""

    def look() -> list[str]:
        store = own_store()
        return [digest for digest in digests if not store.check_object(digest)]

    return await asyncio.to_thread(look)


async def runs(provider: str) -> bool:
    """Tell whether a provider runs a network here, by a process of its own: being listed does not mean it."""
    from olivelike.measure.doctor import diagnosis

    return (await asyncio.to_thread(diagnosis.check_provider, provider)).status == "usable"


def sees(paths: Sequence[str]) -> bool:
    """Tell whether this worker sees all paths of a run."""
    return all(map(os.path.exists, paths))


def refused_plugins(digests: Mapping[str, str]) -> list[str]:
    """Return the plugins, by path, whose code this worker does not allow; each comes with its digest."""
    allowed = {one.strip() for one in os.environ.get(PLUGINS_VARIABLE, "").split(",")}
    return [] if "any" in allowed else [path for path, digest in digests.items() if digest not in allowed]


async def receive(name: str, digest: str, piece: bytes, last: bool) -> None:
    """Take the next piece of an object; the last one publishes it.

    Raises `DamagedError` if it is not what its digest says; nothing of it stays.
    """
    await asyncio.to_thread(_receive, name, digest, piece, last)


def _receive(name: str, digest: str, piece: bytes, last: bool) -> None:
    key = f"{name}/{digest}"
    if (writer := _receiving.pop(key, None)) is None:
        writer = own_store().writer()
    try:
        writer.write(piece)
        if not last:
            _receiving[key] = writer
        elif (found := writer.commit()) != digest:
            raise DamagedError(f"{digest[:12]} came over as {found[:12]}; run again")
    finally:
        if key not in _receiving:
            writer.__exit__(None, None, None)


async def give(digest_or_path: str, offset: int) -> bytes:
    """Return a piece of an object of this worker's store, or of a file that a task has written."""
    path = Path(digest_or_path)
    if not path.is_absolute():
        path = own_store().object_path(digest_or_path)

    def read() -> bytes:
        with open_file(path) as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)

    return await asyncio.to_thread(read)


def end_sides() -> None:
    """End the worker processes that are idle."""
    while not _SIDES.empty():
        _SIDES.get().close()


async def cancel(name: str) -> None:
    """End a task, and forget what came for it."""
    _cancelled.add(name)
    for key in [key for key in _receiving if key.startswith(f"{name}/")]:
        _receiving.pop(key).__exit__(None, None, None)


async def forget(folder: str) -> None:
    """Remove what a task has written, once it was taken."""
    await asyncio.to_thread(shutil.rmtree, folder, True)


def do(parcel: Parcel) -> Outcome:
    """Do a task in a process of its own, in a thread of the Dask worker.

    Raises `ReplacedError` if this is not the worker that it was sent to.
    """
    from distributed import get_worker

    worker = get_worker()
    if worker.id != parcel.worker:
        raise ReplacedError
    with _bench(parcel) as (task, folder):
        with _LOCK:
            executor = ProcessExecutor(1, home_folder() / "workers.log") if _SIDES.empty() else _SIDES.get()
        said = None
        try:
            executor.submit(task, Demand(**parcel.demand))
            for said in _heard(executor, task, parcel):
                if isinstance(said.content, Advanced):
                    worker.log_event(parcel.name, {"advanced": asdict(said.content)})
        finally:
            if said is None or parcel.name in _cancelled:
                executor.close()
            else:
                _SIDES.put(executor)
        assert said is not None
        done, failed = (None, said.content) if isinstance(said.content, Failed) else (said.content, None)
        written = _written(folder) if folder is not None and not parcel.shares else {}
        place = None if folder is None else str(folder)
        return Outcome(done, failed, said.peak_memory_bytes, written, place)


def _heard(executor: ProcessExecutor, task: Task, parcel: Parcel) -> Iterator[Any]:
    """Yield a task's answers, and tell what its log says meanwhile."""
    from distributed import get_worker

    log, told = Path(task.place.log), 0
    while True:
        answer = executor.next_answer(_LISTEN_SECONDS)
        if not parcel.shares:
            with contextlib.suppress(OSError), log.open("rb") as file:
                file.seek(told)
                if text := file.read():
                    told += len(text)
                    get_worker().log_event(parcel.name, {"log": text.decode(errors="replace")})
        if parcel.name in _cancelled:
            raise PassError("it was cancelled")
        if answer is not None:
            yield answer
            if not isinstance(answer.content, Advanced):
                return


@contextlib.contextmanager
def _bench(parcel: Parcel) -> Iterator[tuple[Task, Path | None]]:
    """Yield a task with its paths on this machine, and the folder that it writes."""
    if parcel.shares:
        yield Task.from_json(parcel.task), None if parcel.folder is None else Path(parcel.folder)
        return
    store = own_store()
    home = home_folder() / parcel.name
    home.mkdir(parents=True)
    try:
        here = {path: str(_linked(home / "files", path, store.object_path(d))) for path, d in parcel.links.items()}
        for number, (plugin, files) in enumerate(parcel.plugins.items()):
            # Its modules are found beside each other; names are relative to where the plugin's own file lies.
            folder = home / "plugins" / str(number)
            for name, digest in files.items():
                _linked(folder, name, store.object_path(digest), copies=True)
            here[plugin] = str(folder / Path(plugin).name) if Path(plugin).name in files else str(folder)
        written = home / "written"
        if parcel.folder is not None:
            written.mkdir()
            here[parcel.folder] = str(written)
        message: Json = _with_paths(parcel.task, here)
        message["place"] |= {"store": str(store.root), "log": str(home / "task.log")}
        if "stamps" in message:  # Digests were checked as the files came.
            message["stamps"] = {}
        yield Task.from_json(message), None if parcel.folder is None else written
    finally:
        shutil.rmtree(home / "files", ignore_errors=True)
        if parcel.folder is None:
            shutil.rmtree(home, ignore_errors=True)


def _linked(root: Path, name: str, file: Path, *, copies: bool = False) -> Path:
    """Put a file under a root, by the name that it has elsewhere, and return where it is."""
    path = root.joinpath(*[part.replace(":", "") for part in Path(name).parts if part not in {"/", "\\", ".."}])
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with contextlib.suppress(OSError):  # Windows lets few users make links.
            if not copies:
                path.symlink_to(file)
        if not path.exists():
            shutil.copyfile(file, path)
    return path


def _with_paths(value: Any, here: Mapping[str, str]) -> Any:
    """Return JSON values with each text that is a known path replaced by the path on this machine."""
    match value:
        case str():
            return here.get(value, value)
        case Mapping():
            return {here.get(name, name): _with_paths(one, here) for name, one in value.items()}
        case list() | tuple():
            return [_with_paths(one, here) for one in value]
    return value


def _written(folder: Path) -> dict[str, tuple[int, str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, digest_file(path)) for path in files}


def own_store() -> Store:
    """Return the store of this worker."""
    return _store(os.environ.get(STORE_VARIABLE) or str(home_folder() / "cache"))


@cache
def _store(folder: str) -> Store:
    return Store.open(Path(folder).expanduser())


def home_folder() -> Path:
    """Return this worker's folder. Raises `ReplacedError` if it was never asked what it is."""
    if not _homes:
        raise ReplacedError
    return _homes[0]

"""A connection to a Dask cluster that reads what comes from there as data: nothing of it is run here.

Dask sends Python pickles, and to read one is to call what it names. So all that comes from a scheduler is read in a
thread of ours, where a name in a pickle stands for a kind of `ForeignError` and for nothing else.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import threading
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import MissingError

if TYPE_CHECKING:
    from distributed import Client
    from tornado.ioloop import IOLoop

LOST: Final = "lost"
"""In place of a kind of error: the worker is another one than was asked, or its files are gone."""
_OFFLOAD: Final = "Dask-Offload"
"""Name of the threads to which Dask gives large messages to read."""
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_readers: Final[set[int]] = set()
"""The threads that read what comes from schedulers."""


@dataclass(frozen=True)
class Reply:
    """Answer of a worker, as `packed` takes it."""

    value: Any = None
    error: str | None = None
    """The kind of error, if there was one: `OlivelikeError.word`, `LOST`, or nothing for another one."""
    text: str = ""


class ForeignError(Exception):
    """Stand-in for a thing that is no data; each name in a pickle has a kind of its own."""

    source = ""
    """Module and name of the thing."""

    def __setstate__(self, _state: object) -> None:
        """Take no state."""

    def __str__(self) -> str:
        """Say what it was to be."""
        return f"a Python object ({', '.join(self.names())})"

    def names(self) -> list[str]:
        """Return the name of the thing, and of all that it was to be made of."""
        return [self.source, *(name for one in self.args for name in _names(one))]


class DataConnection:
    """A client of a scheduler, and the thread that reads for it."""

    def __init__(self, address: str, timeout: float) -> None:
        """Connect; raises as `distributed.Client`, and `MissingError` if this Dask reads pickles in some other way."""
        from distributed import Client

        _guard_pickles()
        self._loop: IOLoop | None = None
        self._is_data = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._read, name="cluster-reader", daemon=True)
        self._thread.start()
        self._started.wait(_START_SECONDS)
        try:
            if not self._is_data:
                raise MissingError("olivelike can't see how this Dask reads answers; install `olivelike[cluster]` anew")
            self.client: Client = Client(address, timeout=timeout, loop=self._loop)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the thread; the client must be closed before."""
        if self._loop is not None:
            self._loop.add_callback(self._stop.set)
        self._thread.join(_STOP_SECONDS)

    def _read(self) -> None:
        _readers.add(threading.get_ident())
        try:
            asyncio.run(self._serve())
        finally:
            _readers.discard(threading.get_ident())
            self._started.set()

    async def _serve(self) -> None:
        from tornado.ioloop import IOLoop

        self._stop = asyncio.Event()
        self._loop = IOLoop.current()
        self._is_data = _reads_data()
        self._started.set()
        await self._stop.wait()


def packed(value: object) -> bytes:
    """Return plain data as bytes; raises `TypeError` if it is something else."""
    import msgpack

    data: bytes = msgpack.packb(value)
    return data


def unpacked(data: object) -> Any:
    """Return what `packed` was given; raises `ValueError` if these are no such bytes."""
    import msgpack

    if not isinstance(data, bytes):
        what = data if isinstance(data, ForeignError) else type(data).__name__
        raise ValueError(f"{what} in place of bytes")
    return msgpack.unpackb(data, strict_map_key=False)


def _names(value: object) -> list[str]:
    if isinstance(value, ForeignError):
        return value.names()
    return [value.source] if isinstance(value, type) and issubclass(value, ForeignError) else []


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[ForeignError | bytes]:
        if (module, name) == ("builtins", "bytes"):  # Dask asks for the type by which it sends bytes.
            return bytes
        return type("ForeignError", (ForeignError,), {"source": f"{module}.{name}"})


def _loads(data: Any, *, buffers: Iterable[Any] = ()) -> Any:
    """Read a pickle: as data in threads that read what comes from a scheduler, as ever in others."""
    thread = threading.current_thread()
    if thread.ident not in _readers and not (_readers and thread.name.startswith(_OFFLOAD)):
        return pickle.loads(data, buffers=buffers)  # noqa: S301
    found = _DataUnpickler(io.BytesIO(data), buffers=buffers).load()
    if any("traceback" in name for name in _names(found)[:1]):
        raise TypeError("a traceback is no data")  # Dask goes on without it.
    return found


@cache
def _guard_pickles() -> None:
    """Have Dask read pickles by `_loads`: all of its reading goes through one module."""
    from distributed.protocol import pickle as dask_pickle

    guarded = types.ModuleType("pickle")
    vars(guarded).update(vars(pickle) | {"loads": _loads})
    reading: Any = dask_pickle
    reading.pickle = guarded


def _reads_data() -> bool:
    """Tell whether Dask, in this thread, makes nothing of a pickle, whichever way it comes."""
    import distributed.client

    dask: Any = distributed
    protocol = dask.protocol
    error = OSError("a trial")
    data = protocol.pickle.dumps(error)
    messages = [protocol.dumps(protocol.to_serialize(error)), protocol.dumps(protocol.ToPickle(error))]
    found = [dask.client.loads(data), dask.core.clean_exception(data)[1], *map(protocol.loads, messages)]
    return all(isinstance(one, ForeignError) for one in found)

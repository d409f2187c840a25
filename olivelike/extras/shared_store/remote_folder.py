"""A folder behind a URL: files that are read, put whole, listed and removed, by way of fsspec."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import MissingError, UnreachableError
from olivelike.extras.shared_store.requests import Pulse, Result, ask, transfer_callback

if TYPE_CHECKING:
    from aiohttp import ClientSession, TraceConfig, TraceRequestRedirectParams

    from olivelike.extras.shared_store.address import Address

RECORD_BYTES: Final = 4 << 20
"""Most of a file that is read into memory, where JSON takes up to 30 times as much; a record of a UNet's weights has
some 100 KB."""
_WHOLE: Final = frozenset({"s3", "gs", "az", "abfs"})
"""Kinds whose files are there when they are whole, and not before."""
_PART_BYTES: Final = 8 << 20
"""Size of the parts in which a large file is sent and fetched; several are in memory at once."""
_MANY: Final = 1000
"""Most files that one request removes."""


@dataclass(frozen=True)
class RemoteFile:
    """One file of a listing."""

    name: str
    """Relative to the folder."""
    bytes: int
    modified: float
    """By the clock of the other side, in seconds since the epoch; of one that tells none, 0."""


class RemoteFolder:
    """Files by relative path; every method raises `UnreachableError` if the other side does not do its part."""

    def __init__(self, address: Address) -> None:
        """Connect to nothing yet. Raises `MissingError` if the packages for such a URL are not installed."""
        self.address = address
        self._fs, self._root = _open(address)
        self._parts = {"chunksize": _PART_BYTES} if address.kind == "s3" else {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End all requests that are under way, and all to come, as late ones."""
        self._stopped.set()

    def read(self, path: str, ends: float | None = None) -> bytes | None:
        """Return a small file's content, or `None` if there is none; one above `RECORD_BYTES` is an error."""
        with tempfile.TemporaryDirectory(prefix="olivelike-") as folder:
            target = Path(folder, "record")
            return target.read_bytes() if self.download(path, target, RECORD_BYTES, ends=ends) else None

    def download(
        self,
        path: str,
        target: Path,
        most: int,
        *,
        ends: float | None = None,
        moved: Callable[[int], None] | None = None,
    ) -> bool:
        """Write a file's content to a local path; tell whether there is such a file.

        Args:
            path: Relative.
            target: A new file.
            most: Bytes that it may have.
            ends: When to give up, by `monotonic`.
            moved: Told how many bytes have come, piece by piece.
        """

        def call(pulse: Pulse) -> None:
            told = transfer_callback(pulse, most, moved)
            self._fs.get_file(self._path(path), str(target), callback=told)
            if moved is not None:  # Some tell nothing along the way.
                moved(target.stat().st_size - told.value)

        try:
            self._ask(f"read {path} of", call, ends)
        except FileNotFoundError:
            return False
        if not target.exists() or target.stat().st_size > most:
            raise UnreachableError(f"{self.address}: {path} has more than the {most} bytes that it should have")
        return True

    def upload(self, source: Path, path: str, moved: Callable[[int], None] | None = None) -> None:
        """Put a local file in one step, in place of what is there."""

        def call(pulse: Pulse) -> None:
            told = {"callback": transfer_callback(pulse, None, moved), **self._parts}
            self._in_one_step(path, lambda to: self._fs.put_file(str(source), to, **told))

        self._put(path, call)

    def put(self, path: str, data: bytes) -> None:
        """Put a small file in one step, in place of what is there."""
        self._put(path, lambda _: self._in_one_step(path, lambda to: self._fs.pipe_file(to, data)))

    def put_new(self, path: str, data: bytes) -> bool:
        """Put a small file in one step if there is none; tell whether there was none.

        Where the other side knows no such request, two that put at once may both be told so; the last one stays.
        """

        def call(_: Pulse) -> bool:
            if self.address.kind not in _WHOLE and self._fs.exists(self._path(path)):
                return False
            self._in_one_step(path, lambda to: self._create(to, data))
            return True

        try:
            return bool(self._put(path, call))
        except FileExistsError:
            return False

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, or `None` if there is none."""
        found = self._info(path)
        return None if found is None else found.bytes

    def modified(self, path: str) -> float:
        """Return when a file was put, by the other side's clock; 0 if there is none."""
        found = self._info(path)
        return 0.0 if found is None else found.modified

    def files(self, folder: str) -> Iterator[RemoteFile]:
        """Yield every file below a folder, with paths relative to the root."""

        def call(_: Pulse) -> dict[str, dict[str, Any]]:
            found: dict[str, dict[str, Any]] = self._fs.find(self._path(folder), detail=True)
            return found

        try:
            found = self._ask(f"list {folder} of", call)
        except FileNotFoundError:
            return
        for path, info in found.items():
            yield _file(path.removeprefix(self._root).lstrip("/"), info)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; those that are gone already are no error."""
        for start in range(0, len(paths), _MANY):
            some = [self._path(path) for path in paths[start : start + _MANY]]

            def call(_: Pulse, some: list[str] = some) -> None:
                try:
                    self._fs.rm(some)
                except FileNotFoundError:
                    for path in some:
                        if self._fs.exists(path):
                            self._fs.rm(path)

            self._ask("remove files of", call)

    def _info(self, path: str) -> RemoteFile | None:
        try:
            info = self._ask(f"look for {path} in", lambda _: self._fs.info(self._path(path)))
        except FileNotFoundError:
            return None
        return _file(path, info) if info["type"] == "file" else None

    def _put(self, path: str, call: Callable[[Pulse], Any]) -> Any:
        try:
            return self._ask(f"put {path} into", call)
        except FileNotFoundError:
            raise UnreachableError(f"there is no {self.address}: make the bucket or folder first") from None

    def _in_one_step(self, path: str, put: Callable[[str], Any]) -> None:
        target = self._path(path)
        if self.address.kind in _WHOLE:
            put(target)
            return
        temporary = self._path(f"tmp/{os.urandom(8).hex()}")
        try:
            put(temporary)
            self._fs.mv(temporary, target)
        except BaseException:
            if self._fs.exists(temporary):
                self._fs.rm(temporary)
            raise

    def _create(self, path: str, data: bytes) -> None:
        try:
            self._fs.pipe_file(path, data, mode="create")
        except (NotImplementedError, OSError) as error:
            if _is_there_already(error):
                raise FileExistsError(path) from None
            if not isinstance(error, NotImplementedError) and "NotImplemented" not in str(error):
                raise
            self._fs.pipe_file(path, data)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _ask(self, task: str, call: Callable[[Pulse], Result], ends: float | None = None) -> Result:
        return ask(self.address, task, call, ends, self._stopped)


def _open(address: Address) -> tuple[Any, str]:
    import fsspec

    seconds = address.timeout_seconds
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        if address.kind == "s3":
            retries = {"max_attempts": 2, "mode": "standard"}
            options |= {"default_block_size": _PART_BYTES, "max_concurrency": 4}
            options["config_kwargs"] = {"connect_timeout": seconds, "read_timeout": seconds, "retries": retries}
        elif address.kind in ("http", "https"):
            from aiohttp import ClientTimeout

            options["client_kwargs"] = {
                "timeout": ClientTimeout(total=None, sock_read=seconds, connect=seconds),
                "trace_configs": [same_host_only()],
            }
        elif address.kind == "file":
            options["auto_mkdir"] = True
        fs, root = fsspec.url_to_fs(address.url, **options)
    except ImportError as error:
        raise MissingError(
            f"{address}: such a store takes packages that are not installed ({error.name or 'see the URL'}); "
            f"pip install 'olivelike[{address.extra}]'"
        ) from None
    except Exception as error:  # noqa: BLE001  (each library has its own)
        said = address.without_secrets(str(error))
        raise UnreachableError(f"{address} can't be opened: {type(error).__name__}: {said}") from None
    return fs, str(root).rstrip("/")


def _is_there_already(error: BaseException) -> bool:
    return isinstance(error, FileExistsError) or "PreconditionFailed" in str(error) or "pre-conditions" in str(error)


def _file(path: str, info: dict[str, Any]) -> RemoteFile:
    moment = info.get("LastModified") or info.get("mtime") or info.get("last_modified") or info.get("created") or 0.0
    if isinstance(moment, str):
        import datetime as dt

        moment = dt.datetime.fromisoformat(moment)
    if hasattr(moment, "timestamp"):
        moment = moment.timestamp()
    return RemoteFile(path, int(info.get("size") or 0), float(moment))


class RedirectError(ValueError):
    """A store that leads to another host, port or scheme, which is the same when it is asked again."""


def same_host_only() -> TraceConfig:
    """Return what keeps a session of aiohttp from following a redirect to another scheme, host or port.

    Whoever keeps a store could have each machine that reads it ask others of its network, and tell them its password.
    """
    from aiohttp import TraceConfig

    async def look(_session: ClientSession, _context: Any, asked: TraceRequestRedirectParams) -> None:
        led = asked.response.headers.get("Location") or asked.response.headers.get("URI") or ""
        there = asked.url.join(type(asked.url)(led))
        if there.origin() != asked.url.origin():
            raise RedirectError(
                f"it leads to {there.origin()}, and only redirects within {asked.url.origin()} are followed; "
                "name the place where the files are"
            )

    traces = TraceConfig()
    traces.on_request_redirect.append(look)
    return traces

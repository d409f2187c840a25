"""Work of a Dask cluster's worker that draws for a server: a process that draws, its files, its pictures' way back.

A worker that sees the server's folders draws into its gallery. Any other one has the files that orders name under a
root of its own, at the same paths, and what it draws is fetched from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from olivelike._json_child import JsonChild
from olivelike._untrusted import Json, JsonView
from olivelike.extras.cluster.cluster_site import ReplacedError, home_folder, own_store
from olivelike.serve.drawing.painter import MODULE

_SILENCE_SECONDS: Final = 120.0
"""After so long without a word the server is taken to be gone."""
_TAIL: Final = 2000
_painters: Final[dict[str, _SitePainter]] = {}


class _SitePainter:
    """The process of one server on this worker."""

    def __init__(self, name: str, settings: JsonView, root: Path | None, tell: Callable[[Any], None]) -> None:
        self._root, self._tell = root, tell
        self._log = home_folder() / f"{name}.log"
        self._gallery: Path | None = None
        self._drawn: set[Path] = set()
        """Pictures under the root."""
        self._placed: dict[str, str] = {}
        """Digests of the files under the root, by their paths over there."""
        self.heard = time.monotonic()
        self._child = JsonChild(MODULE, self._log, self._answer, self._end)
        self.send(settings)

    def send(self, message: JsonView) -> None:
        """Tell the process, with paths as they are here."""
        here = self._mapped(dict(message), ("uploads", "loras", "wildcards", "folder"))
        if "draw" in message:
            here["draw"] = self._mapped(dict(message["draw"]), ("gallery", "models"))
            self._gallery = Path(here["draw"]["gallery"])
            Path(self._gallery, here["draw"]["folder"]).mkdir(parents=True, exist_ok=True)
            if self._root is not None:
                self._clear(message["draw"])
        self._child.send(here)

    def _clear(self, draw: JsonView) -> None:
        """Remove what earlier jobs have drawn, fetched long ago, but for what a job needs."""
        needed = {self._under_root(path) for path in draw["reads"]}
        needed |= {Path(self._under_root(draw["gallery"]), path) for path in draw["done"].values()}
        for path in self._drawn - needed:
            path.unlink(missing_ok=True)
        self._drawn &= needed

    def place(self, files: Mapping[str, str]) -> None:
        """Put objects of this worker's store where the process finds them: by hard links, as runtimes refuse others."""
        store = own_store()
        for name, digest in files.items():
            path = self._under_root(name)
            if self._placed.get(name) == digest and path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            try:
                path.hardlink_to(store.object_path(digest))
            except OSError:
                shutil.copyfile(store.object_path(digest), path)
            self._placed[name] = digest

    def stop(self) -> None:
        """End the process, and remove what was for it alone."""
        self._child.stop()
        self._log.unlink(missing_ok=True)
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def _answer(self, answer: Json) -> None:
        more: Json = {}
        if self._root is not None:
            if "folders" in answer:
                answer["folders"] = [self._there(folder) for folder in answer["folders"]]
            if answer["answer"] in ("picture", "sheet") and self._gallery is not None:
                path = Path(self._gallery, answer["path"])
                self._drawn.add(path)
                more = {"file": str(path), "bytes": path.stat().st_size}
        self._tell({"answer": answer, **more})

    def _end(self, status: int) -> None:
        with contextlib.suppress(OSError):
            words = self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
            self._tell({"ended": status, "words": words})

    def _mapped(self, message: Json, names: tuple[str, ...]) -> Json:
        for name in names if self._root is not None else ():
            match message.get(name):
                case str() as path:
                    message[name] = self._here(path)
                case list() as paths:
                    message[name] = [self._here(path) for path in paths]
                case dict() as paths:
                    message[name] = {key: self._here(path) for key, path in paths.items()}
        return message

    def _here(self, path: str) -> str:
        found = self._under_root(path)
        found.mkdir(parents=True, exist_ok=True)
        return str(found)

    def _under_root(self, path: str) -> Path:
        assert self._root is not None
        return self._root.joinpath(*Path(path).parts[1:])

    def _there(self, path: str) -> str:
        assert self._root is not None
        return str(Path("/", Path(path).relative_to(self._root)))


async def start_painter(name: str, worker: str, settings: JsonView, *, shares: bool, dask_worker: Any) -> None:
    """Start the process that draws for a server.

    Raises `ReplacedError` if this is not the worker that it is for.

    Args:
        name: Of the process; its answers are told under it.
        worker: Id of the Dask worker that it is for.
        settings: As `Painting` takes them.
        shares: Whether the worker sees the server's folders.
        dask_worker: The `distributed.Worker`, which Dask fills in.
    """
    if dask_worker.id != worker:
        raise ReplacedError
    root = None if shares else home_folder() / name
    loop = asyncio.get_running_loop()

    def tell(event: Any) -> None:
        loop.call_soon_threadsafe(dask_worker.log_event, name, event)

    painter = await asyncio.to_thread(_SitePainter, name, settings, root, tell)
    _painters[name] = painter
    loop.create_task(_watch(name, painter))  # noqa: RUF006  (it ends with the process)


async def tell_painter(name: str, message: JsonView | None) -> None:
    """Tell the process something, or only that the server is there.

    Raises `ReplacedError` if there is no such process.
    """
    painter = _painters.get(name)
    if painter is None:
        raise ReplacedError
    painter.heard = time.monotonic()
    if message is not None:
        await asyncio.to_thread(painter.send, message)


async def place_files(name: str, files: Mapping[str, str]) -> None:
    """Put objects of this worker's store where the process finds them.

    Raises `ReplacedError` if there is no such process.

    Args:
        name: Of the process.
        files: Digest of each file, by its path over there.
    """
    painter = _painters.get(name)
    if painter is None:
        raise ReplacedError
    await asyncio.to_thread(painter.place, files)


async def stop_painter(name: str) -> None:
    """End the process."""
    painter = _painters.pop(name, None)
    if painter is not None:
        await asyncio.to_thread(painter.stop)


async def _watch(name: str, painter: _SitePainter) -> None:
    while _painters.get(name) is painter:
        await asyncio.sleep(_SILENCE_SECONDS / 4)
        if time.monotonic() - painter.heard > _SILENCE_SECONDS:
            await stop_painter(name)

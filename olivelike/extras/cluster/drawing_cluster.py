"""Processes that draw on the workers of a Dask cluster, as `Painter` sees a process of this machine."""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from olivelike._files import file_identity, write_whole
from olivelike._untrusted import Json, JsonView, one_line
from olivelike.digest import digest_file
from olivelike.errors import OlivelikeError, SessionError
from olivelike.extras.cluster import cluster_site, painting_site
from olivelike.extras.cluster.cluster_workers import ClusterWorkers, LostError, Site
from olivelike.serve.drawing.painter import LOST

_WORD_SECONDS: Final = 20.0
"""Interval at which a worker is told that the server is there."""
_LISTEN_SECONDS: Final = 0.2
"""Longest time until an order to stop is noticed."""
_FREE_SECONDS: Final = 2.0
"""Interval at which a free worker is looked for."""
_WATCH_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0
_KILLED: Final = -9
"""Status of a process that was told to end, as of one that was killed here."""


class DrawingCluster:
    """The workers that draw, one process each."""

    def __init__(self, address: str, folder: Path) -> None:
        """Connect; raises as `ClusterWorkers`.

        Args:
            address: The cluster.
            folder: A folder of the server's.
        """
        self._workers = ClusterWorkers(address, folder)
        self._taken: set[str] = set()
        self._digests: dict[str, tuple[tuple[int, ...], str]] = {}
        """State and digest of each file as it was when it was read, by path."""
        self._guard = threading.Lock()
        self._children: set[ClusterChild] = set()
        """Children that have a worker."""
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="workers", daemon=True).start()

    @property
    def is_closed(self) -> bool:
        """Whether the cluster was let go."""
        return self._closed.is_set()

    @property
    def size(self) -> int:
        """Number of workers now."""
        with contextlib.suppress(OlivelikeError):  # The scheduler may come back.
            self._workers.look()
        return len(self._workers.sites)

    def child(self, log: Path, hear: Callable[[Json], None], end: Callable[[int], None]) -> ClusterChild:
        """Return a process on a worker that has none yet, as soon as there is one; as `JsonChild`."""
        return ClusterChild(self, self._workers, log, hear, end)

    def close(self) -> None:
        """Let the cluster go."""
        with self._guard:
            children = list(self._children)
        for child in children:
            child.stop()
        for child in children:
            child.wait()
        self._closed.set()
        self._workers.close()

    def take(self, child: ClusterChild) -> Site | None:
        """Return a worker without a process, which a child has from then on, or `None`."""
        with contextlib.suppress(OlivelikeError):
            self._workers.look()
        with self._guard:
            free = [site for address, site in self._workers.sites.items() if address not in self._taken]
            if not free:
                return None
            self._taken.add(free[0].address)
            self._children.add(child)
            child.site = free[0]
            return free[0]

    def give_back(self, child: ClusterChild, site: Site) -> None:
        """Note that a worker has no process any more."""
        with self._guard:
            self._taken.discard(site.address)
            self._children.discard(child)

    def _watch(self) -> None:
        """Tell children whose worker is gone: who speaks with it may wait for half a minute."""
        while not self._closed.wait(_WATCH_SECONDS):
            with self._guard:
                children = list(self._children)
            for child in children:
                with contextlib.suppress(OlivelikeError):
                    if child.site is not None and not self._workers.is_there(child.site):
                        child.lose()

    def digests(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the SHA-256 of each file, by path; of a folder, that of each file in it. Each is read once."""
        files = [file for path in map(Path, paths) for file in (path.rglob("*") if path.is_dir() else [path])]
        found = {}
        for file in files:
            if file.is_file():
                identity, known = file_identity(file.stat()), self._digests.get(str(file))
                if known is None or known[0] != identity:
                    known = self._digests[str(file)] = identity, digest_file(file)
                found[str(file)] = known[1]
        return found


class ClusterChild:
    """The parent's end of a process on a worker; a thread of its own speaks with it."""

    def __init__(
        self,
        cluster: DrawingCluster,
        workers: ClusterWorkers,
        log: Path,
        hear: Callable[[Json], None],
        end: Callable[[int], None],
    ) -> None:
        self._cluster, self._workers, self._log = cluster, workers, log
        self._hear, self._end = hear, end
        self._name = f"painter-{secrets.token_hex(8)}"
        self._messages: queue.SimpleQueue[JsonView] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[JsonView | None] = queue.SimpleQueue()
        """Messages of the process, `None` after the last."""
        self._stopped, self._guard = threading.Event(), threading.Lock()
        self._status: int | None = None
        self._gallery = Path()
        self.site: Site | None = None
        """Its worker, once there is one."""
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._speak, name=self._name, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> None:
        """There is none here."""
        return

    def send(self, message: JsonView) -> None:
        """Tell the process; of one that has died, `end` is called and this says nothing."""
        self._messages.put(message)

    def stop(self) -> None:
        """End the process, soon."""
        self._stopped.set()

    def wait(self) -> None:
        """Wait a moment for the end of a process that was told to."""
        self._thread.join(_STOP_SECONDS)

    def _speak(self) -> None:
        status = LOST
        while (site := self._cluster.take(self)) is None:
            if self._stopped.wait(_FREE_SECONDS):
                return
        try:
            status = self._speak_with(site)
        except LostError:
            self._workers.forget(site)
        except Exception as error:  # noqa: BLE001  (the boundary of a thread)
            self._note(f"{type(error).__name__}: {error}\n")
        finally:
            self._told.put(None)
            with contextlib.suppress(Exception):
                self._workers.client.unsubscribe_topic(self._name)
                if not self._cluster.is_closed and self._workers.is_there(site):
                    self._workers.ask(site, painting_site.stop_painter, self._name)
            self._cluster.give_back(self, site)
            self._finish(status)

    def lose(self) -> None:
        """Note that the worker is gone."""
        self._stopped.set()
        self._finish(LOST)

    def _finish(self, status: int) -> None:
        with self._guard:
            if self._has_ended.is_set():
                return
            self._has_ended.set()
        self._end(status)

    def _speak_with(self, site: Site) -> int:
        """Pass messages on until the process has ended; return its status."""
        settings = self._messages.get()
        places = [settings["uploads"], *settings["loras"], *settings["wildcards"], *settings["upscalers"]]
        settings = {"memory_limit": int(site.facts["memory_bytes"]) * 4 // 5, **settings}
        shares = site.facts["shares"] and self._workers.ask(site, cluster_site.sees, places)
        self._workers.client.subscribe_topic(self._name, lambda event: self._told.put(event[1]))
        threading.Thread(target=self._listen, args=(site,), name=f"{self._name}-answers", daemon=True).start()
        worker = site.facts["worker"]
        self._workers.ask(site, painting_site.start_painter, self._name, worker, settings, shares=shares)
        told = time.monotonic()
        while not self._stopped.is_set():
            if self._status is not None:
                return self._status
            message: JsonView | None = None
            try:
                message = self._messages.get(timeout=_LISTEN_SECONDS)
            except queue.Empty:
                if time.monotonic() - told < _WORD_SECONDS:
                    continue
            if message is not None:
                self._note_gallery(message)
                if not shares:
                    self._place(site, message)
            self._workers.ask(site, painting_site.tell_painter, self._name, message)
            told = time.monotonic()
        return _KILLED

    def _note_gallery(self, message: JsonView) -> None:
        if "draw" in message:
            self._gallery = Path(message["draw"]["gallery"])

    def _place(self, site: Site, message: JsonView) -> None:
        """Send what a job reads, or the folder that is to be opened."""
        if "draw" in message:
            draw = message["draw"]
            reads = [*draw["reads"], *(str(Path(draw["gallery"], path)) for path in draw["done"].values())]
        else:
            reads = [message["folder"]] if "folder" in message else []
        if not reads:
            return
        files = self._cluster.digests(reads)
        by_digest = {digest: Path(path) for path, digest in files.items()}
        with contextlib.suppress(FileNotFoundError):  # Drawing says what is missing.
            self._workers.send(site, self._name, by_digest, self._go_on)
        self._workers.ask(site, painting_site.place_files, self._name, files)

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise LostError

    def _listen(self, site: Site) -> None:
        """Take what the process says; a thread of its own, as pictures are fetched before the next word is heard."""
        try:
            while (said := self._told.get()) is not None and not self._has_ended.is_set():
                if "ended" in said:
                    self._note(said["words"])
                    self._status = said["ended"]
                    return
                if "file" in said:
                    self._fetch(site, said["answer"]["path"], said["file"], said["bytes"])
                self._hear(said["answer"])
        except LostError:
            self._workers.forget(site)
            self.lose()
        except Exception as error:  # noqa: BLE001  (the boundary of a thread)
            self._note(f"{type(error).__name__}: {error}\n")
            self.lose()

    def _fetch(self, site: Site, name: str, file: str, size: int) -> None:
        path = Path(self._gallery, name)
        if not path.resolve().is_relative_to(self._gallery.resolve()):
            raise SessionError(f"{site.host} drew outside of the gallery: {one_line(name)}")
        data = b"".join(self._workers.fetch(site, file, size))
        with contextlib.suppress(OSError):  # The journal, in the same folder, will say it.
            write_whole(path, data, durable=False)

    def _note(self, words: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(words)

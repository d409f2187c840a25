"""Inputs of a workflow's nodes from outside, shared by all of them: digests of files, and weights bound."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.digest import digest_bytes, digest_json
from olivelike.families import DENOISERS
from olivelike.pass_api.pass_class import GUIDES_READ
from olivelike.sources import Adaptation, bind, known_digest

if TYPE_CHECKING:
    from olivelike.engine.plan.adapters import Adapters
    from olivelike.graphs.shelf import Shelf
    from olivelike.model import Weights
    from olivelike.sources import PipelineSource
    from olivelike.store import Store
    from olivelike.workflow import LoadedWorkflow


_POLL_SECONDS = 0.1
_FINER = 1.4
"""Of FLUX.2-klein in 8 bits, 3.9 billion weights of the denoiser took 28.7 s, 4.0 of the text encoder 21.7."""


@dataclass(frozen=True)
class Inputs:
    """A workflow with its opened source and store, for one look at all of its nodes."""

    workflow: LoadedWorkflow
    source: PipelineSource
    adapters: Adapters
    store: Store
    shelf: Shelf
    """Graphs that are known without being made."""
    elsewhere: Callable[[str], bytes | None] = lambda _: None
    """Returns what the store lacks and another has, by digest."""
    hashed: bool = True
    """Whether `digests` are those of files, not of their names."""
    _bound: dict[str, str] = field(default_factory=dict)
    _known: dict[str, bytes] = field(default_factory=dict)

    @cached_property
    def digests(self) -> FileDigests:
        """SHA-256 of each file; big ones are hashed once and remembered."""
        if not self.hashed:
            return FileDigests(lambda path: digest_json(["stand-in/1", str(path)]))
        return FileDigests(lambda path: known_digest(path) or self.store.file_digest(path))

    @cached_property
    def unhashed(self) -> Inputs:
        """The same for work that begins before files are hashed: digests of their names stand in for theirs."""
        return replace(self, hashed=False, _bound={})

    def weight_files(self, component: str) -> tuple[Path, ...]:
        """Return the weight files of a component; a tokenizer has none."""
        checkpoint = self.source.checkpoints.get(component)
        return tuple(checkpoint.files) if checkpoint is not None else ()

    def guide_files(self, component: str, reads: Collection[str] = (GUIDES_READ,)) -> dict[str, Path]:
        """Return the files of guides by key, if a node with these `reads` sees them: they change the denoiser alone."""
        sees = component in DENOISERS and GUIDES_READ in reads
        return {key: file.path for key, file in self.source.guide_files.items()} if sees else {}

    def adapter_files(self, component: str, reads: tuple[str, ...]) -> tuple[Path, ...]:
        """Return the files behind what a pass with these `reads` sees of what the workflow adds to a component."""
        return (*self.adapters.files(component, reads), *self.guide_files(component, reads).values())

    def file_sizes(self, component: str) -> dict[str, int]:
        """Return the bytes of each file that a component's weights may lie in, by digest; waits for those digests."""
        files = {*self.weight_files(component), *self.guide_files(component).values()}
        files |= {path for lora in self.adapters.loras_of(component) for path in lora.files}
        files |= {embedding.path for embedding in self.adapters.embeddings_of(component)}
        return {self.digests[path]: self.digests.stamps[path][0] for path in files}

    def work(self, component: str) -> float:
        """Return how long a component's weights take, in those of others: a denoiser's are rounded finer."""
        checkpoint = self.source.checkpoints.get(component)
        return (_FINER if component in DENOISERS else 1) * checkpoint.elements if checkpoint is not None else 0

    def prefetch(self) -> None:
        """Begin to hash every file that holds weights in the background: what takes longest first."""
        names = sorted(self.source.checkpoints, key=self.work, reverse=True)
        paths = [path for name in names for path in self.weight_files(name)]
        paths += [path for opened in self.adapters.loras for path in opened.files]
        paths += [opened.path for opened in self.adapters.embeddings]
        paths += self.guide_files(DENOISERS[0]).values()
        self.digests.prefetch(paths)

    def know(self, contents: Iterable[bytes]) -> list[str]:
        """Take what the shelf has answered and no store holds yet; return its digests."""
        found = list(contents)
        digests = [digest_bytes(data) for data in found]
        self._known.update(zip(digests, found, strict=True))
        return digests

    def content(self, digest: str, what: str) -> bytes:
        """Return what a node has made. Raises `DamagedError` if the store lost it; `what` names it."""
        if digest not in self._known and self.store.object_size(digest) is None:
            data = self.elsewhere(digest)
            self._known.update({} if data is None else {digest: data})
        return self._known.get(digest) or self.store.require_bytes(digest, what)

    def bound_weights(self, component: str, adaptation: str) -> str:
        """Return the digest of a checkpoint's weights, once its form is known; waits until its files are hashed.

        Raises `DamagedError` if the stored form is lost or damaged.
        """
        if component not in self._bound:
            self._bound[component] = self.weight_table(component, adaptation).digest
        return self._bound[component]

    def weight_table(self, component: str, adaptation: str) -> Weights:
        """Return a checkpoint's weights: where each parameter of its form lies in its files.

        Binding takes milliseconds, so that nothing is gained by keeping tables: their digests are in the keys.
        """
        data = self.content(adaptation, f"{component}: its adaptation")
        files = {path: self.digests[path] for path in self.weight_files(component)}
        return bind(Adaptation.from_bytes(data), self.source.checkpoint(component), files)


class FileDigests(Mapping[Path, str]):
    """A map from path to SHA-256, filled as it is asked for."""

    def __init__(self, digest: Callable[[Path], str]) -> None:
        """Fill the map with `digest`, which may run in several threads at once."""
        self._digest = digest
        self._futures: dict[Path, Future[str]] = {}
        self._begun: set[Path] = set()
        self.stamps: dict[Path, list[int]] = {}
        """Size in bytes and time in nanoseconds of each file just before it was hashed."""

    def __getitem__(self, path: Path) -> str:
        """Return a file's digest; waits for it if it is being computed.

        Raises `SourceError` if the file can't be read.
        """
        if path not in self._futures:
            self._futures[path] = Future()
            self._compute(path)
        while not self._futures[path].done():  # On Windows a wait without an end can't be interrupted.
            wait([self._futures[path]], timeout=_POLL_SECONDS)
        return self._futures[path].result()

    def __iter__(self) -> Iterator[Path]:
        return iter(self._futures)

    def __len__(self) -> int:
        return len(self._futures)

    def is_ready(self, path: Path) -> bool:
        """Tell whether nobody needs to wait for a file's digest: it is known, or was not asked for."""
        return path not in self._futures or self._futures[path].done()

    def has_begun(self, path: Path) -> bool:
        """Tell whether a file is being hashed, or was."""
        return path in self._begun

    def prefetch(self, paths: Iterable[Path]) -> None:
        """Compute the digests of `paths` in the background, one after another.

        Two readers would halve the disk's speed.
        """
        ordered = [path for path in dict.fromkeys(paths) if path not in self._futures and path.exists()]
        self._futures.update((path, Future()) for path in ordered)
        # A daemon: an interrupted run does not wait for gigabytes to be hashed.
        threading.Thread(target=self._compute_all, args=(ordered,), daemon=True).start()

    def _compute_all(self, paths: list[Path]) -> None:
        for path in paths:
            self._compute(path)

    def _compute(self, path: Path) -> None:
        future = self._futures[path]
        self._begun.add(path)
        try:
            status = path.stat()
            self.stamps[path] = [status.st_size, status.st_mtime_ns]
            future.set_result(self._digest(path))
        except Exception as error:  # noqa: BLE001  (raised again where the digest is asked for)
            future.set_exception(error)

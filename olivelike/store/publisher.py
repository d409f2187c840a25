"""How anything enters the store: a temporary file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from olivelike.errors import StoreError
from olivelike.store.failures import MISSING, UNREADABLE, explained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from olivelike._files import FileSystem
    from olivelike.store.layout import Layout
    from olivelike.store.liveness import Claims


class Publisher:
    """Reads, writes and sets aside the files of one store."""

    def __init__(self, layout: Layout, fs: FileSystem, claims: Claims, *, writable: bool) -> None:
        self.layout = layout
        self.fs = fs
        self._claims = claims
        self.writable = writable

    def check_writable(self) -> None:
        """Refuse to change a store that was opened for reading only, or lies on a read-only disk.

        Raises:
            StoreError: naming the store.
        """
        if not self.writable:
            raise StoreError(
                f"the store {self.layout.root} is for reading only: make it writable, or put the store elsewhere "
                "with --cache-dir"
            )

    def temporary(self) -> Path:
        """Return a new path in this process's folder of temporary files."""
        self.check_writable()
        return self._claims.own().folder / os.urandom(8).hex()

    def write(self, target: Path, data: bytes, *, durable: bool = True) -> None:
        """Put `data` at `target` in one step; it is on the disk at return if `durable`.

        Raises:
            StoreError: if the disk refuses; then nothing is left behind.
        """
        with NewFile(self) as file:
            file.write(memoryview(data))
            file.publish(target, lambda: self._holds(target, data), durable=durable)

    def read(self, path: Path) -> bytes | None:
        """Return a file's bytes; `None` if there is no such file or the disk can't give it.

        Raises:
            StoreError: if the file may not be read.
        """
        with explained(path, "read"):
            try:
                return self.fs.read(path)
            except OSError as error:
                if error.errno in UNREADABLE:
                    self.set_aside(path)
                elif error.errno not in MISSING:
                    raise
        return None

    def names(self, folder: Path) -> list[str]:
        """Return the sorted names in a folder; none if there is no such folder.

        Raises:
            StoreError: if the folder can't be read.
        """
        with explained(folder, "read"):
            return self.fs.names(folder)

    def set_aside(self, path: Path) -> None:
        """Move a damaged entry to quarantine, or remove it if that fails; a reader leaves it alone."""
        if not self.writable:
            return
        place = self.layout.quarantine / f"{path.name}.{os.urandom(4).hex()}"
        try:
            self.fs.make_folder(place.parent)
            self.fs.replace(path, place)
        except OSError:
            # Every reader finds the damage again, so a failure here costs time only.
            with contextlib.suppress(OSError):
                self.fs.remove(path)

    def _holds(self, target: Path, data: bytes) -> bool:
        try:
            return self.fs.read(target) == data
        except OSError:
            return False


class NewFile:
    """A file in the making; a context manager that leaves nothing behind unless it was published."""

    def __init__(self, publisher: Publisher, finished: Path | None = None) -> None:
        """Create a temporary file, or take over one that is `finished`.

        Raises:
            StoreError: if the disk refuses.
        """
        self._publisher = publisher
        self._fs = publisher.fs
        self._path = finished or publisher.temporary()
        with explained(self._path):
            self._descriptor: int | None = (
                self._fs.open(finished, write=True) if finished else self._fs.create(self._path)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._close()
        # After a publication there is no file of this name any more.
        with contextlib.suppress(OSError):
            self._fs.remove(self._path)

    @property
    def descriptor(self) -> int:
        """The open file's descriptor.

        Raises:
            ValueError: if the file was published.
        """
        if self._descriptor is None:
            raise ValueError("the file was published already")
        return self._descriptor

    def write(self, data: memoryview) -> None:
        """Append a view of single bytes."""
        with explained(self._path):
            self._fs.write(self.descriptor, data)

    def publish(self, target: Path, is_published: Callable[[], bool], *, durable: bool = True) -> None:
        """Close the file and rename it to `target`.

        Args:
            target: where it goes.
            is_published: tells whether `target` already holds this content; asked if the rename is refused,
                as Windows does while another process has the target open.
            durable: whether to wait for the disk.
        """
        with explained(target):
            if durable:
                self._fs.sync(self.descriptor)
            self._close()
            self._fs.make_folder(target.parent)
            try:
                self._fs.replace(self._path, target)
            except OSError:
                if self._fs.is_folder(target):
                    self._publisher.set_aside(target)
                    self._fs.replace(self._path, target)
                elif not is_published():
                    raise
            if durable:
                self._fs.sync_folder(target.parent)

    def _close(self) -> None:
        descriptor, self._descriptor = self.descriptor, None
        self._fs.close(descriptor)

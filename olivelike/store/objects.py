"""Content-addressed objects: graphs, JSON facets, tensors."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from olivelike.digest import digest_bytes
from olivelike.store.failures import MISSING, UNREADABLE, explained
from olivelike.store.publisher import NewFile

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from olivelike.store.publisher import Publisher

_CHUNK = 1 << 20


class ObjectWriter:
    """Streams one object into the store; a context manager.

    What is not committed at the end of the block leaves nothing behind.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._hasher = hashlib.sha256()
        self._file = NewFile(objects.publisher)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Append bytes; a memoryview of an array must be contiguous."""
        view = memoryview(piece)
        if view.nbytes == 0:  # views of empty arrays can't be cast
            return
        view = view.cast("B")
        self._hasher.update(view)
        self._file.write(view)

    def commit(self) -> str:
        """Publish what was written and return its digest; it is durable at return."""
        digest = self._hasher.hexdigest()
        # Always replaces: an object of this name may be damaged, and finding out costs as much.
        self._file.publish(self._objects.path(digest), lambda: self._objects.is_whole(digest))
        return digest


class Objects:
    """The objects of one store."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._fs = publisher.fs

    def path(self, digest: str) -> Path:
        """Return where the object lies, present or not."""
        return self.publisher.layout.object(digest)

    def put_bytes(self, data: bytes, digest: str | None = None) -> str:
        """Store `data`, unless it is there and whole; return its digest, which is computed unless it is given."""
        self.publisher.check_writable()
        digest = digest or digest_bytes(data)
        path = self.path(digest)
        # Read back rather than trust the name: putting is how damage heals.
        if self.publisher.read(path) == data:
            with contextlib.suppress(OSError):  # fresh objects are safe from collection
                self._fs.touch(path)
        else:
            self.publisher.write(path, data)
        return digest

    def put_file(self, source: Path) -> str:
        """Store a finished file and return its digest; moved if it is in this store's `tmp/`, else copied."""
        self.publisher.check_writable()
        temporary = self.publisher.layout.temporary.absolute()
        if not source.absolute().is_relative_to(temporary):
            return self._copy(source)
        with NewFile(self.publisher, finished=source) as file:
            with explained(source, "read"):
                digest = self._digest_of(file.descriptor)
            file.publish(self.path(digest), lambda: self.is_whole(digest))
        return digest

    def read_bytes(self, digest: str) -> bytes | None:
        """Return an object's bytes, or `None` if it is absent or was damaged; damage goes to quarantine."""
        path = self.path(digest)
        data = self.publisher.read(path)
        if data is None or digest_bytes(data) == digest:
            return data
        self.publisher.set_aside(path)
        return None

    def is_whole(self, digest: str) -> bool:
        """Read an object through and tell whether its bytes match its name; changes nothing."""
        try:
            descriptor = self._fs.open(self.path(digest))
        except OSError:
            return False
        try:
            return self._digest_of(descriptor) == digest
        except OSError:
            return False
        finally:
            self._fs.close(descriptor)

    def size(self, digest: str) -> int | None:
        """Return an object's size in bytes, or `None` if it is absent."""
        path = self.path(digest)
        with explained(path, "read"):
            try:
                return self._fs.stat(path).st_size
            except OSError as error:
                if error.errno not in MISSING | UNREADABLE:
                    raise
        return None

    def _copy(self, source: Path) -> str:
        with ObjectWriter(self) as writer, source.open("rb", buffering=0) as file:
            while piece := file.read(_CHUNK):
                writer.write(piece)
            return writer.commit()

    def _digest_of(self, descriptor: int) -> str:
        hasher = hashlib.sha256()
        while piece := self._fs.read_piece(descriptor, _CHUNK):
            hasher.update(piece)
        return hasher.hexdigest()

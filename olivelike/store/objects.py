"""Content-addressed objects: graphs, JSON facets, tensors."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Self

from olivelike._files import NewFile
from olivelike.digest import digest_bytes
from olivelike.errors import DamagedError
from olivelike.store.folder import MISSING, UNREADABLE, StoreFolder, explained

_CHUNK = 1 << 20


class ObjectWriter:
    """Streams one object into the store; a context manager.

    What is not committed at the end of the block leaves nothing behind.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._hasher = hashlib.sha256()
        self._path = folder.new_path()
        with explained(self._path):
            self._file = NewFile(self._path, folder.fs)

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
        with explained(self._path):
            self._file.write(view)

    def commit(self) -> str:
        """Publish what was written and return its digest; it is durable at return."""
        digest = self._hasher.hexdigest()
        # Always replaces: an object of this name may be damaged, and finding out costs as much.
        self._folder.publish(self._file, self._folder.object(digest), lambda: is_whole(self._folder, digest))
        return digest


class Objects:
    """The objects of a store."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder

    def object_path(self, digest: str) -> Path:
        """Return where an object lies, present or not."""
        return self._folder.object(digest)

    def writer(self) -> ObjectWriter:
        """Return a context manager with `write(piece)` and `commit() -> digest`, for big objects."""
        return ObjectWriter(self._folder)

    def put_bytes(self, data: bytes, digest: str | None = None) -> str:
        """Store `data`, unless it is there and whole; return its digest, which is computed unless it is given."""
        self._folder.check_writable()
        digest = digest or digest_bytes(data)
        path = self._folder.object(digest)
        # Read back rather than trust the name: putting is how damage heals.
        if self._folder.read(path) == data:
            with contextlib.suppress(OSError):  # fresh objects are safe from collection
                self._folder.fs.touch(path)
        else:
            self._folder.write(path, data)
        return digest

    def put_file(self, source: Path, expected: str | None = None) -> str:
        """Store a finished file and return its digest; moved if it is in this store's `tmp/`, else copied.

        Raises `DamagedError`, and stores nothing, if a file in `tmp/` does not have the digest that is expected.
        """
        folder = self._folder
        folder.check_writable()
        if not source.absolute().is_relative_to(folder.temporary.absolute()):
            with ObjectWriter(folder) as writer, source.open("rb", buffering=0) as file:
                while piece := file.read(_CHUNK):
                    writer.write(piece)
                return writer.commit()
        with explained(source, "read"), NewFile(source, folder.fs, written=True) as moved:
            digest = _digest_of(folder, moved.descriptor)
            if expected is not None and digest != expected:
                raise DamagedError(f"what should be the object {expected[:12]} is something else")
            folder.publish(moved, folder.object(digest), lambda: is_whole(folder, digest))
        return digest

    def read_bytes(self, digest: str) -> bytes | None:
        """Return an object's bytes, checked; `None` if it is absent, or damaged and now in quarantine."""
        path = self._folder.object(digest)
        data = self._folder.read(path)
        if data is None or digest_bytes(data) == digest:
            return data
        self._folder.set_aside(path)
        return None

    def require_bytes(self, digest: str, what: str) -> bytes:
        """Return an object's bytes.

        Raises `DamagedError` naming it as `what`, if it is lost or damaged; it is set aside, so a rerun remakes it.
        """
        data = self.read_bytes(digest)
        if data is None:
            raise DamagedError(f"{what} ({digest[:12]}) was lost or damaged; run again to remake it")
        return data

    def object_size(self, digest: str) -> int | None:
        """Return an object's size in bytes, or `None` if it is absent; its content is not looked at."""
        return size(self._folder, digest)

    def check_object(self, digest: str) -> bool:
        """Read an object through; if it does not match its digest, quarantine it and return `False`."""
        if is_whole(self._folder, digest):
            return True
        self._folder.set_aside(self._folder.object(digest))
        return False


def is_whole(folder: StoreFolder, digest: str) -> bool:
    """Read an object through and tell whether its bytes match its name; changes nothing."""
    try:
        descriptor = folder.fs.open(folder.object(digest))
    except OSError:
        return False
    try:
        return _digest_of(folder, descriptor) == digest
    except OSError:
        return False
    finally:
        folder.fs.close(descriptor)


def size(folder: StoreFolder, digest: str) -> int | None:
    """Return an object's size in bytes, or `None` if it is absent."""
    path = folder.object(digest)
    with explained(path, "read"):
        try:
            return folder.fs.stat(path).st_size
        except OSError as error:
            if error.errno not in MISSING | UNREADABLE:
                raise
    return None


def _digest_of(folder: StoreFolder, descriptor: int) -> str:
    hasher = hashlib.sha256()
    while piece := folder.fs.read_piece(descriptor, _CHUNK):
        hasher.update(piece)
    return hasher.hexdigest()

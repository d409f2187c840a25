"""Files that are whole or absent, whatever is killed, full or slow: durable writes, locks, and what a refusal means.

Every operation on the store's files goes through a `FileSystem`, so that tests can make each of them fail in turn; only
SQLite (the index) and filelock (the locks) touch files by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, Protocol, Self

from olivelike.errors import StoreError

WINDOWS = os.name == "nt"
"""Asked each time, so that tests can see what is done there."""
_BINARY = getattr(os, "O_BINARY", 0)
_REPLACE_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
_POLL_SECONDS = 0.02
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Values of `OSError.errno` for a disk, a quota or a file that has no room."""
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def file_identity(found: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return what tells a file from others and from itself before a change: by it a file is known again.

    Size and time of change can be made as they were; the time at which the status changed can't.
    """
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def identity_at(path: str | Path) -> tuple[int, ...] | None:
    """Return the identity of what lies at a path; `None` if nothing does."""
    try:
        return file_identity(os.stat(path))  # noqa: PTH116  (a server asks often: it takes a third of the time)
    except (OSError, ValueError):
        return None


def files_below(folder: str | Path, suffixes: Collection[str], inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield the files below a folder that have one of some suffixes, written in lower case, and their paths in it.

    These have slashes and no suffix. The order is that of `sorted(folder.rglob("*"))`, which takes ten times as long:
    a server asks for each picture. Folders that are links are not gone through, and such as can't be read are empty.

    Args:
        inside: what stands before each path.
    """
    with contextlib.suppress(PermissionError, FileNotFoundError, NotADirectoryError):
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: os.path.normcase(entry.name))
        for entry in found:
            name, suffix = os.path.splitext(entry.name)  # noqa: PTH122  (a third of the time)
            if entry.is_dir(follow_symlinks=False):
                yield from files_below(entry.path, suffixes, f"{inside}{entry.name}/")
            elif suffix.lower() in suffixes and not entry.is_dir():
                yield entry.path, inside + name


class FileSystem:
    """The real operations; they raise `OSError` as the operating system gives it."""

    def read(self, path: Path) -> bytes:
        """Return the whole file."""
        return path.read_bytes()

    def stat(self, path: Path) -> os.stat_result:
        """Return the file's size, times and identity."""
        return path.stat()

    def is_folder(self, path: Path) -> bool:
        """Tell whether there is a folder at the path."""
        return path.is_dir()

    def may_write(self, folder: Path) -> bool:
        """Tell whether a folder lets us put names into it; Windows tells only when it is tried."""
        return os.access(folder, os.W_OK)

    def files(self, folder: Path) -> list[tuple[Path, os.stat_result]]:
        """Return every file below a folder with its status; what vanishes meanwhile is left out."""
        found = []
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):
                    found.append((path, path.lstat()))
        return found

    def names(self, folder: Path) -> list[str]:
        """Return the sorted names in a folder; none if it does not exist or is no folder."""
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208  (names are all that is needed)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        """Create a folder and its parents; each new one is made durable in its parent."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        try:
            path.mkdir(mode)
        except FileExistsError:
            if not path.is_dir():
                raise
        self.sync_folder(path.parent)

    def create(self, path: Path, mode: int = 0o666) -> int:
        """Create a new file and return its descriptor, open for writing."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _BINARY, mode)

    def open(self, path: Path, *, write: bool = False) -> int:
        """Return the descriptor of an existing file, open for reading, or for both."""
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | _BINARY)

    def read_piece(self, descriptor: int, size: int) -> bytes:
        """Return at most `size` bytes from where the descriptor stands; none at the end."""
        return os.read(descriptor, size)

    def write(self, descriptor: int, data: memoryview) -> None:
        """Write all of `data`, a view of single bytes."""
        while data:
            data = data[os.write(descriptor, data) :]

    def sync(self, descriptor: int) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over another in one step; on Windows, wait for scanners to let go."""
        for pause in _REPLACE_PAUSES if WINDOWS else ():
            try:
                source.replace(target)
            except PermissionError:
                time.sleep(pause)
            else:
                return
        source.replace(target)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable; Windows has no such operation and needs none."""
        if WINDOWS:
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
                raise
        finally:
            os.close(descriptor)

    def set_private(self, folder: Path) -> None:
        """Let nobody else into a folder."""
        if stat.S_IMODE(folder.stat().st_mode) != 0o700 and not WINDOWS:
            folder.chmod(0o700)

    def touch(self, path: Path) -> None:
        """Set a file's modification time to now."""
        os.utime(path)

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder; one that does not exist is no error."""
        try:
            path.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            if not path.is_dir():
                raise
            import shutil

            with contextlib.suppress(FileNotFoundError):  # another process removes it too
                shutil.rmtree(path)


DISK = FileSystem()
"""The operations outside of stores."""


class NewFile:
    """A file in the making, a context manager: it gets its name once it is whole, or leaves nothing behind."""

    def __init__(self, temporary: Path, disk: FileSystem = DISK, mode: int = 0o666, *, written: bool = False) -> None:
        """Create the file under a temporary name on the disk of the final one, or take over one that is `written`.

        Raises `OSError` if the disk refuses, as all that follows does.
        """
        self._path, self._disk = temporary, disk
        self._descriptor: int | None = disk.open(temporary, write=True) if written else disk.create(temporary, mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._close()
        # Once it has its name, there is no file of this one any more.
        with contextlib.suppress(OSError):
            self._disk.remove(self._path)

    @property
    def descriptor(self) -> int:
        """The open file's descriptor. Raises `ValueError` if the file is finished."""
        if self._descriptor is None:
            raise ValueError("the file was published already")
        return self._descriptor

    def write(self, data: memoryview) -> None:
        """Append a view of single bytes."""
        self._disk.write(self.descriptor, data)

    def finish(self, *, durable: bool = True) -> None:
        """Close the file; what was written is on the disk at return if `durable`."""
        if durable:
            self._disk.sync(self.descriptor)
        self._close()

    def name(self, target: Path, *, durable: bool = True) -> None:
        """Rename the finished file to `target`, in place of what has the name."""
        self._disk.replace(self._path, target)
        if durable:
            self._disk.sync_folder(target.parent)

    def take_name(self, target: Path) -> None:
        """Give the finished file a name that is free.

        Raises `FileExistsError` if it is taken, also by a process that was faster.
        """
        try:
            target.hardlink_to(self._path)
        except FileExistsError:
            raise
        except OSError:
            # A disk without hard links, such as FAT: the name is taken by an empty file first.
            self._disk.close(self._disk.create(target))
            try:
                self._disk.replace(self._path, target)
            except OSError:
                target.unlink()
                raise

    def _close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._disk.close(descriptor)


def write_whole(path: Path, data: bytes, *, durable: bool = True, overwrite: bool = True, mode: int = 0o666) -> None:
    """Write a file that other programs see complete, or as it was before.

    Raises `FileExistsError` if the name is taken and not to be replaced, and `OSError` if it can't be written.

    Args:
        durable: whether to wait for the disk, so that a power loss changes nothing of this.
        mode: who may use it, before the process's mask.
    """
    # The name is cut, since with the final one's length it might be too long.
    with NewFile(path.with_name(f".{os.urandom(8).hex()}.tmp"), DISK, mode) as file:
        file.write(memoryview(data))
        file.finish(durable=durable)
        if overwrite:
            file.name(path, durable=durable)
        else:
            file.take_name(path)


@contextlib.contextmanager
def explained(task: str, place: Path, elsewhere: str, full: str = "free some space") -> Iterator[None]:
    """Raise `StoreError` for an `OSError` inside the block.

    The error has the task, the path, the reason and a remedy.

    Args:
        task: what can't be done, such as `write to the store`.
        place: the path to name where the operating system names none.
        elsewhere: what always helps, such as another folder.
        full: what helps on a full disk.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            remedy = full
        elif error.errno in _REFUSED:
            remedy = "make it writable"
        else:
            remedy = "check the disk" if error.errno == errno.EIO else "look at that path"
        found = f"{error.filename or place}: {error.strerror or error}"
        raise StoreError(f"can't {task}: {found}; {remedy}, or {elsewhere}") from error


class Lock(Protocol):
    """An advisory file lock that is held; it dies with its process. Correctness never rests on it."""

    def release(self) -> None:
        """Give it back."""


def try_lock(path: Path) -> Lock | None:
    """Return the lock, held, or `None` if another process holds it; the folder must exist."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    # Another process may have removed the file between our open and our lock: such a lock guards no name.
    if path.exists():
        return lock
    lock.release()
    return None


@contextlib.contextmanager
def held(
    path: Path, on_wait: Callable[[], None] | None = None, *, timeout: float = float("inf"), leaves_file: bool = True
) -> Iterator[None]:
    """Hold the lock during the block. Raises `TimeoutError` if the lock stays taken.

    Args:
        path: the lock's file; its folder must exist.
        on_wait: called once if another holder has it; raising from it gives up.
        timeout: seconds to wait for another holder.
        leaves_file: whether the file stays afterwards, which costs the next holder less.
    """
    end = time.monotonic() + timeout
    while (lock := try_lock(path)) is None:
        if on_wait is not None:
            on_wait()
            on_wait = None
        if time.monotonic() >= end:
            raise TimeoutError(errno.ETIMEDOUT, "another process holds it", str(path))
        time.sleep(_POLL_SECONDS)  # in slices, which Ctrl-C ends on every system
    try:
        yield
    finally:
        if leaves_file:
            lock.release()
        else:
            _release_and_remove(lock, path, DISK)


def drop_lock(path: Path, disk: FileSystem = DISK) -> None:
    """Remove the file of a lock, unless somebody holds it."""
    lock = try_lock(path)
    if lock is not None:
        _release_and_remove(lock, path, disk)


def _release_and_remove(lock: Lock, path: Path, disk: FileSystem) -> None:
    try:
        if not WINDOWS:
            disk.remove(path)  # while it is held, so that nobody else can take it in between
    finally:
        lock.release()
    if WINDOWS:  # A file that is open can't be removed there, be it by us or by the next holder.
        with contextlib.suppress(PermissionError):
            disk.remove(path)


def hold_paths(owner: object, *names: str) -> None:
    """Make paths of texts in fields of a frozen dataclass, from its `__post_init__`; `None` stays."""
    for name in names:
        if isinstance(value := getattr(owner, name), str):
            object.__setattr__(owner, name, Path(value))

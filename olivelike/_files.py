"""Every file operation of the store, in one place, so that tests can make each of them fail in turn.

Only SQLite (the index) and filelock (the locks) touch files by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

_WINDOWS = os.name == "nt"
_BINARY = getattr(os, "O_BINARY", 0)
_REPLACE_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)


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

    def create(self, path: Path) -> int:
        """Create a new file and return its descriptor, open for writing."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _BINARY, 0o666)

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
        for pause in _REPLACE_PAUSES if _WINDOWS else ():
            try:
                source.replace(target)
            except PermissionError:
                time.sleep(pause)
            else:
                return
        source.replace(target)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable; Windows has no such operation and needs none."""
        if _WINDOWS:
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
        if stat.S_IMODE(folder.stat().st_mode) != 0o700 and not _WINDOWS:
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

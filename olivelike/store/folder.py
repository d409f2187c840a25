"""A store's folder: where each kind of entry lies, and how one is read, written and set aside.

Which processes use the store now: each that writes holds one file lock, its claim.

A claim's token names a folder for the process's temporary files. When the process is gone, whoever opens the
store next removes both.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from olivelike import _files
from olivelike._files import FileSystem, Lock, NewFile, try_lock
from olivelike._untrusted import Json
from olivelike.digest import digest_json
from olivelike.errors import StoreError

FOLDERS = ("objects", "actions", "runs", "logs", "tmp", "locks", "roots", "quarantine", "index")
"""The folders at the top: all that a store may hold."""
MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
"""Error numbers of a read that mean: there is no such entry."""
UNREADABLE = frozenset({errno.EIO, errno.EISDIR})
"""Error numbers of a read that mean: the entry is damaged."""

_ELSEWHERE = "put the store elsewhere with --cache-dir"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]|^\.+$")


class StoreFolder:
    """The folder of one store; making one touches no file."""

    def __init__(self, root: Path, fs: FileSystem, *, writable: bool) -> None:
        self.root = root
        self.fs = fs
        self.writable = writable
        self.objects = root / "objects"
        self.actions = root / "actions"
        self.runs = root / "runs"
        self.logs = root / "logs"
        self.temporary = root / "tmp"
        self.locks = root / "locks"
        self.key_locks = self.locks / "keys"
        self.live_roots = root / "roots" / "runs"
        self.pins = root / "roots" / "pins"
        self.quarantine = root / "quarantine"
        self.index = root / "index"
        self.claims = Claims(self.locks / "live", self.temporary, fs)

    def object(self, digest: str) -> Path:
        """Return the path of an object, present or not."""
        return self.objects / checked_digest(digest)[:2] / digest

    def action(self, key: str) -> Path:
        """Return the path of an action record."""
        return self.actions / checked_digest(key)[:2] / f"{key}.json"

    def run(self, run_id: str) -> Path:
        """Return the path of a run record."""
        return self.runs / f"{_checked_run_id(run_id)}.json"

    def log(self, run_id: str, node: str) -> Path:
        """Return the path of a node's log below `logs`; each `/` in the node's name is a folder."""
        *folders, name = (file_name(part) for part in node.split("/"))
        return self.logs.joinpath(_checked_run_id(run_id), *folders, f"{name}.log")

    def key_lock(self, key: str) -> Path:
        """Return the path of the lock on an action."""
        return self.key_locks / f"{checked_digest(key)}.lock"

    def live_root(self, run_id: str) -> Path:
        """Return the path of a live run's root."""
        return self.live_roots / f"{_checked_run_id(run_id)}.json"

    def pin(self, name: str) -> Path:
        """Return the path of a pin."""
        return self.pins / f"{file_name(name)}.json"

    def check_writable(self) -> None:
        """Refuse to change a store that was opened for reading only, or lies on a read-only disk.

        Raises `StoreError` naming the store.
        """
        if not self.writable:
            raise StoreError(f"the store {self.root} is for reading only: make it writable, or {_ELSEWHERE}")

    def read(self, path: Path) -> bytes | None:
        """Return a file's bytes; `None` if there is no such file or the disk can't give it.

        Raises `StoreError` if the file may not be read.
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

        Raises `StoreError` if the folder can't be read.
        """
        with explained(folder, "read"):
            return self.fs.names(folder)

    def new_path(self) -> Path:
        """Return a new path in this process's folder of temporary files."""
        return self.own_claim().folder / os.urandom(8).hex()

    def own_claim(self) -> Claim:
        """Return what marks this process as one that uses the store.

        Raises `StoreError` if the store can't be written.
        """
        self.check_writable()
        with explained(self.locks):
            return self.claims.own()

    def write(self, target: Path, data: bytes, *, durable: bool = True) -> None:
        """Put `data` at `target` in one step; it is on the disk at return if `durable`.

        Raises `StoreError` if the disk refuses; then nothing is left behind.
        """
        temporary = self.new_path()
        with explained(temporary), NewFile(temporary, self.fs) as file:
            file.write(memoryview(data))
            self.publish(file, target, lambda: self._holds(target, data), durable=durable)

    def publish(self, file: NewFile, target: Path, is_published: Callable[[], bool], *, durable: bool = True) -> None:
        """Give a file that is written its name.

        Args:
            file: in this process's folder of temporary files.
            target: where it goes.
            is_published: tells whether `target` already holds this content; asked if the rename is refused,
                as Windows does while another process has the target open.
            durable: whether to wait for the disk.
        """
        with explained(target):
            file.finish(durable=durable)
            self.fs.make_folder(target.parent)
            try:
                file.name(target, durable=durable)
            except OSError:
                if self.fs.is_folder(target):
                    self.set_aside(target)
                    file.name(target, durable=durable)
                elif not is_published():
                    raise

    def set_aside(self, path: Path) -> None:
        """Move a damaged entry to quarantine, or remove it if that fails; a reader leaves it alone."""
        if not self.writable:
            return
        try:
            self.fs.make_folder(self.quarantine)
            self.fs.replace(path, self.quarantine / f"{path.name}.{os.urandom(4).hex()}")
        except OSError:
            # Every reader finds the damage again, so a failure here costs time only.
            with contextlib.suppress(OSError):
                self.fs.remove(path)

    def lock_path(self, name: str) -> Path:
        """Return the path of a lock on a part of the store; its folder exists at return."""
        self.fs.make_folder(self.locks)
        return self.locks / f"{name}.lock"

    def _holds(self, target: Path, data: bytes) -> bool:
        try:
            return self.fs.read(target) == data
        except OSError:
            return False


def explained(place: Path, task: str = "write to") -> contextlib.AbstractContextManager[None]:
    """Raise `StoreError`, with a remedy, for an `OSError` inside the block.

    `place` is the path to name where the operating system names none.
    """
    full = "free space there (`olivelike cache gc` drops old results)"
    return _files.explained(f"{task} the store", place, _ELSEWHERE, full)


def seal(kind: str, content: Json) -> bytes:
    """Serialise a record as readable JSON with its kind and the SHA-256 of its canonical JSON.

    Raises `ValueError` for a taken name, or a number that JSON lacks.

    Args:
        kind: what it is and in which version, such as `action/1`.
        content: JSON values; the names `kind` and `seal` are taken.
    """
    if taken := content.keys() & {"kind", "seal"}:
        raise ValueError(f"a record can't have the names {sorted(taken)}")
    record = {"kind": kind, **content}
    return json.dumps({"seal": digest_json(record), **record}, indent=1, allow_nan=False).encode() + b"\n"


def unseal(kind: str, data: bytes | None) -> Json | None:
    """Return the content that `seal` was given, or `None` for no, another or a damaged record."""
    try:
        record = json.loads(data or b"")
        if not isinstance(record, dict) or record.pop("seal", None) != digest_json(record):
            return None
    except (ValueError, RecursionError):
        return None
    return record if record.pop("kind", None) == kind else None


def is_digest(text: object) -> bool:
    """Tell whether `text` is a SHA-256 in 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def checked_digest(text: str) -> str:
    """Return `text`, or refuse what is no SHA-256: it becomes part of a path. Raises `ValueError` naming the text."""
    if not is_digest(text):
        raise ValueError(f"expected a SHA-256 of 64 hexadecimal digits, found {text!r}")
    return text


def _checked_run_id(text: str) -> str:
    if not _RUN_ID.fullmatch(text):
        raise ValueError(f"expected a run id of letters, digits, `-` and `_`, found {text!r}")
    return text


def file_name(text: str) -> str:
    """Return a file name for any text; different texts have different names."""
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text) or "%"


_TRUSTED_SECONDS = 24 * 3600.0
"""How long a claim without a held lock counts as live if its process may exist: some networks lack locks."""

_CLOCK_SLACK_SECONDS = 60.0


@dataclass(frozen=True)
class Claim:
    """This process's claim: its token, the folder of its temporary files, and the held lock."""

    token: str
    folder: Path
    lock: Lock


class Claims:
    """The claims of this process and of the others on one store."""

    def __init__(self, locks: Path, temporary: Path, fs: FileSystem) -> None:
        self._locks = locks
        self._temporary = temporary
        self._fs = fs
        # By process id: a forked child must not release the lock that it inherited.
        self._own: dict[int, Claim] = {}
        self._guard = threading.Lock()

    def own(self) -> Claim:
        """Return this process's claim, made at first use and given back when the process ends.

        Raises `OSError` if the disk refuses.
        """
        pid = os.getpid()
        with self._guard:
            if pid not in self._own:
                self._own[pid] = claim = self._take(pid)
                weakref.finalize(self, _give_back, pid, claim, self._lock_path(claim.token), self._fs)
            return self._own[pid]

    def others(self) -> list[str]:
        """Return the tokens of the other live processes."""
        own = self._own.get(os.getpid())
        return [token for token in self._tokens() if not (own and token == own.token) and self.is_live(token)]

    def others_since(self) -> float:
        """Return when the oldest other live process made its claim; infinity if there is none.

        What was written since may be about to be referenced.
        """
        return min((self._claimed_at(token) for token in self.others()), default=float("inf"))

    def is_live(self, token: str) -> bool:
        """Tell whether the process that made a claim still runs; if in doubt it does."""
        own = self._own.get(os.getpid())
        if own and token == own.token:
            return True
        path = self._lock_path(token)
        if not path.exists():
            return False
        lock = try_lock(path)
        if lock is None:
            return True
        lock.release()
        claimed_at = self._claimed_at(token)
        return time.time() - claimed_at < _TRUSTED_SECONDS and _process_may_exist(token, claimed_at)

    def sweep(self) -> None:
        """Remove what dead processes left: temporary files and claims."""
        for token in sorted({*self._fs.names(self._temporary), *self._tokens()}):
            if not self.is_live(token):
                self._fs.remove(self._temporary / token)
                self._fs.remove(self._lock_path(token))

    def _take(self, pid: int) -> Claim:
        self._fs.make_folder(self._locks)
        lock = None
        while lock is None:
            token = f"{_host()}-{pid}-{os.urandom(4).hex()}"
            lock = try_lock(self._lock_path(token))
        folder = self._temporary / token
        try:
            self._fs.make_folder(folder)
        except OSError:
            lock.release()
            raise
        return Claim(token, folder, lock)

    def _tokens(self) -> list[str]:
        return [name.removesuffix(".lock") for name in self._fs.names(self._locks)]

    def _claimed_at(self, token: str) -> float:
        try:
            return self._fs.stat(self._lock_path(token)).st_mtime
        except OSError:
            return float("inf")

    def _lock_path(self, token: str) -> Path:
        return self._locks / f"{token}.lock"


def _give_back(pid: int, claim: Claim, lock_path: Path, fs: FileSystem) -> None:
    if os.getpid() != pid:
        return
    try:
        fs.remove(claim.folder)
        claim.lock.release()
        fs.remove(lock_path)
    except OSError:  # the next process to open the store sweeps it
        return


def _host() -> str:
    import platform

    return "".join(letter if letter.isalnum() else "_" for letter in platform.node()) or "host"


def _process_may_exist(token: str, claimed_at: float) -> bool:
    host, _, rest = token.partition("-")
    pid = rest.partition("-")[0]
    if host != _host() or not pid.isdigit():
        return True
    import psutil

    try:
        process = psutil.Process(int(pid))
        is_reused = process.create_time() > claimed_at + _CLOCK_SLACK_SECONDS
        return process.status() != psutil.STATUS_ZOMBIE and not is_reused
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True

"""Which processes use the store now: each that writes holds one file lock, its claim.

A claim's token names a folder for the process's temporary files. When the process is gone, whoever opens the
store next removes both."""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from olivelike._files import FileSystem, Lock, try_lock

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

        Raises `OSError` if the disk refuses."""
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

        What was written since may be about to be referenced."""
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

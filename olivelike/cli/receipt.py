"""The receipt of a run that had nothing to do: what it looked at, so that the same command need not look again.

Finding out that nothing is to be done takes a third of a second, nearly all of it imports. What decided the answer
are files and the environment; so the answer holds while each of them is as it was, which is how Git's index and ninja
work. Nothing here knows what a run reads: all that its process opens, lists and asks for is noted. A receipt lies in
the user's cache folder and may vanish at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

_KIND = "receipt/1"
_SETTLED_SECONDS = 2.0
"""A file that changed more recently can change again without a visible change of its times."""
_VALID_SECONDS = 86_400.0
"""After a day the store is told anew what is in use, so that it is not collected."""
_MOST = 64
"""Number of receipts that are kept."""
_VOLATILE = frozenset({"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM", "TERM_SESSION_ID", "WINDOWID"})
"""Variables that say where a command was typed, and nothing about what it does."""

_ASKING_OTHERS = frozenset({"socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.posix_spawn"})
"""Events of asking others, whose answers are in no file."""
_stat, _lstat = os.stat, os.lstat
"""These, which look without being noted."""

_WAYS = ("followed", "unfollowed", "listed", "used")
"""Ways in which a run looks at a path: at what it leads to, at a link itself, into a folder, or to note its use."""

_answers: list[str] = []
"""Answers of this process's runs that had nothing to do."""


def note_answer(told: str) -> None:
    """Note that a run had nothing to do, and what it told; the seconds come behind it."""
    _answers.append(told)


def told_again(arguments: Sequence[str]) -> str | None:
    """Return what a run with these arguments would tell, if all that decided it is as it was; else `None`."""
    try:
        receipt = json.loads(_path(arguments).read_bytes())
        if receipt["kind"] != _KIND or not 0 <= time.time() - receipt["written"] < _VALID_SECONDS:
            return None
        if not _are_now(receipt["states"]):
            return None
        told = receipt["answer"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return told if isinstance(told, str) else None


class Witness:
    """Notes what this process opens, lists and asks for during the block, and whether it writes anything."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, list[int] | None]] = {how: {} for how in _WAYS}
        """By how and where the process looked, the state just before its first look."""
        self._began = 0.0
        self._blind = False
        """Whether something happened that can't be noted, or that is no mere look."""
        self._stat, self._lstat, self._utime = os.stat, os.lstat, os.utime

    def __enter__(self) -> Self:
        self._began = time.time()
        _answers.clear()
        _listen()
        _witnesses.append(self)
        for name, how in (("stat", "followed"), ("lstat", "unfollowed"), ("utime", "used")):
            setattr(os, name, self._noting(getattr(os, name), how))
        return self

    def __exit__(self, *_: object) -> None:
        _witnesses.remove(self)
        os.stat, os.lstat, os.utime = self._stat, self._lstat, self._utime

    def keep(self, arguments: Sequence[str]) -> None:
        """Write the receipt of a run that had nothing to do.

        There is none if something was written, changed since the first look or can't be noted, or if a file was so
        fresh that another change of it could not be told. Windows has looks at files that Python's code does not pass
        through.
        """
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "olivelike" and (file := getattr(module, "__file__", None)):
                self._note("followed", file)
        if not _answers or self._blind or os.name != "posix":
            return
        used = self._seen["used"]
        states = {
            how: {path: seen[path] for path in sorted(seen) if how == "used" or path not in used}
            for how, seen in self._seen.items()
        }
        if not _are_now(states):
            return
        found = [state for how in states if how != "used" for state in states[how].values() if state]
        changes = [change for state in found if len(state) > 4 for change in state[-2:]]
        if max(changes, default=0) / 1e9 > self._began - _SETTLED_SECONDS:
            return
        content = {"kind": _KIND, "written": time.time(), "answer": _answers[-1], "states": states}
        with contextlib.suppress(OSError):
            _write(_path(arguments), json.dumps(content).encode())

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what Python says that it does."""
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._blind = True
            self._note("followed", path)
        elif event in {"os.listdir", "os.scandir"}:
            self._note("listed", arguments[0] if arguments[0] is not None else ".")
        elif event in _ASKING_OTHERS:
            self._blind = True

    def _noting(self, function: Callable[..., Any], how: str) -> Callable[..., Any]:
        def noting(path: Any, *arguments: Any, **options: Any) -> Any:
            follows = options.get("follow_symlinks", True)
            if options.get("dir_fd") is not None:
                self._blind = True
            self._note(how if follows else "unfollowed", path)
            return function(path, *arguments, **options)

        return noting

    def _note(self, how: str, path: Any) -> None:
        if isinstance(path, int):  # A descriptor: its file was noted when it was opened.
            return
        try:
            text = os.path.join(os.getcwd(), os.fspath(path))  # noqa: PTH109, PTH118  (text, and quick)
            if text not in self._seen[how]:
                self._seen[how][text] = _state(how, text)
        except (OSError, TypeError):
            self._blind = True


_witnesses: list[Witness] = []
"""Those within their block."""


@cache
def _listen() -> None:
    """Let Python tell them what it does: once in a process, for what it tells stays to its end."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        for witness in _witnesses:
            witness.hear(event, arguments)

    sys.addaudithook(hear)


def _state(how: str, path: str) -> list[int] | None:
    """Return what a look at a path decides on; of a folder that is not listed, which one it is."""
    try:
        status = _lstat(path) if how == "unfollowed" else _stat(path)
    except (OSError, ValueError):
        return None
    identity = [status.st_dev, status.st_ino, status.st_mode]
    if how == "used":  # An entry of the store: its times say when it was used last.
        return [*identity, status.st_size]
    if how == "listed" or stat.S_ISREG(status.st_mode) or (how == "unfollowed" and stat.S_ISLNK(status.st_mode)):
        return [*identity, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return identity


def _are_now(states: Mapping[str, Mapping[str, list[int] | None]]) -> bool:
    return all(_state(how, path) == state for how, seen in states.items() for path, state in seen.items())


def _path(arguments: Sequence[str]) -> Path:
    """Return where the receipt of a command lies: typed here, in this environment, for this Python."""
    import hashlib

    from platformdirs import user_cache_path

    variables = sorted((name, text) for name, text in os.environ.items() if name not in _VOLATILE)
    python = [sys.executable, sys.version, sys.path]
    place = [os.getcwd(), python, list(arguments), variables]  # noqa: PTH109
    name = hashlib.sha256(json.dumps([_KIND, *place]).encode()).hexdigest()
    return user_cache_path("olivelike", appauthor=False) / "receipts" / f"{name}.json"


def _write(path: Path, data: bytes) -> None:
    from olivelike._files import write_whole

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, data, durable=False)
    newest = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime, reverse=True)
    for old in newest[_MOST:]:
        old.unlink(missing_ok=True)

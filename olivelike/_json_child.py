"""A child process that is told and answers JSON objects, one a line: its parent's end, and its own.

What libraries print in the child goes to its log. When the parent dies, the child's input ends and it exits at once.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from olivelike._untrusted import Json, JsonView

_COLLECTING: Final = (20_000, 20, 20)
"""How often children look for garbage: as imports of libraries make a million objects that stay, Python's 700 takes a
sixth of their time."""
_TAIL: Final = 2000
"""Bytes of a log to look for its last line in."""


class JsonChild:
    """The parent's end of a child, which runs a module that calls `serve`."""

    def __init__(
        self,
        module: str,
        log: Path,
        hear: Callable[[Json], None],
        end: Callable[[int], None],
        folder: Path | None = None,
    ) -> None:
        """Start the child.

        Args:
            module: Its module, run as `python -m`.
            log: Takes what it prints.
            hear: Called with each answer, in a thread.
            end: Called with the exit status when the child has ended, in the same thread, behind the last answer.
            folder: Where it works; by default this process's, or the log's where that is gone: Python starts in none.
        """
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder or _working_folder(log),
                start_new_session=True,
            )
        self._fell_silent = threading.Event()
        self._listen(hear, end)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone; answers of it may still be on their way."""
        # `poll` knows nothing while the thread that reads waits for the process, which has closed its output then.
        return self._process.poll() is not None or self._fell_silent.is_set()

    def send(self, message: JsonView) -> None:
        """Tell the child; of one that has died or was ended, `end` is called and this says nothing."""
        assert self._process.stdin is not None
        data = (json.dumps(message) + "\n").encode()
        with contextlib.suppress(BrokenPipeError, ValueError):  # Its end is closed, or ours by `stop`.
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def stop(self) -> None:
        """End the process, with what it has started, and wait for it."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._close_output()

    def _close_output(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _listen(self, hear: Callable[[Json], None], end: Callable[[int], None]) -> None:
        threading.Thread(target=self._read, args=(hear, end), daemon=True).start()

    def _read(self, hear: Callable[[Json], None], end: Callable[[int], None]) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # Closed by `stop`, or cut off in the middle of a line.
            for line in self._process.stdout:
                hear(json.loads(line))
        self._fell_silent.set()
        end(self._process.wait())


def _working_folder(log: Path) -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return log.parent


def how_it_ended(status: int) -> str:
    """Return an exit status in words: `was killed by SIGKILL, …`, `ended with status 3`."""
    if status >= 0:
        return f"ended with status {status}"
    number = -status
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    lack = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{lack}"


def last_words(status: int, log: Path) -> str:
    """Return an exit status in words, and the last line of what a child has logged, if there is one."""
    ended, words = how_it_ended(status), b""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
        words = file.read()
    lines = words.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return ended if last is None else f"{ended}; its last words: {last}"


def serve(handle: Callable[[Json, Callable[[JsonView], None]], None]) -> NoReturn:
    """Be the child: call `handle` with each message, and with what sends an answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides what Ctrl-C means.
    gc.set_threshold(*_COLLECTING)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Logs are UTF-8, whatever the user's terminal is.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def answer(message: JsonView) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    for line in _messages():
        handle(json.loads(line), answer)
    os._exit(0)


def _messages() -> Iterator[str]:
    """Yield the lines of the child's input; another thread ends the process when that is closed, whatever it does."""
    if hasattr(select, "poll"):
        threading.Thread(target=_end_with_the_parent, daemon=True).start()
        yield from sys.stdin
        return
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_messages, args=(lines,), daemon=True).start()
    while True:
        yield lines.get()


def _end_with_the_parent() -> None:
    closed = select.poll()
    closed.register(0, 0)  # Nothing but that: what comes is read where it is handled, with one thread less to wake.
    closed.poll()
    os._exit(0)


def _read_messages(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)

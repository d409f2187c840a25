"""What becomes of an error or a signal: a message on standard error, and an exit status."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import typer

from olivelike.cli import stdout
from olivelike.errors import Interrupted, OlivelikeError, UsageError

_Mistake: Any = typer.BadParameter.__base__
"""What typer raises for a command line that it can't read; it exports this kind of it alone."""

READER_LEFT = 141
"""Exit status when nobody reads the output any more: what shells give for SIGPIPE."""


@dataclass
class Status:
    """How the process will end."""

    code: int = 0


@contextlib.contextmanager
def exit_status() -> Iterator[Status]:
    """Turn what the block raises into an exit status, and tell the user."""
    status = Status()
    try:
        yield status
    except SystemExit as error:
        status.code = error.code if isinstance(error.code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        status.code = _report(Interrupted("interrupted"))
    except _Mistake as error:
        status.code = _refuse(error)
    except OlivelikeError as error:
        status.code = _report(error)
    except Exception as error:  # noqa: BLE001  (the last handler)
        status.code = 1
        stdout.write_error(
            f"error: {type(error).__name__}: {error}\n"
            f"  this is a bug in olivelike; please report it with the traceback in {_write_log(error)}"
        )


def _refuse(mistake: Any) -> int:
    """Tell what is wrong with a command line; without any argument the help is told."""
    message, context = mistake.format_message(), mistake.ctx
    if context is None:
        return _report(UsageError(message))
    if message == context.get_help():
        stdout.write_error(message)
        return UsageError.exit_code
    return _report(UsageError(f"{message}\n  `{context.command_path} --help` says what it takes"))


def _report(error: OlivelikeError) -> int:
    if stdout.reader_left:
        return READER_LEFT
    stdout.write_error(f"error: {error}")
    return error.exit_code


def _write_log(error: Exception) -> str:
    """Write the traceback to a new file in the system's temporary folder and return its path."""
    import traceback

    number, path = tempfile.mkstemp(prefix="olivelike-", suffix=".log")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"command: {sys.argv}\npython: {sys.version}\nsystem: {platform.platform()}\n\n")
        file.write("".join(traceback.format_exception(error)))
    return path


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` on SIGTERM and its like, so that children are stopped and temp files removed.

    A signal that is ignored, as under `nohup`, stays ignored.
    """
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    changed = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> NoReturn:  # noqa: ARG001  (what `signal` calls it with)
    raise KeyboardInterrupt

"""Writing to standard output and standard error."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from olivelike._untrusted import terminal_text
from olivelike.errors import MissingError, UsageError


class ReaderLeft(KeyboardInterrupt):
    """Nobody reads standard output any more, as after `olivelike plan … | head`.

    To the engine it is an interruption: it stops its children and cleans up.
    """


reader_left = False
"""Whether `ReaderLeft` was raised; it may arrive at the top as another error."""


def write_line(text: str = "") -> None:
    """Write a line to standard output, at once."""
    write(f"{text}\n")


def write_json(value: Any) -> None:
    """Write a JSON value as one line to standard output."""
    write_line(json.dumps(value))


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output, each as soon as it is there."""
    for line in lines:
        write_line(line)


def write_found(
    value: Any, lines: Iterable[str], *, json: bool, add_to_report: Callable[[], Path | None] = lambda: None
) -> None:
    """Write what a command found to standard output, for people or for programs.

    Args:
        value: It as a JSON value; an object, if there is a report.
        add_to_report: Adds it to the report of a run and returns the report's file, if it goes there. Called when
            lines are written, so that they don't depend on it.
    """
    if not json:
        write_lines(lines)
    report = add_to_report()
    if json:
        write_json({**value, "report": str(report)} if report else value)
    elif report:
        write_line(f"report: {report}")


def write_error(text: str) -> None:
    """Write a line to standard error, without what would steer the terminal."""
    try:
        sys.stderr.write(f"{terminal_text(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass  # There is nobody to tell.


def write(text: str) -> None:
    """Write text to standard output, at once, without what would steer the terminal.

    Raises `ReaderLeft` if nobody reads it, and `MissingError` if it can't be written for another reason.
    """
    try:
        sys.stdout.write(terminal_text(text))
        sys.stdout.flush()
    except OSError as error:
        _drop_standard_output()
        # Windows says EINVAL for a closed pipe.
        if error.errno in {errno.EPIPE, errno.EINVAL}:
            global reader_left
            reader_left = True
            raise ReaderLeft from None
        raise MissingError(f"standard output can't be written: {error.strerror}") from error


def write_text(text: str, path: Path | None) -> None:
    """Write text to a file that the user named, or to standard output.

    Raises `UsageError` if the file can't be written.
    """
    if path is None:
        write(text)
        return
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from error


def _drop_standard_output() -> None:
    """Send what is still buffered nowhere: Python would complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def require_writable(path: Path) -> None:
    """Check that a file can be written. Raises `UsageError` if it is a folder, lies in none, or may not be written."""
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path}: is a folder, or lies in none; name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: may not be written")

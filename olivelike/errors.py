"""Every error that olivelike raises on purpose.

OlivelikeError                     1  a bug
├── UsageError                     2  wrong command line, or a wrong option value
│   └── WorkflowError              2  the workflow file; carries every finding with its position
├── MissingError                   3  something that is needed is not there
│   ├── SourceError                3  a source folder, hub id, checkpoint file or tensor
│   ├── SessionError               3  a network can't be opened or run here: provider, device, memory, options
│   ├── PluginError                3  a plugin or pass that can't be loaded
│   └── StoreError                 3  the store can't be read or written (full, read-only, busy)
│       ├── DamagedError           3  an object was damaged; it is set aside, and a rerun remakes it
│       └── UnreachableError       3  a shared store does not answer, or refuses
├── PassError                      4  a pass failed, was killed, or broke its promise
├── VerificationError              5  the result does not match the original model
├── SafetyError                    6  every attempt was flagged by the safety checker
└── Interrupted                  130  cancelled by the user

A message says what, where, why, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class OlivelikeError(Exception):
    """Root of all errors; `exit_code` is the status of the command line."""

    exit_code: ClassVar[int] = 1
    word: ClassVar[str] = "olivelike"
    """The kind's name where processes exchange errors as text: `SourceError` is `source`."""

    def __init_subclass__(cls) -> None:
        """Give each kind its word."""
        cls.word = cls.__name__.removesuffix("Error").lower()


class UsageError(OlivelikeError):
    """A command-line argument or option value is wrong."""

    exit_code = 2


class WorkflowError(UsageError):
    """A workflow file is wrong; the message lists each finding with file, line and column."""

    def __init__(self, *findings: str) -> None:
        """Take each finding, with its place."""
        super().__init__("\n".join(findings))
        self.findings = findings


class MissingError(OlivelikeError):
    """Something that the run needs is not there."""

    exit_code = 3


class SourceError(MissingError):
    """A source is absent, incomplete, damaged, or does not match its config."""


class SessionError(MissingError):
    """A network can't be opened or run on this machine as asked."""


class PluginError(MissingError):
    """A plugin or pass can't be loaded."""


class StoreError(MissingError):
    """The store can't be read or written."""


class DamagedError(StoreError):
    """A stored object was damaged or lost; it is set aside, so that a rerun remakes it."""


class UnreachableError(StoreError):
    """A shared store does not answer, refuses, or breaks off; the local one is as it was."""


class PassError(OlivelikeError):
    """A pass failed, was killed, or changed what it did not declare."""

    exit_code = 4


class VerificationError(OlivelikeError):
    """A result is further from the original model than allowed."""

    exit_code = 5

    def __init__(self, message: str, facts: Mapping[str, Any] | None = None) -> None:
        """Take the message, and the figures for the run record."""
        super().__init__(message)
        self.facts: Mapping[str, Any] = facts or {}


class SafetyError(OlivelikeError):
    """No picture passed the safety checker within the allowed attempts."""

    exit_code = 6


class Interrupted(OlivelikeError):  # noqa: N818  (named after the event, as KeyboardInterrupt is)
    """The user cancelled the run."""

    exit_code = 130


def error_of(word: str) -> type[OlivelikeError]:
    """Return the kind of error that has this `word`; of one that is not known, `PassError`."""
    return next((kind for kind in _kinds(OlivelikeError) if kind.word == word), PassError)


def _kinds(root: type[OlivelikeError]) -> Iterator[type[OlivelikeError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from _kinds(kind)

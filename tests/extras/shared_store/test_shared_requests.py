"""Requests end: they are repeated where that helps, and given up in time."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from olivelike.errors import UnreachableError
from olivelike.extras.shared_store import requests
from olivelike.extras.shared_store.address import parse_address
from olivelike.extras.shared_store.requests import LateError, ask

ADDRESS = parse_address("https://user:secret@host/x?timeout=600", "here")
HASTY = parse_address("https://user:secret@host/x?timeout=0.3", "here")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(requests, "_PAUSES", (0.01, 0.01, 0.01))


def failing(errors):
    """Return a call that raises one error after another, then returns, and the times that it was made."""
    made = []

    def call(_):
        made.append(1)
        if len(made) <= len(errors):
            raise errors[len(made) - 1]
        return "answer"

    return call, made


def test_what_may_pass_is_repeated():
    call, made = failing([OSError("busy"), ConnectionError("reset")])
    assert ask(ADDRESS, "read", call) == "answer"
    assert len(made) == 3


def test_what_does_not_pass_is_told_without_secrets():
    call, made = failing([OSError("no route to https://user:secret@host\x1b[2J")] * 9)
    with pytest.raises(UnreachableError, match="could not read https://host/x: OSError: no route to") as failed:
        ask(ADDRESS, "read", call)
    assert len(made) == 4
    assert "secret" not in str(failed.value)
    assert "\x1b" not in str(failed.value)


@pytest.mark.parametrize(
    "error", [PermissionError("no"), ValueError("bad"), type("NoCredentialsError", (Exception,), {})()]
)
def test_what_would_be_the_same_is_not_repeated(error):
    call, made = failing([error] * 9)
    with pytest.raises(UnreachableError):
        ask(ADDRESS, "read", call)
    assert len(made) == 1


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_answers_are_no_failures(error):
    with pytest.raises(error):
        ask(ADDRESS, "read", failing([error()])[0])


def test_silence_ends_and_progress_does_not(monkeypatch):
    nobody_waits = threading.Event()
    with pytest.raises(UnreachableError, match="no answer in time"):
        ask(HASTY, "read", lambda _: nobody_waits.wait(60))
    nobody_waits.set()
    now = [0.0]
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def trickle(pulse):
        for _ in range(6):
            now[0] += 0.2
            time.sleep(requests._POLL_SECONDS)  # It is looked at meanwhile.
            pulse.beat()
        return "answer"

    assert ask(HASTY, "read", trickle) == "answer"


def test_nobody_waits_beyond_the_end_nor_after_a_stop():
    def trickle(pulse):
        while True:
            time.sleep(0.05)
            pulse.beat()

    with pytest.raises(LateError, match="takes too long"):
        ask(ADDRESS, "read", trickle, ends=time.monotonic() + 0.2)
    stopped = threading.Event()
    threading.Timer(0.2, stopped.set).start()
    with pytest.raises(LateError):
        ask(ADDRESS, "read", trickle, stopped=stopped)

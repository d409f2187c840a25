"""Ending an engine's call from another thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from small_networks import write_network

from olivelike.errors import Interrupted
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import ENGINE_CALLS
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider

STEPS = 400
LONG = (
    '<ir_version: 8, opset_import: ["": 17]>\nlong (float[n, n] x0) => (float[n, n] y) {\n'
    + "".join(f"  x{n + 1} = MatMul(x{n}, x0)\n" for n in range(STEPS))
    + f"  y = Identity(x{STEPS})\n}}\n"
)
"""Takes many seconds for an input of 1024 by 1024; each operator takes milliseconds."""


@pytest.fixture(params=["cpu", "openvino"])
def opened(tmp_path, request):
    settings = SessionSettings((parse_provider(request.param),), intra_threads=1)
    return open_session(write_network(tmp_path / "long", LONG), settings)


def bind(session):
    x = np.eye(1024, dtype=np.float32)
    return session.bind({"x0": x}, {"y": np.empty_like(x)})


def test_a_call_that_is_told_to_end_raises_that_it_was_interrupted(opened):
    with ENGINE_CALLS.watch():
        call = bind(opened)
        timer = threading.Timer(0.3, ENGINE_CALLS.end)
        timer.start()
        with pytest.raises(Interrupted, match="long: interrupted while it ran"):
            call.run()
        timer.join()
        assert not ENGINE_CALLS.any


def test_nothing_is_in_progress_between_calls():
    with ENGINE_CALLS.watch():
        ended = []
        with ENGINE_CALLS.in_progress(lambda: ended.append(1)):
            assert ENGINE_CALLS.any
            ENGINE_CALLS.end()
        ENGINE_CALLS.end()
        assert (ended, ENGINE_CALLS.any) == ([1], False)
        with ENGINE_CALLS.in_progress(lambda: ended.append(2)):  # It began when the end was asked for already.
            assert ended == [1, 2]
    assert not ENGINE_CALLS.watched

"""Previews are made beside the steps that follow, and are over when the picture is told."""

from __future__ import annotations

import threading

import pytest
from PIL import Image

from olivelike.errors import SessionError
from olivelike.runtime.jobs.job_drawing import StepDone
from olivelike.serve.drawing.previews import Previews


def images():
    return [Image.new("RGB", (8, 8), "teal")]


def step(number, show=images):
    return StepDone(step=number, steps=9, batch=1, batches=1, prompts=("a red circle",), images=show)


@pytest.fixture
def told():
    return []


@pytest.fixture
def previews(told):
    previews = Previews(told.append)
    yield previews
    previews.close()


def test_a_preview_that_takes_long_is_told_with_the_step_that_is_done_by_then(previews, told):
    may_go_on, threads = threading.Event(), []

    def slow():
        threads.append(threading.current_thread())
        may_go_on.wait(60)
        return images()

    for number in (1, 2, 3):
        previews.follow(step(number, slow), wanted=True, beside=True)
    may_go_on.set()
    previews._made.result(60)
    (event,) = told
    assert (event.step, event.prompts) == (3, ())
    assert event.preview.startswith("data:image/webp;base64,")
    assert threads[0] is not threading.current_thread()
    assert len(threads) == 1, "one at a time"


def test_none_is_told_once_the_picture_is_there(previews, told):
    previews.follow(step(1, lambda: previews.hide() or images()), wanted=True, beside=True)
    previews._made.result(60)
    assert told == []


def test_networks_that_run_beside_no_others_run_in_the_thread_that_draws(previews):
    threads = []
    previews.follow(step(1, lambda: threads.append(threading.current_thread()) or images()), wanted=True, beside=False)
    assert threads == [threading.current_thread()]


def test_what_a_preview_fails_with_is_raised_by_the_next_step(previews):
    def fail():
        raise SessionError("the weights are no numbers")

    previews.follow(step(1, fail), wanted=True, beside=True)
    previews._made.exception(60)
    with pytest.raises(SessionError, match="no numbers"):
        previews.follow(step(2), wanted=True, beside=True)


def test_none_is_made_that_nobody_looks_at_nor_of_the_last_step(previews):
    previews.follow(step(1), wanted=False, beside=True)
    previews.follow(step(9), wanted=True, beside=True)
    assert previews._made is None

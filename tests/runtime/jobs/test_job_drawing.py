"""Order of a drawing: what is there is not drawn again, a skip ends a batch, a stop ends all."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from olivelike.errors import Interrupted
from olivelike.runtime.jobs import job_drawing
from olivelike.runtime.jobs.job_drawing import BatchDone, JobDrawing, Opened, Opening, StepDone
from olivelike.runtime.jobs.job_plan import Job
from olivelike.runtime.pictures import PictureRecord
from olivelike.runtime.pipeline.request import Batch, Picture, ResolvedRequest


def job(prompts: str, first: int, *, batch_size: int = 1) -> Job:
    seeds = tuple(range(first, first + len(prompts)))
    request = ResolvedRequest(
        prompts=tuple(prompts), seeds=seeds, seed=first, size=(8, 8), batch_size=batch_size, steps=2
    )
    return Job(Path("models/demo"), request, dict(zip(prompts, prompts, strict=True)), (), PictureRecord("a"), seeds)


class Host:
    """Keeps the numbers of what is drawn, by a pipeline that draws nothing."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.events: list[Any] = []
        self.drawn: list[str] = []
        self.when: dict[str, Any] = {}
        """What is done as a batch with a prompt begins."""

    def pipeline_for(self, _: Job, on_opening: Any) -> Any:
        if not self.events:
            on_opening()
        return SimpleNamespace(provider="CPU", checks_safety=False, batches=self.batches)

    def batches(self, request: ResolvedRequest, *, on_step: Any, cancel: Any) -> Any:
        pairs, size = request.seeded_prompts, request.batch_size
        for first in range(0, len(pairs), size):
            batch = pairs[first : first + size]
            self.when.get(batch[0][0], lambda: None)()
            if cancel.is_set():
                raise Interrupted("stopped")
            self.drawn += [prompt for prompt, _ in batch]
            pictures = [Picture(Image.new("RGB", (8, 8)), prompt, seed, seed, None) for prompt, seed in batch]
            yield Batch(1, 1, tuple(pictures), 0.1, "DDIM")

    def keep(self, number: int, picture: Picture, record: PictureRecord) -> None:
        assert (record.seed, record.prompt, record.provider) == (picture.seed, picture.prompt, "CPU")
        self.kept.append(number)

    def keep_sheet(self) -> None:
        self.events.append("sheet")

    def tell(self, event: Any) -> None:
        self.events.append(event)


def test_what_is_there_is_drawn_only_where_its_batch_lacks_another():
    host = Host()
    JobDrawing(host, safety=False, there=[0, 1, 2, 5]).draw([job("abcd", 0, batch_size=2), job("ef", 4), job("g", 6)])
    assert ("".join(host.drawn), host.kept) == ("cdefg", [3, 4, 6])
    assert [event.batch for event in host.events if isinstance(event, BatchDone)] == [2, 3, 4, 5]
    assert [type(event) for event in host.events[:2]] == [Opening, Opened]
    assert (host.events[1].pictures, host.events[-1]) == (7, "sheet")


def test_a_skip_ends_its_batch_alone_also_between_two_jobs():
    host = Host()
    drawing = JobDrawing(host, safety=False)
    host.when["b"] = lambda: drawing.stop(skip=True)
    keep = host.keep

    def keep_and_skip(number: int, *more: Any) -> None:
        keep(number, *more)
        if number == 2:
            drawing.stop(skip=True)

    host.keep = keep_and_skip
    drawing.draw([job("abc", 0), job("de", 3)])
    assert (host.drawn, host.kept) == (["a", "c", "e"], [0, 2, 4])


def test_the_time_that_is_left_is_that_of_steps_that_ran(monkeypatch):
    clock, host = [100.0], Host()
    monkeypatch.setattr(job_drawing.time, "monotonic", lambda: clock[0])
    drawing, plain = JobDrawing(host, safety=False, there=[0, 1]), host.batches

    def batches(request: ResolvedRequest, *, on_step: Any, cancel: Any) -> Any:
        for place, batch in enumerate(plain(request, on_step=on_step, cancel=cancel)):
            for number in (1, 2):
                clock[0] += 10.0
                if cancel.is_set():
                    raise Interrupted("skipped")
                preview = SimpleNamespace(show=None)
                on_step(SimpleNamespace(number=number, total=2, attempt=1, timestep=0, batch=place, preview=preview))
                if batch.pictures[0].prompt == "d" and number == 1:
                    drawing.stop(skip=True)
            yield batch

    host.batches = batches
    drawing.draw([job("abcdef", 0)])
    steps = [event for event in host.events if isinstance(event, StepDone)]
    assert [one.done for one in steps] == [5, 6, 7, 9, 10, 11, 12]
    # The second step of d had begun as it was skipped, and its time is one of those that ran.
    assert [one.eta for one in steps] == [70.0, 60.0, 50.0, 37.5, 24.0, 11.67, 0.0]


def test_a_stop_ends_what_is_drawn():
    host = Host()
    drawing = JobDrawing(host, safety=False)
    host.when["b"] = lambda: drawing.stop(skip=False)
    with pytest.raises(Interrupted):
        drawing.draw([job("abc", 0), job("d", 3)])
    assert (host.kept, "sheet" in host.events) == ([0], False)
    drawing.stop(skip=True)  # Too late, and no less of a stop.
    with pytest.raises(Interrupted, match="between two batches"):
        drawing.draw([job("d", 3)])


def test_a_stop_before_or_behind_a_drawing_ends_no_call_of_others():
    drawing = JobDrawing(Host(), safety=False)
    before = set(threading.enumerate())
    drawing.stop(skip=False)
    assert set(threading.enumerate()) <= before
    host = Host()
    drawing = JobDrawing(host, safety=False)
    host.when["b"] = lambda: drawing.stop(skip=False)
    with pytest.raises(Interrupted):
        drawing.draw([job("ab", 0)])
    assert set(threading.enumerate()) <= before

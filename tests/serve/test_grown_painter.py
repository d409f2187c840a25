"""A process that draws and holds far more memory than what it has open is begun anew between jobs."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace

from olivelike.serve.drawing import painter, painting
from olivelike.serve.drawing.painter import Painter
from olivelike.serve.drawing.painting import DrawMessage, OrderDrawing, Painting
from tests.fixtures.set_forward import SetForward

SETTINGS = {
    "uploads": "uploads", "loras": [], "wildcards": [], "upscalers": [], "allow_pickle": False, "metadata": True,
    "signing": [],
    "sessions": {},
    "memory_limit": 1 << 30,
}  # fmt: skip


def test_a_grown_child_gives_way_to_another_and_what_was_asked_of_it_is_asked_again(tmp_path, monkeypatch):
    children = []

    class Child:
        pid = 1

        def __init__(self, _module, _log, hear, _end):
            self.hear, self.told, self.stopped = hear, [], False
            children.append(self)

        def send(self, message):
            self.told.append(message)
            if message.get("do") == "draw":
                self.hear({"answer": "picture", "job": "a"})
                self.hear({"answer": "done", "job": "a", "folders": ["demo"], "grown": len(children) == 1})
            elif message.get("do") == "plan" and len(children) > 1:
                self.hear({"answer": "told", "number": message["number"], "value": {"pictures": 1}})

        def stop(self):
            self.stopped = True

    monkeypatch.setattr(painter, "LoopChild", Child)

    async def run():
        one = Painter({}, tmp_path / "log", lambda _: None)
        asked = asyncio.create_task(one.plan(job="b"))
        await asyncio.sleep(0)
        one.begin({"job": "a"})
        first = [answer async for answer in one.draw()]
        one.begin({"job": "a"})
        second = [answer async for answer in one.draw()]
        return first, second, await asked

    first, second, planned = asyncio.run(run())
    assert [answer["answer"] for answer in first] == ["picture", "done"]
    assert (first[-1]["folders"], second[-1]["folders"]) == ([], ["demo"])
    assert [child.stopped for child in children] == [True, False]
    assert planned == {"pictures": 1}


def test_a_job_whose_client_leaves_while_it_is_planned_is_ended(tmp_path, monkeypatch):
    told = []
    child = SimpleNamespace(pid=1, send=told.append, stop=lambda: told.append({"do": "stop"}))
    monkeypatch.setattr(painter, "LoopChild", lambda *_: child)

    async def run():
        asked = asyncio.create_task(Painter({}, tmp_path / "log", lambda _: None).plan_and_draw({"job": "a"}))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(run())
    assert [(message["do"], message.get("job")) for message in told[-2:]] == [("plan", None), ("cancel", "a")]


def test_a_child_that_does_not_answer_is_ended_and_another_is_asked(tmp_path, monkeypatch):
    children = []

    class Child:
        pid = 1

        def __init__(self, _module, _log, hear, _end):
            self.hear, self.stopped = hear, False
            children.append(self)

        def send(self, message):
            loop = asyncio.get_running_loop()
            if message.get("do") == "plan" and len(children) == 1:
                loop.call_soon(lambda: setattr(loop, "ahead", painter._PATIENCE + 1))  # Once it is waited for.
            elif message.get("do") == "plan":
                self.hear({"answer": "told", "number": message["number"], "value": {"pictures": 1}})

        def stop(self):
            self.stopped = True

    monkeypatch.setattr(painter, "LoopChild", Child)
    with asyncio.Runner(loop_factory=SetForward) as runner:
        one = Painter({}, tmp_path / "log", lambda _: None)
        assert runner.run(one.plan(job="a")) == {"pictures": 1}
    assert [child.stopped for child in children] == [True, False]


def test_a_child_has_grown_when_it_has_far_more_than_its_libraries_and_open_folders(monkeypatch):
    answers, memory = [], [300 << 20]
    monkeypatch.setattr(painting, "_memory", lambda: memory[0])
    child = Painting(SETTINGS, answers.append)
    job = object.__new__(OrderDrawing)
    job.message = SimpleNamespace(job="a")
    for memory[0] in (1900 << 20, 2000 << 20):
        child._end(job, "done")
    assert [answer["grown"] for answer in answers] == [False, True]


def test_an_order_that_was_drawn_is_freed_without_a_search_for_garbage():
    message = DrawMessage("a", {}, {}, "gallery", "day", 1, {}, [], safety=False)
    gc.disable()
    try:
        drawing = weakref.ref(OrderDrawing(message, SimpleNamespace(tell_of=print), is_kept=True))
        assert drawing() is None, "it waits for the collector, and pictures' memory grows meanwhile"
    finally:
        gc.enable()

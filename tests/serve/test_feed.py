from __future__ import annotations

import asyncio

from olivelike.serve import feed as module
from olivelike.serve.api import native
from olivelike.serve.feed import Feed


def step(number, **more):
    return {"type": "step", "job": "a", "step": number, **more}


async def told(listener):
    return [event async for event in listener.events()]


def test_a_listener_gets_its_job_alone_and_all_of_it_but_steps_that_it_was_too_slow_for():
    async def play():
        feed = Feed()
        with feed.listening("a") as one, feed.listening() as everything:
            for event in (
                {"type": "started", "job": "a"}, step(1), step(2), {"type": "picture", "job": "a"}, step(3),
                {"type": "done", "job": "a"}, {"type": "started", "job": "b"},
            ):  # fmt: skip
                feed.publish(event)
            feed.close()
            return await told(one), await told(everything)

    one, everything = asyncio.run(play())
    assert [(event["type"], event.get("step")) for event in one] == [
        ("started", None), ("step", 2), ("picture", None), ("step", 3), ("done", None),
    ]  # fmt: skip
    assert [event["job"] for event in everything] == ["a"] * 5 + ["b"]


def test_previews_go_to_those_who_want_them_and_stay_until_the_next():
    async def play():
        feed = Feed()
        with feed.listening(previews=True) as looking, feed.listening() as blind:
            assert feed.shows_previews
            feed.publish(step(1, preview="data:1"))
            feed.publish(step(2))
            feed.close()
            return await told(looking), await told(blind)

    looking, blind = asyncio.run(play())
    assert [(event["step"], event.get("preview")) for event in looking] == [(2, "data:1")]
    assert [(event["step"], event.get("preview")) for event in blind] == [(2, None)]


def test_who_listens_after_the_end_comes_to_the_end_at_once():
    async def play():
        feed = Feed()
        feed.close()
        with feed.listening() as late:
            return await asyncio.wait_for(told(late), 1)

    assert asyncio.run(play()) == []


def test_a_listener_that_reads_nothing_takes_no_memory_without_end(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 10)

    async def play():
        feed = Feed()
        with feed.listening() as asleep:
            for number in range(50):
                feed.publish({"type": "picture", "job": "a", "number": number})
            return await told(asleep)

    assert len(asyncio.run(play())) == 11


def test_a_stream_says_that_it_listens_and_that_it_is_still_there(monkeypatch):
    monkeypatch.setattr(native, "_SILENCE", 0.01)
    sent, listens = [], []

    async def events():
        listens.append(True)
        await asyncio.sleep(0.1)
        yield {"type": "done"}

    async def send(message):
        sent.append(message.get("body", b"").decode() or message["type"])
        assert listens or not message.get("body")

    asyncio.run(native.events_of(events()).stream_response(send))
    assert sent[:3] == ["http.response.start", ": here\n\n", ": still here\n\n"]
    assert sent[-2:] == ['event: done\ndata: {"type": "done"}\n\n', "http.response.body"]

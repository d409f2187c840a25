from __future__ import annotations

import random
from types import SimpleNamespace

from olivelike.serve.drawing.dispatch import Dispatcher
from olivelike.serve.drawing.waiting import FairQueue
from olivelike.serve.gallery.journal import JobRow, Journal


def drained(queue):
    found = []
    while (job := queue.pop()) is not None:
        found.append(job)
    return found


def test_clients_take_turns_and_each_ones_jobs_stay_in_order():
    queue = FairQueue()
    for job in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.push(job, job[0])
    expected = ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert queue.order() == expected
    assert len(queue) == 6
    assert [queue.first_of(client) for client in "abd"] == ["a1", "b1", None]
    assert drained(queue) == expected


def test_who_comes_later_waits_one_job_of_each_at_most():
    queue = FairQueue()
    for number in range(50):
        queue.push(f"greedy{number}", "greedy")
    assert queue.pop() == "greedy0"
    queue.push("polite", "polite")
    assert queue.order()[:2] == ["greedy1", "polite"]


def test_what_was_begun_goes_before_all_others():
    queue = FairQueue()
    queue.push("a", "a")
    queue.push_front("begun")
    assert queue.order() == ["begun", "a"]
    assert drained(queue) == ["begun", "a"]


def test_jobs_are_taken_out_wherever_they_stand():
    queue = FairQueue()
    for job in ("a1", "a2", "b1"):
        queue.push(job, job[0])
    queue.push_front("begun")
    assert queue.remove("a1")
    assert queue.remove("b1")
    assert queue.remove("begun")
    assert not queue.remove("a1")
    assert drained(queue) == ["a2"]
    assert queue.pop() is None


def test_the_order_that_is_told_is_the_order_that_comes():
    queue = FairQueue()
    for number in range(40):
        queue.push(f"{number}", f"client {number * 7 % 5}")
    for _ in range(40):
        first = queue.order()[0]
        assert queue.pop() == first


def test_a_job_is_moved_among_those_of_its_client():
    queue = FairQueue()
    for job in ("a1", "a2", "a3", "b1"):
        queue.push(job, job[0])
    queue.push_front("begun")
    assert queue.move("a3", -1)
    assert queue.order() == ["begun", "a1", "b1", "a3", "a2"]
    assert queue.move("a1", 99)
    assert queue.move("a2", -99)
    assert queue.order() == ["begun", "a2", "b1", "a3", "a1"]
    assert queue.move("begun", 1)
    assert not queue.move("gone", 1)
    assert queue.order()[0] == "begun"


def dispatcher(journal, queue):
    """Return one that has a queue and a journal, and draws nothing."""
    found = Dispatcher.__new__(Dispatcher)
    found.waiting, found._journal, found._feed = queue, journal, SimpleNamespace(publish=lambda _: None)
    found.counts, found.running, found._ahead = {"cancelled": 0}, {}, None
    return found


def test_a_queue_goes_on_in_the_order_in_which_it_was_killed(tmp_path):
    source, journal, queue = random.Random(7), Journal(tmp_path / "jobs.sqlite"), FairQueue()
    ours = dispatcher(journal, queue)
    for number in range(120):
        job, client = f"job {number}", source.choice("abc")
        journal.add(JobRow(job, "pictures", client, "queued", number, {}, {}))
        queue.push(job, client)
        match source.randrange(4):
            case 0 if (first := queue.pop()) is not None:
                journal.update(first, state="drawing", started=float(number))
                ours._keep_order()
                journal.end(first, "done")
            case 1:
                assert ours.move(source.choice(queue.order()), source.choice((-2, -1, 1)))
            case 2:
                assert ours.cancel(source.choice(queue.order()))
        again = FairQueue((row.id, None if row.started else row.client) for row in journal.unfinished())
        assert again.order() == queue.order()
    begun = queue.pop()
    journal.update(begun, state="drawing", started=1.0)
    ours._keep_order()
    assert [row.id for row in journal.unfinished()] == [begun, *queue.order()]
    journal._database.execute("UPDATE waiting SET jobs = '[1, {'")
    assert {row.id for row in journal.unfinished()} == {begun, *queue.order()}
    journal.close()

from __future__ import annotations

import pytest

from olivelike.measure.profiling import _run, summarise
from olivelike.measure.result_rows import NetworkProfile


def run(begin: int, *kernels: tuple[str, str, int]) -> list[dict]:
    return [
        {
            "cat": "Node",
            "name": f"node{place}_kernel_time",
            "ts": begin + place,
            "dur": duration,
            "args": {"op_name": operator, "provider": f"{provider}ExecutionProvider"},
        }
        for place, (operator, provider, duration) in enumerate(kernels)
    ] + [{"cat": "Session", "name": "model_run", "ts": begin - 1, "dur": sum(k[2] for k in kernels) + 100}]


def test_operators_are_added_up_by_type_and_provider_without_the_warm_up():
    events = [
        *run(1000, ("Conv", "CUDA", 99_000), ("MatMul", "CPU", 99_000)),
        *run(300_000, ("Conv", "CUDA", 20_000), ("Conv", "CUDA", 4000), ("MatMul", "CPU", 1000)),
        *run(400_000, ("Conv", "CUDA", 5000), ("Conv", "CUDA", 3000), ("MatMul", "CPU", 2000)),
        *run(500_000, ("Conv", "CUDA", 1000), ("Conv", "CUDA", 2000), ("MatMul", "CPU", 3000)),
    ]
    seconds, (first, second) = summarise(events)
    assert seconds == pytest.approx([0.0251, 0.0101, 0.0061])
    assert (first.operator, first.provider, first.nodes, first.milliseconds) == ("Conv", "CUDA", 2, 8.0)
    assert (second.operator, second.provider, second.nodes, second.milliseconds) == ("MatMul", "CPU", 1, 2.0)
    assert first.share == pytest.approx(0.8)


def test_a_node_that_other_work_held_up_in_one_run_decides_nothing():
    """Each run has another node that was stalled, so that no whole run is a fair one."""
    kernels = ("Conv", "CPU", 3000), ("MatMul", "CPU", 2000), ("Shape", "CPU", 1)
    runs = []
    for stalled in range(3):
        here = [(op, where, 40_000 if place == stalled else took) for place, (op, where, took) in enumerate(kernels)]
        runs += run(1_000_000 * (stalled + 1), *here)
    seconds, operators = summarise([*run(0, *kernels), *runs])
    assert len(seconds) == 3
    assert [(one.operator, one.milliseconds) for one in operators] == [("Conv", 3.0), ("MatMul", 2.0), ("Shape", 0.001)]


def test_nodes_that_run_more_than_once_in_a_run_are_counted_as_often():
    events = []
    for begin in (0, 100_000, 200_000):
        again = run(begin, ("Add", "CPU", 10), ("Add", "CPU", 30))
        again[1]["name"] = again[0]["name"]
        events += again
    (add,) = summarise(events)[1]
    assert (add.nodes, add.milliseconds) == (2, 0.04)


def test_head_and_rows_agree_with_what_lies_between_the_nodes():
    operators = summarise([*run(0, ("Add", "CPU", 1000)), *run(100_000, ("Add", "CPU", 1000))])[1]
    network = NetworkProfile("unet", {}, 1.1, operators, 1)
    assert network.between_nodes == pytest.approx(0.1)
    assert NetworkProfile("unet", {}, 0.5, operators, 1).between_nodes == 0


@pytest.mark.parametrize(("asked", "times"), [(None, 50), (1, 1), (60, 60)])
def test_quick_networks_run_more_often_unless_a_number_is_asked_for(asked, times):
    done: list[int] = []
    _run(lambda: done.append(1), asked)
    assert len(done) == times


def test_slow_networks_run_three_times(monkeypatch):
    monkeypatch.setattr("olivelike.measure.profiling._ENOUGH_SECONDS", 0.0)
    done: list[int] = []
    _run(lambda: done.append(1), None)
    assert len(done) == 3

from __future__ import annotations

import pytest

from olivelike.measure.profile import summarise


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


def test_operators_are_added_up_by_type_and_provider_in_the_median_run_without_the_warm_up():
    events = [
        *run(1000, ("Conv", "CUDA", 99_000), ("MatMul", "CPU", 99_000)),
        *run(300_000, ("Conv", "CUDA", 20_000), ("Conv", "CUDA", 4000), ("MatMul", "CPU", 1000)),
        *run(400_000, ("Conv", "CUDA", 5000), ("Conv", "CUDA", 3000), ("MatMul", "CPU", 2000)),
        *run(500_000, ("Conv", "CUDA", 1000), ("Conv", "CUDA", 2000), ("MatMul", "CPU", 3000)),
    ]
    milliseconds, (first, second) = summarise(events)
    assert milliseconds == pytest.approx(10.1)
    assert (first.operator, first.provider, first.nodes, first.milliseconds) == ("Conv", "CUDA", 2, 8.0)
    assert (second.operator, second.provider, second.nodes, second.milliseconds) == ("MatMul", "CPU", 1, 2.0)
    assert first.share == pytest.approx(0.8)

"""Reading the profiles that ONNX Runtime writes: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from olivelike.measure.profile.profile_result import OperatorTime

if TYPE_CHECKING:
    from collections.abc import Sequence

_KERNEL: Final = "_kernel_time"
_RUN: Final = "model_run"


def summarise(events: Sequence[dict[str, Any]], warm_up: int = 1) -> tuple[float, tuple[OperatorTime, ...]]:
    """Return the milliseconds of the run of median duration, and what each operator type takes of them.

    Args:
        events: The profile: one `model_run` per run and one `…_kernel_time` per node, with microseconds in `ts`, when
            it began, and `dur`.
        warm_up: How many runs at the beginning don't count.
    """
    runs = sorted((event for event in events if event["name"] == _RUN), key=lambda event: event["ts"])
    measured = sorted(runs[warm_up:], key=lambda run: run["dur"])
    median = measured[(len(measured) - 1) // 2]
    begin, end = median["ts"], median["ts"] + median["dur"]
    times: dict[tuple[str, str], float] = defaultdict(float)
    nodes: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL) and begin <= event["ts"] <= end:
            arguments = event["args"]
            place = arguments["op_name"], arguments["provider"].removesuffix("ExecutionProvider")
            times[place] += event["dur"]
            nodes[place] += 1
    total = sum(times.values())
    operators = [
        OperatorTime(*place, nodes[place], time / 1000, time / total if total else 0.0)
        for place, time in times.items()
    ]
    operators.sort(key=lambda found: (-found.milliseconds, found.operator, found.provider))
    return median["dur"] / 1000, tuple(operators)

"""Steps that cost less: which have guidance, and whether its two halves run in one call of the UNet or in two."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import file_identity, write_whole
from olivelike._untrusted import Json, read_json
from olivelike.errors import UsageError

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request


def runs_whole(step: int, steps: int, interval: int) -> bool:
    """Tell whether a step runs the whole UNet: the first tenth of them, which decide most, then each `interval`-th."""
    first = steps // 10
    return step <= first or (step - first) % interval == 0


def check_cheap_steps(request: Request, folder: PipelineFolder) -> None:
    """Check how steps are to be made cheaper.

    Raises `UsageError` for a value that can't be had, and `SourceError` if the folder lacks the shallow graph.
    """
    steps = int(request.steps * (request.strength or 1.0)) if request.init_image is not None else request.steps
    if request.cache_interval > max(steps, 1):
        raise UsageError(
            f"cache_interval {request.cache_interval} is beyond the {steps} steps, so that only the first would be "
            f"whole; take at most {max(steps, 1)}, or drop it"
        )
    if request.cache_interval > 1:
        folder.shallow_denoiser()
        if request.guidance_calls == "faster":
            raise UsageError(
                "guidance_calls faster tries both ways in whole steps, which cache_interval leaves out; find out once "
                "without it, or say one or two"
            )
    interval = request.guidance_interval
    if interval is None:
        return
    if not 0 <= interval[0] < interval[1] <= 1:
        raise UsageError(
            f"guidance_interval {interval[0]:g}:{interval[1]:g} is not from a share of the steps to a larger one, both "
            "between 0 and 1, such as 0.2:0.8"
        )
    if not request.guided or folder.takes_guidance:
        raise UsageError(
            "guidance_interval is given, and there is no guidance that runs in steps of its own; drop it, or take a "
            "guidance scale above 1 if the model has one"
        )
    if not guided_steps(interval, steps):
        raise UsageError(
            f"guidance_interval {interval[0]:g}:{interval[1]:g} holds none of the {steps} steps; take a wider one, or "
            "guidance scale 1 for none at all"
        )


def guided_steps(interval: tuple[float, float] | None, steps: int) -> range:
    """Return the steps, counted from 0, that begin within an interval of shares; `None` is all of them."""
    if interval is None:
        return range(steps)
    first, end = (math.ceil(round(share * steps, 6)) for share in interval)
    return range(first, end)


_TRIALS: Final = 3
"""Tries of each way; the first of each makes buffers and does not count."""


class GuidanceCalls:
    """Whether both halves of guidance run in one call of the UNet; tried out in a picture's first steps if asked.

    What was found is remembered in the user's cache folder, for the same file of the UNet, provider and shapes.

    Args:
        wanted: as in a `Request`.
        model: file of the UNet.
        facts: what decides the answer beside it.
    """

    def __init__(self, wanted: str, model: Path, facts: tuple[object, ...]) -> None:
        self.apart = wanted == "two"
        """For the next step."""
        self._seconds: dict[bool, list[float]] = {}
        if wanted == "faster":
            self._question = json.dumps([str(model.resolve()), *file_identity(model.stat()), *facts])
            known = _remembered().get(self._question)
            self.apart = known is True
            self._seconds = {} if isinstance(known, bool) else {False: [], True: []}

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Run the UNet for a step with guidance."""
        began = time.perf_counter()
        yield
        if not self._seconds:
            return
        self._seconds[self.apart].append(time.perf_counter() - began)
        self.apart = not self.apart
        if all(len(found) == _TRIALS for found in self._seconds.values()):
            one, two = (statistics.median(self._seconds[apart][1:]) for apart in (False, True))
            self.apart, self._seconds = two < one, {}
            _remember({**_remembered(), self._question: self.apart})


def _notes() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("olivelike", appauthor=False) / "guidance_calls.json"


def _remembered() -> Json:
    with contextlib.suppress(OSError, ValueError):
        found = read_json(_notes())
        return found if isinstance(found, dict) else {}
    return {}


def _remember(answers: Json) -> None:
    with contextlib.suppress(OSError):  # It is found out again.
        _notes().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(_notes(), json.dumps(answers).encode(), durable=False)

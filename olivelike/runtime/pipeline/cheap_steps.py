"""Steps that cost less: which have guidance, and whether its two halves run in one call of the UNet or in two."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import file_identity, write_whole
from olivelike._untrusted import Json, object_or_empty
from olivelike.errors import UsageError
from olivelike.model.guides import CONTROL_KINDS

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request


CHEAPER: Final = "--cache-interval and --guidance-interval make the steps of any model cheaper"
"""Advice on a model that is not made for few steps."""
_LEAST_WHOLE: Final = 10
"""Steps that run the whole UNet, from which on a cache interval is no worse than fewer steps in as much time."""


def runs_whole(step: int, steps: int, request: Request) -> bool:
    """Tell whether a step runs the whole UNet: the first tenth, which decide most, then one in each interval."""
    first = steps // 10
    return step <= first or (step - first) % request.cache_interval == 0


def cache_notes(requests: Iterable[Request]) -> Iterator[str]:
    """Return a line for each cache interval that leaves too few whole steps: between them too much changes."""
    for (steps, interval), one in {(one.steps, one.cache_interval): one for one in requests}.items():
        whole = sum(runs_whole(step, steps, one) for step in range(steps)) if one.skips_layers else steps
        if one.skips_layers and whole < _LEAST_WHOLE:
            yield (
                f"cache_interval {interval} leaves {whole} whole steps of {steps}, between which deep layers change "
                "much: pictures may come out wrong; fewer steps without it are better, or at least "
                f"{_LEAST_WHOLE * interval}"
            )


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
    if request.skips_layers:
        if request.controls:
            one, *more = (kind.one for kind in CONTROL_KINDS)
            raise UsageError(
                f"cache_interval leaves out the layers that {one} leads, or {' or '.join(more)}; take cache_interval 1 "
                "with control pictures"
            )
        if request.ip_adapter_images:
            raise UsageError(
                "cache_interval leaves out layers in which the UNet attends to a picture; take cache_interval 1 with "
                "ip_adapter_images"
            )
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
    if not request.guided or not folder.takes_negative_prompt:
        raise UsageError(
            "guidance_interval is given, and there is no guidance that runs in steps of its own; drop it, or take a "
            "guidance scale above 1 if the model has one"
        )
    if not guided_steps(request, steps):
        raise UsageError(
            f"guidance_interval {interval[0]:g}:{interval[1]:g} holds none of the {steps} steps; take a wider one, or "
            "guidance scale 1 for none at all"
        )


def guided_steps(request: Request, steps: int) -> range:
    """Return the steps, counted from 0, that begin within the interval of shares in which guidance leads."""
    if request.guidance_interval is None:
        return range(steps)
    first, end = (math.ceil(round(share * steps, 6)) for share in request.guidance_interval)
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
    return object_or_empty(_notes())


def _remember(answers: Json) -> None:
    with contextlib.suppress(OSError):  # It is found out again.
        _notes().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(_notes(), json.dumps(answers).encode(), durable=False)

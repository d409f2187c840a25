"""`bench --method`: what cheaper ways of drawing save, and what they cost the pictures.

Each method stands beside an honest control: the folder as it is, with as many steps as fit into the method's time. All
take turns in this process, prompt by prompt, in an order that rotates, so that a drift of the machine hits all alike.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.extras.bench.whole_pictures import bench_prompts
from olivelike.measure.contest.contest import hold
from olivelike.measure.contest.engine import Turn
from olivelike.measure.result_rows import FidelityReport, FidelityRow, Role
from olivelike.runtime.jobs import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine, read_options
from olivelike.runtime.pipeline.pipeline import Pipeline, open_pipeline
from olivelike.runtime.pipeline.request import RequestFields

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.runtime.jobs import JobPlan
    from olivelike.runtime.sessions.session_settings import SessionSettings

Judge = Callable[[Sequence[str], "Sequence[Image]"], float]
"""Says which share of pictures shows what its prompt asks for."""
SEED: Final = 123
_MOST: Final = 10_000
_TIMED: Final = 4
"""Pictures that tell how many steps a control has time for, after a first one that opens and allocates."""
_FAST: Final = re.compile(r"(?<!\S)--fast(?!\S)")


@dataclass(frozen=True)
class Method:
    """A way of drawing."""

    text: str
    """Name in the table."""
    folder: Path
    """The pipeline that it draws with."""
    fields: RequestFields = field(default_factory=RequestFields)
    fast: bool = False
    """Whether it takes scheduler, steps and guidance that a few-step model is made for."""


def read_method(text: str, folder: Path) -> Method:
    """Read `[FOLDER] [--fast] [--OPTION VALUE …]`: without a folder it is the one that is measured.

    Raises `UsageError` for options that a picture does not have, or if nothing is asked for.
    """
    plain, fast = _FAST.subn("", f" {text}")
    named, option, rest = plain.partition(" --")
    where, named = f"--method {text!r}", named.strip()
    fields = read_options(option + rest, where)
    if not fields and not named and not fast:
        raise UsageError(f'{where}: asks for nothing; write options such as "--steps 20", a folder, or both')
    taken = {"seed", "seeds", "size", "num_images", "batch_size"} & fields.keys()
    if taken:
        raise UsageError(f"{where}: {', '.join(sorted(taken))} is the same for all methods; leave it out")
    return Method(text, Path(named).expanduser() if named else folder, fields, fast > 0)


def compare_methods(
    folder: Path,
    methods: Sequence[Method],
    *,
    steps: int = 50,
    size: tuple[int, int] | None = None,
    pictures: int = 10,
    prompts: Sequence[str] | None = None,
    judge: Judge | None = None,
    sessions: SessionSettings | None = None,
    listen: Callable[[str], None] = lambda _: None,
) -> FidelityReport:
    """Draw the same pictures in each way, and compare time and pictures.

    Raises `UsageError` for options that can't be had, `SourceError` if a folder is no pipeline, and `SessionError` if
    it can't run here.

    Args:
        folder: The pipeline as it is: the reference, and the control of each method.
        methods: Ways to draw with it, or with others.
        steps: Of the reference, and of methods that say nothing else.
        size: Width and height; by default what the UNet was trained on.
        pictures: Drawn in each way, each of its own prompt and seed; without `prompts`.
        prompts: In place of different ones.
        judge: Says of prompts and their pictures which share is drawn right.
        sessions: By default those of each folder's target.
        listen: Is told what is done.
    """
    count = pictures if prompts is None else len(prompts)
    if not 1 <= count <= _MOST:
        raise UsageError(f"{count} pictures: is not between 1 and {_MOST}")
    sized: RequestFields = {} if size is None else {"size": size}
    base: RequestFields = {**sized, "steps": steps}
    ways = [Method("", folder, base)]
    # What is given is not made fast, steps among it.
    ways += [replace(method, fields={**(sized if method.fast else base), **method.fields}) for method in methods]
    opened: dict[Path, Pipeline] = {}
    contenders = []
    for way in ways:
        if way.folder not in opened:
            listen(f"opening {way.folder}")
            opened[way.folder] = open_pipeline(way.folder, sessions, safety=False)
        contenders.append(_Drawer(way, opened[way.folder], "method" if way.text else "reference"))
    reference = contenders[0]
    for contender in contenders[1:]:
        if contender.size != reference.size:
            raise UsageError(f"--method {contender.way.text!r}: draws {contender.size}, not {reference.size} pixels")
    ordered = [reference, *_with_controls(reference, contenders[1:], listen)]
    texts = bench_prompts(count) if prompts is None else prompts

    def turns() -> Iterator[Turn]:
        for number, prompt in enumerate(texts):
            listen(f"picture {number + 1} of {count}")
            yield Turn(prompt, SEED + number)

    hold(ordered, (), turns())
    rows = tuple(contender.row(reference, texts, judge) for contender in ordered)
    notes = tuple(dict.fromkeys(note for contender in ordered for note in contender.notes))
    return FidelityReport(folder.resolve().name, reference.size, rows, notes)


class _Drawer:
    """A contender in this process: a way of drawing, with what it has drawn."""

    def __init__(self, way: Method, pipeline: Pipeline, role: Role) -> None:
        self.way, self.role = way, role
        self.pipeline = pipeline
        plan = self._plan("", SEED)
        self.notes = tuple(f"{way.text}: {note}" if way.text else note for note in plan.notes)
        request = plan.jobs[0].request
        self.size, self.steps = request.size, request.steps
        self.seconds: list[float] = []
        self._images: list[Image] = []

    def run(self, turn: Turn, *, measured: bool) -> None:
        """Draw a picture."""
        result = self.pipeline.generate(self._plan(turn.prompt, turn.seed).jobs[0].request)
        if measured:
            self.seconds.append(result.seconds)
            self._images.append(result.pictures[0].image)

    def warmed_up(self) -> None:
        """Nothing is told of it."""

    def _plan(self, prompt: str, seed: int) -> JobPlan:
        return plan_jobs(self.way.folder, [PromptLine(prompt)], {**self.way.fields, "seed": seed}, fast=self.way.fast)

    def row(self, reference: _Drawer, texts: Sequence[str], judge: Judge | None) -> FidelityRow:
        """Compare what is drawn with the reference."""
        median = statistics.median(self.seconds)
        return FidelityRow(
            self.way.text or "as it is",
            self.role,
            self.steps,
            len(self._images),
            median,
            statistics.median(reference.seconds) / median,
            captions_right=None if judge is None else judge(texts, self._images),
            **({} if self is reference else _likeness(self._images, reference._images)),
        )


def _with_controls(reference: _Drawer, methods: Sequence[_Drawer], listen: Callable[[str], None]) -> list[_Drawer]:
    """Return each method, and after it the folder as it is with the steps that fit into the method's time.

    A picture takes the same time for each step, and some beside: two numbers of steps tell both.
    """

    def control(steps: int, text: str) -> _Drawer:
        way = Method(text, reference.way.folder, {**reference.way.fields, "steps": steps})
        return _Drawer(way, reference.pipeline, "control")

    listen("timing a picture of each")
    few = max(1, reference.steps // 5)
    timed = [_Drawer(one.way, one.pipeline, one.role) for one in (reference, control(few, ""), *methods)]
    turn = Turn(bench_prompts(1)[0], SEED)
    hold(timed, [turn], [turn] * _TIMED)
    # The least of several: what else runs on the machine must not decide the steps.
    whole, part, *seconds = (min(one.seconds) for one in timed)
    each = max((whole - part) / max(1, reference.steps - few), 1e-6)
    found = []
    for method, taken in zip(methods, seconds, strict=True):
        steps = reference.steps - round((whole - taken) / each)
        found += [method, control(min(max(steps, 1), reference.steps), f"control of {method.way.text}")]
    return found


def _likeness(images: Sequence[Image], originals: Sequence[Image]) -> dict[str, float | None]:
    """Return the PSNR of the median picture and of the worst, `None` for equal ones, and the mean SSIM.

    Of all pictures together it would be that of the one or two which turned out as others.
    """
    from olivelike.measure.verify.picture_comparison import psnr, ssim

    pairs = list(zip(images, originals, strict=True))
    ratios = [psnr(*pair) for pair in pairs]
    median, worst = (None if math.isinf(one) else one for one in (statistics.median(ratios), min(ratios)))
    return {"psnr": median, "worst_psnr": worst, "ssim": statistics.fmean(ssim(*pair) for pair in pairs)}

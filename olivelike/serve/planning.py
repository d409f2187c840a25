"""From an order to what pipelines draw: every choice made and checked, one plan for each folder and its LoRAs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from olivelike.engine.output.swap import LiveLoras, lora_folders
from olivelike.runtime.jobs.job_plan import Job, JobPlan, plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.pipeline.request import Request, RequestFields
from olivelike.runtime.prompts.wildcards import Wildcards
from olivelike.serve.orders import LoraChoice, Order
from olivelike.serve.plots import Cell, cells

_ALIKE = (
    "negative_prompt", "num_images", "batch_size", "steps", "guidance_scale", "guidance_rescale", "scheduler", "eta",
    "seed", "fit", "strength", "clip_skip", "prompt_weights", "retry_unsafe", "decode_singly",
)  # fmt: skip
"""Fields that an order and a request both have."""


@dataclass(frozen=True)
class Files:
    """Where planning finds what orders name."""

    models: Mapping[str, Path]
    """Folders by the names in the order."""
    uploads: Path
    loras: Sequence[Path]
    wildcards: Sequence[Path]
    allow_pickle: bool


@dataclass(frozen=True, eq=False)
class Part:
    """Pictures that one request makes."""

    folder: Path
    plan: JobPlan
    job: Job
    numbers: tuple[int, ...]
    """Of its pictures, among all of the order."""

    @property
    def steps(self) -> int:
        """About how many steps a batch takes."""
        request = self.job.request
        return max(1, int(request.steps * (request.strength or 1.0)))


@dataclass(frozen=True, eq=False)
class OrderPlan:
    """All that an order makes."""

    parts: tuple[Part, ...]
    cells: tuple[Cell, ...]
    """Of each picture, by its number."""
    notes: tuple[str, ...]

    @property
    def batches(self) -> int:
        """How many there are."""
        return sum(part.job.batches for part in self.parts)

    @property
    def steps(self) -> int:
        """About how many steps they take together."""
        return sum(part.job.batches * part.steps for part in self.parts)


def plan_order(order: Order, files: Files) -> OrderPlan:
    """Plan an order whose model and seeds are given. Raises `UsageError` and `SourceError` as `plan_jobs` does."""
    placed = list(enumerate(cells(order)))
    parts: list[Part] = []
    notes: dict[str, None] = {}
    # Cells of one folder with the same LoRAs are drawn together, so that each is opened and merged once.
    groups = {key: [*group] for key, group in groupby(sorted(placed, key=_first_of(placed)), key=_networks)}
    for (model, loras), group in groups.items():
        assert model is not None
        plan = _plan_group(files.models[model], loras, group, files)
        notes |= dict.fromkeys(plan.notes)
        numbers = (number for place, cell in group for number in _numbers(place, cell.order))
        parts += [_part(plan, job, numbers) for job in plan.jobs]
    return OrderPlan(tuple(parts), tuple(cell for _, cell in placed for _ in range(cell.order.num_images)), tuple(notes))


def _networks(placed: tuple[int, Cell]) -> tuple[str | None, tuple[LoraChoice, ...]]:
    return placed[1].order.model, placed[1].order.loras


def _first_of(placed: Sequence[tuple[int, Cell]]) -> Any:
    """Return a key that brings cells of the same networks together, in the order in which they first come."""
    ranks = {networks: rank for rank, networks in enumerate(dict.fromkeys(map(_networks, placed)))}
    return lambda one: ranks[_networks(one)]


def _numbers(place: int, order: Order) -> range:
    return range(place * order.num_images, (place + 1) * order.num_images)


def _part(plan: JobPlan, job: Job, numbers: Iterator[int]) -> Part:
    return Part(plan.folder, plan, job, tuple(next(numbers) for _ in job.request.seeded_prompts))


def _plan_group(
    folder: Path, loras: Sequence[LoraChoice], group: Sequence[tuple[int, Cell]], files: Files
) -> JobPlan:
    opened = live_loras(folder, tuple(files.loras), allow_pickle=files.allow_pickle)
    first = group[0][1].order
    wildcards = Wildcards(files.wildcards, named=True) if files.wildcards else None
    return plan_jobs(
        folder,
        [PromptLine(cell.order.prompt, _fields(cell.order)) for _, cell in group],
        init_image=files.uploads / f"{first.init_image}.png" if first.init_image else None,
        mask=files.uploads / f"{first.mask}.png" if first.mask else None,
        wildcards=wildcards,
        lora_files=opened,
        loras=[_opened(opened, choice) for choice in loras],
    )


def _fields(order: Order) -> RequestFields:
    fields = {name: value for name in _ALIKE if (value := getattr(order, name)) is not None}
    if order.width and order.height:
        fields["size"] = order.width, order.height
    return RequestFields(**fields)


@lru_cache(maxsize=32)
def live_loras(folder: Path, named: tuple[Path, ...], *, allow_pickle: bool) -> LiveLoras:
    """Return the LoRAs for a folder."""
    return LiveLoras(lora_folders(named, folder), allow_pickle=allow_pickle)


def _opened(files: LiveLoras, choice: LoraChoice) -> Any:
    text_weight = choice.weight if choice.text_weight is None else choice.text_weight
    return files.tagged(f"LoRA {choice.name!r}", choice.name, text_weight, choice.weight)


def remaining(job: Job, place: int) -> Request:
    """Return a job's request without so many of its first pictures."""
    request = job.request
    assert request.seeds is not None
    return replace(request, prompts=request.prompts[place:], seeds=request.seeds[place:])

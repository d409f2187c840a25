"""From an order to what pipelines draw: every choice made and checked, one plan for each folder and its LoRAs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from olivelike.engine.output.swap import LiveLora, LiveLoras, lora_folders
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.jobs.job_plan import Job, JobPlan, check_held, held_small, open_pictures, plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.pictures import UsedFile
from olivelike.runtime.pictures.picture_reading import open_image
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.request import CHOICES, RESAMPLED, Pictures, RequestFields
from olivelike.runtime.pipeline.resolve_defaults import fitted_into_memory
from olivelike.runtime.prompts.wildcards import Wildcards
from olivelike.serve.drawing.plots import Cell, cells
from olivelike.serve.orders import LoraChoice, Order, no_upload
from olivelike.serve.upscalers import find_upscaler

if TYPE_CHECKING:
    from olivelike.runtime.jobs.control_files import UsedImage


@dataclass(frozen=True)
class Files:
    """Places where planning finds what orders name."""

    models: Mapping[str, Path]
    """Folders by the names in the order."""
    uploads: Path
    loras: Sequence[Path]
    wildcards: Sequence[Path]
    allow_pickle: bool
    upscalers: Sequence[Path] = ()


@dataclass(frozen=True, eq=False)
class OrderPlan(JobPlan):
    """All that an order makes."""

    cells: tuple[Cell, ...]
    """Cell of each picture, by its number."""

    @property
    def reads(self) -> list[str]:
        """Folders, LoRAs and upscalers that drawing it opens."""
        loras = {str(cast("LiveLora", lora).path.absolute()) for job in self.jobs for lora in job.loras}
        named = {job.request.upscaler for job in self.jobs} - {None, *map(Path, RESAMPLED)}
        upscalers = {str(cast("Path", path).absolute()) for path in named}
        return sorted({str(job.folder.absolute()) for job in self.jobs} | loras | upscalers)


def plan_order(order: Order, files: Files) -> OrderPlan:
    """Plan an order whose model and seeds are given. Raises `UsageError` and `SourceError` as `plan_jobs` does."""
    placed = list(enumerate(cells(order)))
    jobs: list[Job] = []
    notes: dict[str, None] = {}
    groups: dict[Any, list[tuple[int, Cell]]] = {}
    # References are made small as they are opened, and those of many that it starts from, too.
    shared, once = {*Pictures.of(order)} - {*order.references}, cache(partial(_uploaded, files.uploads))

    def opened(name: str) -> UsedImage:
        return once(name) if name in shared else _uploaded(files.uploads, name)

    for place, cell in placed:  # Each folder is opened once, and each LoRA merged once.
        groups.setdefault(_shared(cell.order), []).append((place, cell))
    for group in groups.values():
        plan = _plan_group([cell for _, cell in group], files, opened)
        notes |= dict.fromkeys(plan.notes)
        numbers = [place * order.num_images + more for place, _ in group for more in range(order.num_images)]
        planned = held_small(plan.jobs) if order.init_images else plan.jobs
        jobs += [replace(job, numbers=[numbers[number] for number in job.numbers]) for job in planned]
        check_held(jobs)
    return OrderPlan(tuple(jobs), tuple(notes), tuple(cell for _, cell in placed for _ in range(order.num_images)))


def is_repeatable(plan: OrderPlan) -> bool:
    """Tell whether `repeated` may take a plan: of one picture, of plain text, and of no files but a folder's."""
    if len(plan.cells) != 1 or len(plan.jobs) != 1:
        return False
    (job,), order = plan.jobs, plan.cells[0].order
    return (
        "__" not in order.prompt  # A file of that name may come.
        and dict(job.written) == {order.prompt: order.prompt}
        and job.request.prompts == (order.prompt,)
        and not (job.loras or order.loras or order.upscaler or order.variation_strength)
        and order.variation_seed is None
        and not Pictures.of(order).given()
    )


def repeated(plan: OrderPlan, order: Order, files: Files) -> OrderPlan | None:
    """Return the plan of an order that asks for another seed than the one of a plan, and for nothing else.

    `None` if it asks for more, or the folder has changed: most pictures differ from the last one in their seed alone.
    """
    (before,), (job,) = plan.cells, plan.jobs
    cell, *more = cells(order)
    asked = cell.order.model_copy(update={"seed": before.order.seed})
    if more or asked != before.order or asked.model_fields_set != before.order.model_fields_set or order.seed is None:
        return None
    folder = open_folder(job.folder)
    if files.models[order.model or ""] != job.folder or folder is not job.request.resolved_for:
        return None
    request = job.request.resolved_with(seed=order.seed, seeds=(order.seed,), tiled_vae=order.tiled_vae)
    request = fitted_into_memory(request, folder)
    if request.tiled_vae != job.request.tiled_vae:
        return None  # There is more room than before, or less.
    again = replace(job, request=request, record=replace(job.record, seed=order.seed))
    return OrderPlan((again,), plan.notes, (cell,))


def _shared(order: Order) -> tuple[Any, ...]:
    """Return what cells that are planned together have in common."""
    return order.model, order.loras, order.fast, order.init_image


def _plan_group(group: Sequence[Cell], files: Files, picture: Callable[[str], UsedImage]) -> JobPlan:
    first = group[0].order
    assert first.model is not None
    folder = files.models[first.model]
    opened = live_loras(tuple(lora_folders(files.loras, folder)), allow_pickle=files.allow_pickle)
    plan = plan_jobs(
        folder,
        [PromptLine(cell.order.prompt, _fields(cell.order, files.upscalers)) for cell in group],
        pictures=open_pictures(Pictures.of(first), picture),
        wildcards=Wildcards(files.wildcards, named=True) if files.wildcards else None,
        lora_files=opened,
        loras=[_opened(opened, choice) for choice in first.loras],
        fast=first.fast,
    )
    if loras := list(dict.fromkeys(lora for job in plan.jobs for lora in job.loras)):
        try:
            opened.check(loras, folder)  # type: ignore[arg-type]  # They are its own.
        except SourceError as error:
            raise UsageError(str(error)) from error
    return plan


def _uploaded(folder: Path, name: str) -> UsedImage:
    path = folder / f"{name}.png"
    if not path.is_file():
        raise no_upload(name)
    image, _ = open_image(path)
    return image, UsedFile(f"{name[:12]}.png", name)


def _fields(order: Order, upscalers: Sequence[Path]) -> RequestFields:
    # What is not named is as the folder's family has it.
    named = CHOICES & order.model_fields_set
    fields = {name: value for name in named if (value := getattr(order, name)) is not None}
    if order.fast:  # What is not asked for may change.
        fields = {name: value for name, value in fields.items() if value != Order.model_fields[name].default}
    if order.width and order.height:
        fields["size"] = order.width, order.height
    if order.upscaler is not None:
        is_file = order.upscaler not in RESAMPLED
        fields["upscaler"] = find_upscaler(order.upscaler, upscalers) if is_file else Path(order.upscaler)
    return fields


@lru_cache(maxsize=32)
def live_loras(folders: tuple[Path, ...], *, allow_pickle: bool) -> LiveLoras:
    """Return the LoRAs of folders, each opened once."""
    return LiveLoras(folders, allow_pickle=allow_pickle)


def _opened(files: LiveLoras, choice: LoraChoice) -> LiveLora:
    text_weight = choice.weight if choice.text_weight is None else choice.text_weight
    return files.tagged(f"LoRA {choice.name!r}", choice.name, text_weight, choice.weight)

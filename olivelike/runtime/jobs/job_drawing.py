"""Drawing what is planned, and writing each batch as soon as it is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.runtime.pipeline.pipeline import Pipeline, begin_pipeline
from olivelike.runtime.pipeline.request import Batch, Picture, ResolvedRequest, require_safe

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from olivelike.runtime.jobs.fast import Lora
    from olivelike.runtime.jobs.job_plan import Job, JobPlan
    from olivelike.runtime.pictures import PictureRecord, PictureWriter
    from olivelike.runtime.pictures.writer import SheetPicture
    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.sessions.session_settings import SessionSettings


@dataclass(frozen=True)
class Opening:
    """Networks are being opened, with LoRAs merged into them."""

    folder: Path
    loras: tuple[Lora, ...]


@dataclass(frozen=True)
class Opened:
    """Event: the networks are open."""

    provider: str
    """Execution provider of the UNet."""
    request: ResolvedRequest
    """The first that they will make."""
    pictures: int
    """Number of pictures of all jobs."""
    checked: bool
    """Whether a safety checker looks at them."""
    safety: bool
    """Whether one was asked for."""


@dataclass(frozen=True)
class StepDone:
    """A step of a batch is done."""

    step: Step
    """Its batch is counted among all that are planned."""
    size: tuple[int, int] | None
    prompts: Sequence[str]
    """Prompts of the batch, each once."""


@dataclass(frozen=True)
class PictureWritten:
    """A picture is in its file."""

    picture: Picture
    prompt: str
    """With its choices made, and the tags of LoRAs in it."""
    path: Path


@dataclass(frozen=True)
class SheetWritten:
    """The sheet of all pictures is in its file."""

    path: Path


DrawEvent = Opening | Opened | StepDone | PictureWritten | Batch | SheetWritten
"""`Batch` comes after the pictures of it, counted among all that are planned."""


def draw(
    plan: JobPlan,
    writer: PictureWriter,
    settings: SessionSettings | None = None,
    *,
    safety: bool = True,
    ahead: Pipeline | None = None,
    sheet: bool = False,
    on_event: Callable[[DrawEvent], None] = lambda _: None,
    while_writing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> list[Path]:
    """Open the networks, once for each set of LoRAs, and make and write all pictures.

    Args:
        settings: of the sessions; by default those of the folder's target.
        ahead: what `begin_pipeline` returned for the same folder and settings, without LoRAs; none draws with it later,
            and who began it tells of `Opening`.
        sheet: whether all come on one sheet too.
        on_event: called as things happen, in this thread.
        while_writing: goes round the writing of each picture and its event.

    Returns:
        The files of the pictures.

    Raises:
        SafetyError: if pictures are flagged in all attempts; they are written, black.
        UsageError: if a picture can't be written.
        SessionError: if a network can't be opened or run here.
    """
    from olivelike.runtime.pictures.writer import SheetPicture

    for job in plan.jobs:
        writer.require_writable(job.record)
    batches, begun = sum(job.batches for job in plan.jobs), 0
    written: list[Path] = []
    flagged: list[int] = []
    cells: list[SheetPicture] = []
    first: PictureRecord | None = None
    pipeline: Pipeline | None = None
    loras: tuple[Lora, ...] = ()  # Those that the pipeline has.
    for job in plan.jobs:
        if pipeline is None or loras != job.loras:
            pipeline, loras = None, job.loras  # The old one goes before the next takes memory.
            if ahead is None or loras:
                on_event(Opening(plan.folder, loras))
                merged = plan.lora_files.merge(loras, plan.folder) if loras and plan.lora_files else None
                ahead = begin_pipeline(plan.folder, settings, safety=safety, initializers=merged, request=job.request)
            pipeline, ahead = ahead, None
            pipeline.wait()
            provider = pipeline.provider
            on_event(Opened(provider, job.request, plan.pictures, pipeline.checks_safety, safety))
        before = begun

        def on_step(step: Step, job: Job = job, before: int = before) -> None:
            placed = replace(step, batch=before + step.batch, batches=batches)
            on_event(StepDone(placed, job.request.size, job.prompts(step.batch)))

        for batch in pipeline.batches(job.request, on_step=on_step):
            for picture in batch.pictures:
                prompt = job.written[picture.prompt]
                record = replace(
                    job.record,
                    prompt=prompt,
                    provider=provider,
                    seed=picture.seed,
                    variation_seed=picture.variation_seed,
                )
                first = first or record
                with while_writing():
                    written.append(writer.save(picture.image, record))
                    on_event(PictureWritten(picture, prompt, written[-1]))
                if picture.flagged:
                    flagged.append(picture.first_seed)
                if sheet:  # Without one, pictures are held for their batch alone.
                    cells.append(SheetPicture(picture.image, prompt, f"seed {picture.seed}"))
            begun += 1
            on_event(replace(batch, number=begun, total=batches))
    if cells and first is not None:
        on_event(SheetWritten(writer.save_sheet(cells, first)))
    require_safe(len(written), flagged, plan.jobs[0].request.retry_unsafe)
    return written

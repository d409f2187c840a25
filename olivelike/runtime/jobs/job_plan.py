"""Plan of what a folder draws, as jobs: every choice made and checked, pictures put together that can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from olivelike.errors import UsageError
from olivelike.runtime.jobs.control_files import found_again
from olivelike.runtime.jobs.fast import Lora, sped_up, unsuited_notes
from olivelike.runtime.jobs.job_notes import (
    guidance_notes,
    hires_notes,
    picture_record,
    record_notes,
    recorded_fields,
    size_notes,
    tile_notes,
    unread_notes,
    upscaler_notes,
)
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.pictures import PictureRecord, UsedFile, read_picture_record
from olivelike.runtime.pictures.picture_reading import open_image
from olivelike.runtime.pipeline.cheap_steps import cache_notes
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, open_folder
from olivelike.runtime.pipeline.prompt_cost import batch_texts, check_cost
from olivelike.runtime.pipeline.request import NO_PICTURES, Pictures, Request, RequestFields, ResolvedRequest
from olivelike.runtime.pipeline.resolve_defaults import resolve_defaults
from olivelike.runtime.prompts.syntax import LoraTag, shortened, take_lora_tags
from olivelike.runtime.prompts.wildcards import Wildcards

if TYPE_CHECKING:
    from olivelike.runtime.jobs.control_files import Named
    from olivelike.runtime.pipeline.networks import Initializers


class LoraFiles(Protocol):
    """Opens LoRAs and merges them: `LiveLoras` of `olivelike.engine.output.swap`."""

    def tagged(self, written: str, name: str, text_weight: float, unet_weight: float) -> Lora:
        """Open the LoRA that a tag in a prompt names."""

    def merge(self, loras: Sequence[Any], folder: Path) -> Initializers:
        """Return what initializers become when LoRAs of this value are merged into a folder."""


@dataclass(frozen=True, eq=False)
class Job:
    """Pictures that one request makes with the same LoRAs."""

    request: ResolvedRequest
    written: Mapping[str, str]
    """The request's prompts with the tags that were taken out of them."""
    loras: tuple[Lora, ...]
    record: PictureRecord
    """Facts that its pictures have in common, as far as they are known before networks are open."""

    @property
    def batches(self) -> int:
        """Number of batches that it takes."""
        return -(-len(self.request.seeded_prompts) // self.request.batch_size)

    def prompts(self, batch: int) -> list[str]:
        """Return the prompts of a batch, counted from 1, each once."""
        first = (batch - 1) * self.request.batch_size
        pairs = self.request.seeded_prompts[first : first + self.request.batch_size]
        return list(dict.fromkeys(self.written[prompt] for prompt, _ in pairs))


@dataclass(frozen=True, eq=False)
class JobPlan:
    """All that is to be drawn."""

    folder: Path
    jobs: tuple[Job, ...]
    """At least one."""
    notes: tuple[str, ...]
    """Lines that the user should read before it begins."""
    lora_files: LoraFiles | None

    @property
    def pictures(self) -> int:
        """Number of pictures of all jobs."""
        return sum(len(job.request.seeded_prompts) for job in self.jobs)


@dataclass(frozen=True)
class _Picture:
    line: int
    """Number of the line whose options it has."""
    prompt: str
    written: str
    seed: int
    variation_seed: int | None
    tags: tuple[LoraTag, ...]


def plan_jobs(
    folder: Path,
    lines: Sequence[PromptLine] = (),
    fields: RequestFields | None = None,
    *,
    made_before: Path | None = None,
    pictures: Pictures[Named] = NO_PICTURES,
    wildcards: Wildcards | None = None,
    lora_files: LoraFiles | None = None,
    loras: Sequence[Lora] = (),
    fast: bool = False,
    before_torch: Callable[[ResolvedRequest], object] = lambda _: None,
) -> JobPlan:
    """Make the choices that prompts leave to the seed, open the files that are named, and check what is asked for.

    No network is opened. What can be refused without importing torch is refused before that. Raises `UsageError` for a
    value that can't be had, and `SourceError` if a file is missing or damaged.

    Args:
        lines: the prompts, with options of their own; `read_prompts` makes them.
        fields: of the request for all lines, as far as they are given; a seed of -1 draws one.
        made_before: a picture to make again; what is given here wins over what it says.
        pictures: those to start from, to be led by, or shown; where a field has none, that of `made_before`, found by
            its content.
        wildcards: files of choices; by default those in `wildcards/`.
        lora_files: opens LoRAs that prompts name, and merges all.
        loras: those that every prompt gets; opened by `lora_files`.
        fast: take scheduler, steps and guidance that a few-step model is made for, where `fields` have none.
        before_torch: called once all is checked of the first line that can be without torch, which takes a second to
            import; not if its picture has LoRAs.
    """
    before = read_picture_record(made_before) if made_before is not None else None
    if before is not None and made_before is not None:
        pictures = found_again(pictures, before, made_before)
        lines = lines or [PromptLine(before.prompt)]
    opened = pictures.map(lambda one: open_image(one) if isinstance(one, Path) else one)
    used = opened.map(lambda one: one[1])
    given: RequestFields = {**(fields or {}), **opened.map(lambda one: one[0]).given()}
    if before is not None:
        given = {**recorded_fields(before, given), **given}
    pipeline = open_folder(folder)
    usual: RequestFields = {"steps": pipeline.family.steps, "guidance_scale": pipeline.family.guidance}
    asked = replace(Request(()), **{**usual, **given})
    wildcards = wildcards or Wildcards([Path("wildcards")])
    planner = _Planner(
        pipeline, wildcards, lora_files, tuple(loras), used, frozenset(fields or ()) if fast else None, before_torch,
    )  # fmt: skip
    jobs = tuple(planner.jobs(asked, lines))
    _check_prompts(jobs, pipeline)
    requests = [job.request for job in jobs]
    notes = [
        *unread_notes(lines, asked, wildcards),
        *guidance_notes(requests, pipeline),
        *hires_notes(requests, pipeline),
        *cache_notes(requests),
        *size_notes(requests, pipeline),
        *tile_notes(requests, pipeline),
        *(
            planner.notes
            if fast
            else dict.fromkeys(unsuited_notes([(job.request, job.loras) for job in jobs], pipeline))
        ),
    ]
    if before is not None:
        now = jobs[0].record
        notes[:0] = [*record_notes(before, folder, used, now.loras), *upscaler_notes(before, now.upscaler)]
    return JobPlan(folder, jobs, tuple(notes), lora_files)


def _check_prompts(jobs: Sequence[Job], folder: PipelineFolder) -> None:
    """Raise `UsageError` for what is only found as prompts are encoded, such as their length in tokens."""
    for job in jobs:
        request, size = job.request, job.request.batch_size
        prompts = [prompt for prompt, _ in request.seeded_prompts]
        for batch in dict.fromkeys(tuple(prompts[at : at + size]) for at in range(0, len(prompts), size)):
            check_cost(batch_texts(batch, request, folder), folder, prompt_weights=request.prompt_weights)


@dataclass(frozen=True)
class _Planner:
    folder: PipelineFolder
    wildcards: Wildcards
    lora_files: LoraFiles | None
    always: tuple[Lora, ...]
    used: Pictures[UsedFile]
    given: frozenset[str] | None
    """Fields that stay where all else is made fast; `None` leaves all as it is."""
    before_torch: Callable[[ResolvedRequest], object] = lambda _: None
    notes: dict[str, None] = field(default_factory=dict)
    """Lines that say which fields were set to be fast; a line comes once."""

    def jobs(self, asked: Request, lines: Sequence[PromptLine]) -> Iterator[Job]:
        if not lines:
            resolve_defaults(asked, self.folder)  # It says that there is no prompt.
        base = replace(asked, **asked.drawn_seeds())
        own = [replace(base, **line.fields, prompts=(line.prompt,)) for line in lines]
        own = [replace(request, **request.drawn_seeds()) for request in own]
        plain = False
        # The first picture of each, before `resolve_defaults` imports torch.
        for place, (line, request) in enumerate(zip(lines, own, strict=True)):
            for picture in self._pictures(0, line, replace(request, num_images=1)):
                loras = (*self.always, *self._tagged(picture.tags))
                plain = plain if place else not loras
                if self.given is not None:
                    own[place], note = sped_up(request, self.given | line.fields.keys(), self.folder, loras)
                    self.notes[note] = None
        resolved = [
            self._resolved(request, line, self.before_torch if plain and not place else lambda _: None)
            for place, (line, request) in enumerate(zip(lines, own, strict=True))
        ]
        pictures = [
            picture for number, line in enumerate(lines) for picture in self._pictures(number, line, resolved[number])
        ]
        keys = [_options(line) for line in lines]
        for _, grouped in groupby(pictures, lambda picture: (keys[picture.line], picture.tags)):
            yield self._job(resolved, list(grouped))

    def _job(self, own: Sequence[ResolvedRequest], pictures: Sequence[_Picture]) -> Job:
        request = replace(
            own[pictures[0].line],
            prompts=tuple(picture.prompt for picture in pictures),
            seed=pictures[0].seed,
            seeds=tuple(picture.seed for picture in pictures),
            variation_seed=pictures[0].variation_seed,
            variation_seeds=_all_or_none(picture.variation_seed for picture in pictures),
            num_images=1,
        )
        loras = (*self.always, *self._tagged(pictures[0].tags))
        used = [UsedFile(lora.name, lora.hash, lora.unet_weight) for lora in loras]
        record = picture_record(request, self.folder, self.used, used)
        return Job(request, {picture.prompt: picture.written for picture in pictures}, loras, record)

    def _tagged(self, tags: Sequence[LoraTag]) -> list[Lora]:
        if tags and self.lora_files is None:
            raise UsageError(f"{tags[0].written}: nothing opens LoRAs here; give `lora_files`")
        opened = self.lora_files
        return [opened.tagged(t.written, t.name, t.text_weight, t.unet_weight) for t in tags if opened]

    def _resolved(
        self, request: Request, line: PromptLine, before_torch: Callable[[ResolvedRequest], object]
    ) -> ResolvedRequest:
        """Return what a line asks for with nothing left open, before any picture is made."""
        try:
            return resolve_defaults(request, self.folder, before_torch)
        except UsageError as error:
            if line.place is None:
                raise
            raise UsageError(f"{line.place}: {error}") from error

    def _pictures(self, number: int, line: PromptLine, request: Request) -> Iterator[_Picture]:
        for more in range(request.num_images):
            seed, varied = request.seeds_of(more, request.seed, request.variation_seed)
            prompt = written = line.prompt
            tags: tuple[LoraTag, ...] = ()
            if request.prompt_weights:
                try:
                    written = self.wildcards.resolve(line.prompt, seed)
                    prompt, tags = take_lora_tags(written)
                except UsageError as error:
                    where = line.place or f"prompt '{shortened(line.prompt)}'"
                    raise UsageError(f"{where}: {error}") from error
            yield _Picture(number, prompt, written, seed, varied, tags)


def _all_or_none(seeds: Iterable[int | None]) -> tuple[int, ...] | None:
    found = tuple(seed for seed in seeds if seed is not None)
    return found or None


def _options(line: PromptLine) -> tuple[tuple[str, object], ...]:
    """Return what must be equal for two lines to be drawn together."""
    return tuple(sorted((key, value) for key, value in line.fields.items() if key not in ("seed", "num_images")))

"""Plan of what a folder draws, as jobs: every choice made and checked, pictures put together that can be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from olivelike.errors import UsageError
from olivelike.families import FAMILIES
from olivelike.runtime.jobs.control_files import Given, found_again
from olivelike.runtime.jobs.fast import Lora, sped_up, unsuited_notes
from olivelike.runtime.jobs.job_notes import (
    guidance_notes,
    hires_notes,
    picture_record,
    record_notes,
    recorded_fields,
    reference_notes,
    size_notes,
    tile_notes,
    unread_notes,
    upscaler_notes,
)
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.pictures import PictureRecord, UsedFile, read_picture_record
from olivelike.runtime.pictures.picture_reading import open_image
from olivelike.runtime.pictures.pixels import upright
from olivelike.runtime.pipeline.cheap_steps import cache_notes
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, open_folder
from olivelike.runtime.pipeline.prompt_cost import batch_texts, check_cost
from olivelike.runtime.pipeline.request import NO_PICTURES, Picture, Pictures, Request, RequestFields, ResolvedRequest
from olivelike.runtime.pipeline.resolve_defaults import check_values, resolve_defaults
from olivelike.runtime.prompts.syntax import LoraTag, take_lora_tags
from olivelike.runtime.prompts.wildcards import Wildcards, without_escapes

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.runtime.jobs.control_files import Named, UsedImage
    from olivelike.runtime.pipeline.networks import Initializers


class LoraFiles(Protocol):
    """Opens LoRAs and merges them: `LiveLoras` of `olivelike.engine.output.swap`."""

    def tagged(self, written: str, name: str, text_weight: float, unet_weight: float) -> Lora:
        """Open the LoRA that a tag in a prompt names."""

    def merge(self, loras: Sequence[Any], folder: Path) -> Initializers:
        """Return what initializers become when LoRAs of this value are merged into a folder."""


_MOST_HELD: Final = 1 << 28
"""Pixels of initial pictures that wait: 800 MB."""


@dataclass(frozen=True, eq=False)
class Job:
    """Pictures that one request makes with the same LoRAs."""

    folder: Path
    request: ResolvedRequest
    """With a seed for each picture."""
    written: Mapping[str, str]
    """The request's prompts with the tags that were taken out of them."""
    loras: tuple[Lora, ...]
    record: PictureRecord
    """Facts that its pictures have in common, as far as they are known before networks are open."""
    numbers: Sequence[int]
    """Numbers of its pictures, among all that are planned."""
    lora_files: LoraFiles | None = None

    @property
    def steps(self) -> int:
        """About how many steps a batch takes."""
        request = self.request
        first = max(1, int(request.steps * (request.strength or 1.0)))
        return first if request.hires is None else first + request.second_steps(request.steps)

    @property
    def batches(self) -> int:
        """Number of batches that it takes."""
        return -(-len(self.request.seeded_prompts) // self.request.batch_size)

    def record_of(self, picture: Picture, provider: str) -> PictureRecord:
        """Return what made one of its pictures."""
        prompt, varied = self.written[picture.prompt], picture.variation_seed
        return replace(self.record, prompt=prompt, provider=provider, seed=picture.seed, variation_seed=varied)

    def prompts(self, batch: int) -> tuple[str, ...]:
        """Return the prompts of a batch, counted from 1, each once."""
        first = (batch - 1) * self.request.batch_size
        pairs = self.request.seeded_prompts[first : first + self.request.batch_size]
        return tuple(dict.fromkeys(self.written[prompt] for prompt, _ in pairs))


@dataclass(frozen=True, eq=False)
class JobPlan:
    """All that is to be drawn."""

    jobs: tuple[Job, ...]
    """At least one."""
    notes: tuple[str, ...]
    """Lines that the user should read before it begins."""

    @property
    def pictures(self) -> int:
        """Number of pictures of all jobs."""
        return sum(len(job.numbers) for job in self.jobs)

    @property
    def batches(self) -> int:
        """Count of batches in all jobs."""
        return sum(job.batches for job in self.jobs)

    @property
    def steps(self) -> int:
        """About how many steps they take together."""
        return sum(job.batches * job.steps for job in self.jobs)


@dataclass(frozen=True)
class _Picture:
    line: int
    """Number of the line whose options it has."""
    prompt: str
    written: str
    seed: int
    variation_seed: int | None
    tags: tuple[LoraTag, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked(Generic[Given]):
    """Prompts, options and pictures that are asked for, here or of a server; with all that a picture says of itself."""

    before: PictureRecord | None
    """Record of a picture that is made again."""
    lines: Sequence[PromptLine]
    fields: RequestFields
    """For all lines, but for pictures."""
    pictures: Pictures[Given]
    images: Pictures[Image]
    """The pictures, opened."""
    used: Pictures[UsedFile]
    """Their names and hashes, for records."""


def read_asked(
    lines: Sequence[PromptLine], fields: RequestFields, *, made_before: Path | None, pictures: Pictures[Given]
) -> Asked[Given | Path]:
    """Open the pictures that are named, and take from a picture that is made again what is not said anew.

    Arguments are those of `plan_jobs`. Raises `SourceError` if a file is missing or damaged, and `UsageError` if a
    picture that led, or was a prompt, is not found again.
    """
    before: PictureRecord | None = None
    named: Pictures[Given | Path] = pictures
    if made_before is not None:
        before = read_picture_record(made_before)
        named = found_again(pictures, before, made_before)
        lines = lines or [PromptLine(before.prompt)]
        fields = {**recorded_fields(before, {**fields, **named.given()}), **fields}
    opened = open_pictures(named, _opened)
    images, used = opened.map(lambda one: one[0]), opened.map(lambda one: one[1])
    return Asked(before=before, lines=lines, fields=fields, pictures=named, images=images, used=used)


def open_pictures(named: Pictures[Given], open_one: Callable[[Given], UsedImage]) -> Pictures[UsedImage]:
    """Open pictures one after the other; references as large as they are shown, since there may be many large ones.

    Raises `UsageError` if there are more references than any family takes, and what `open_one` raises.
    """
    if not named.references:
        return named.map(open_one)
    from olivelike.runtime.pipeline.references import within_area

    count, most = len(named.references), max(family.most_references for family in FAMILIES.values())
    if count > most:
        raise UsageError(f"{count} references are given; at most {most} are taken")
    opened = replace(named, references=()).map(open_one)
    shown = []
    for one in named.references:
        image, used = open_one(one)
        shown.append((within_area(image), used))
    return replace(opened, references=tuple(shown))


def _opened(one: Named) -> UsedImage:
    return open_image(one) if isinstance(one, Path) else one


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
    once_checked: Callable[[ResolvedRequest], object] = lambda _: None,
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
        once_checked: called when the first line is checked, so that networks open meanwhile; not if its picture has
            LoRAs.
    """
    given = read_asked(lines, fields or {}, made_before=made_before, pictures=pictures)
    before, used = given.before, given.used
    pipeline = open_folder(folder)
    family = pipeline.family
    usual: RequestFields = {**family.usual, "prompt_weights": family.prompt_syntax}
    asked = Request((), **{**usual, **given.fields, **given.images.given()})
    wildcards = wildcards or Wildcards([Path("wildcards")])
    planner = _Planner(
        pipeline, wildcards, lora_files, tuple(loras), used, frozenset(fields or ()) if fast else None, once_checked,
    )  # fmt: skip
    jobs = tuple(planner.jobs(asked, given.lines))
    _check_prompts(jobs, pipeline)
    requests = [job.request for job in jobs]
    notes = [
        *unread_notes(given.lines, asked, wildcards),
        *guidance_notes(requests, pipeline),
        *hires_notes(requests, pipeline),
        *cache_notes(requests),
        *size_notes(requests, pipeline),
        *reference_notes(requests, pipeline),
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
    return JobPlan(jobs, tuple(notes))


def held_small(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs whose initial pictures are as large as they are drawn, as the pipeline makes them itself.

    One that is painted in part stays whole, since it is put back together.
    """
    from PIL.Image import Resampling

    def small(request: ResolvedRequest) -> ResolvedRequest:
        image = request.init_image
        if image is None or request.mask is not None:
            return request
        return request.resolved_with(init_image=upright(image).resize(request.size, Resampling.LANCZOS))

    return [replace(job, request=small(job.request)) for job in jobs]


def joined(plans: Iterable[JobPlan]) -> JobPlan:
    """Return the plans of several initial pictures as one; each is made once the one before is held small.

    Raises `UsageError` as `check_held`.
    """
    jobs: list[Job] = []
    notes: dict[str, None] = {}
    for plan in plans:
        before = sum(len(job.numbers) for job in jobs)
        jobs += [replace(job, numbers=[before + number for number in job.numbers]) for job in held_small(plan.jobs)]
        check_held(jobs)
        notes |= dict.fromkeys(plan.notes)
    return JobPlan(tuple(jobs), tuple(notes))


def check_held(jobs: Iterable[Job]) -> None:
    """Raise `UsageError` for initial pictures that take too much memory while they wait."""
    images = {id(image): image for job in jobs if (image := job.request.init_image) is not None}
    pixels = sum(image.width * image.height for image in images.values())
    if len(images) > 1 and pixels > _MOST_HELD:
        raise UsageError(
            f"{len(images)} initial pictures have {pixels:,} pixels together, and at most {_MOST_HELD:,} wait at once; "
            "give fewer"
        )


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
    once_checked: Callable[[ResolvedRequest], object] = lambda _: None
    notes: dict[str, None] = field(default_factory=dict)
    """Lines that say which fields were set to be fast; a line comes once."""
    opened: dict[tuple[LoraTag, ...], list[Lora]] = field(default_factory=dict)
    """LoRAs that were opened, by the tags that name them."""

    def jobs(self, asked: Request, lines: Sequence[PromptLine]) -> Iterator[Job]:
        if not lines:
            resolve_defaults(asked, self.folder)  # It says that there is no prompt.
        base = asked.with_seeds()
        own = [replace(base, **line.fields, prompts=(line.prompt,)).with_seeds() for line in lines]
        for place, (line, request) in enumerate(zip(lines, own, strict=True)):
            with _told_where(line):
                check_values(request)
            for picture in self._pictures(0, line, request, once=True):
                loras = (*self.always, *self._tagged(picture.tags))
                if self.given is not None:
                    own[place], note = sped_up(request, self.given | line.fields.keys(), self.folder, loras)
                    self.notes[note] = None
        pictures = [picture for place, line in enumerate(lines) for picture in self._pictures(place, line, own[place])]
        keys = [_options(line) for line in lines]
        planned = 0
        for _, grouped in groupby(pictures, lambda picture: (keys[picture.line], picture.tags)):
            alike = list(grouped)
            with _told_where(lines[alike[0].line]):
                job = self._job(own[alike[0].line], alike, planned)
            planned += len(alike)
            yield job

    def _job(self, own: Request, pictures: Sequence[_Picture], planned: int) -> Job:
        """Plan pictures of the same options and LoRAs, behind so many others."""
        loras = (*self.always, *self._tagged(pictures[0].tags))
        request = replace(
            own,
            prompts=tuple(picture.prompt for picture in pictures),
            negative_prompt=own.negative_prompt and self._said(own.negative_prompt, own),
            seed=pictures[0].seed,
            seeds=tuple(picture.seed for picture in pictures),
            variation_seed=pictures[0].variation_seed,
            variation_seeds=_all_or_none(picture.variation_seed for picture in pictures),
            num_images=1,
        )
        ahead = self.once_checked if not planned and not loras else lambda _: None
        resolved = resolve_defaults(request, self.folder, ahead)
        used = [UsedFile(lora.name, lora.hash, lora.unet_weight) for lora in loras]
        record = picture_record(resolved, self.folder, self.used, used)
        written = {picture.prompt: picture.written for picture in pictures}
        numbers = range(planned, planned + len(pictures))
        return Job(self.folder.path, resolved, written, loras, record, numbers, self.lora_files)

    def _tagged(self, tags: tuple[LoraTag, ...]) -> list[Lora]:
        if tags and self.lora_files is None:
            raise UsageError(f"{tags[0].written}: nothing opens LoRAs here; give `lora_files`")
        opened = self.lora_files
        if opened is not None and tags not in self.opened:  # Their folders are looked through for each.
            self.opened[tags] = [opened.tagged(t.written, t.name, t.text_weight, t.unet_weight) for t in tags]
        return self.opened.get(tags, [])

    def _pictures(self, number: int, line: PromptLine, request: Request, *, once: bool = False) -> Iterator[_Picture]:
        for more in range(1 if once else request.num_images):
            seed, varied = request.seeds_of(more, request.seed, request.variation_seed)
            try:
                written = self.wildcards.resolve(line.prompt, seed)
                prompt, tags = take_lora_tags(written)
            except UsageError as error:
                raise UsageError(f"{line.place or 'prompt'}: {error}") from error
            yield _Picture(number, self._said(prompt, request), written, seed, varied, tags)

    def _said(self, prompt: str, request: Request) -> str:
        """Return what is left to the text encoders, of which those with emphasis take escapes themselves."""
        return prompt if request.prompt_weights and self.folder.family.prompt_syntax else without_escapes(prompt)


@contextlib.contextmanager
def _told_where(line: PromptLine) -> Iterator[None]:
    """Have what is refused of a line say which it is."""
    try:
        yield
    except UsageError as error:
        if line.place is None:
            raise
        raise UsageError(f"{line.place}: {error}") from error


def _all_or_none(seeds: Iterable[int | None]) -> tuple[int, ...] | None:
    found = tuple(seed for seed in seeds if seed is not None)
    return found or None


def _options(line: PromptLine) -> tuple[tuple[str, object], ...]:
    """Return what must be equal for two lines to be drawn together."""
    return tuple(sorted((key, value) for key, value in line.fields.items() if key not in ("seed", "num_images")))

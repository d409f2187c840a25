"""What `olivelike generate` draws: jobs with all choices made, put together where they can be drawn together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.runtime.pipeline.request import SEEDS
from olivelike.runtime.pipeline.resolve_defaults import settle
from olivelike.runtime.prompts import shortened, take_lora_tags, unread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from olivelike.cli.commands.generate_prompts import PromptLine
    from olivelike.cli.commands.live_loras import LiveLora, LiveLoras
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.prompts import LoraTag, Wildcards

RANDOM: Final = -1
"""The seed that draws one, as in A1111."""


@dataclass(frozen=True, eq=False)
class Work:
    """Pictures that one request makes with the same LoRAs."""

    request: Request
    """Settled."""
    shown: Mapping[str, str]
    """The request's prompts with the tags that were taken out of them."""
    loras: tuple[LiveLora, ...]

    @property
    def batches(self) -> int:
        """How many batches it takes."""
        return -(-len(self.request.jobs) // self.request.batch_size)

    @property
    def merging(self) -> tuple[tuple[object, ...], ...]:
        """What tells its LoRAs from those of others."""
        return tuple((lora.file.path, lora.text_weight, lora.unet_weight) for lora in self.loras)

    def prompts(self, batch: int) -> list[str]:
        """Return the prompts of a batch, counted from 1, each once."""
        first = (batch - 1) * self.request.batch_size
        jobs = self.request.jobs[first : first + self.request.batch_size]
        return list(dict.fromkeys(self.shown[prompt] for prompt, _ in jobs))


@dataclass(frozen=True)
class _Job:
    place: int
    """Of its line, whose options it has."""
    prompt: str
    shown: str
    seed: int
    tags: tuple[LoraTag, ...]


def drawn_seed() -> int:
    """Return a seed by chance."""
    return secrets.randbelow(SEEDS)


def plan_work(
    request: Request,
    lines: Sequence[PromptLine],
    folder: PipelineFolder,
    wildcards: Wildcards,
    loras: LiveLoras,
    always: Sequence[LiveLora],
) -> list[Work]:
    """Make the choices that prompts leave to the seed, open the LoRAs that they name, and check what they ask for.

    Args:
        request: what holds for all lines.
        lines: the prompts, with options of their own.
        folder: the pipeline.
        wildcards: files of choices.
        loras: those that prompts may name.
        always: those that every prompt gets.

    Raises:
        UsageError: for a value that can't be had.
        SourceError: if a LoRA or a file is missing.
    """
    if not lines:
        settle(request, folder)  # It says that there is no prompt.
    base = replace(request, seed=drawn_seed() if request.seed in (None, RANDOM) else request.seed)
    asked_for = [_own_request(base, line) for line in lines]
    for line, asked in zip(lines, asked_for, strict=True):
        _check_prompt(line, asked, wildcards, loras)
    own = [_checked(asked, line, folder) for line, asked in zip(lines, asked_for, strict=True)]
    jobs = [job for place, line in enumerate(lines) for job in _jobs(place, line, own[place], wildcards)]
    works = []
    for _, grouped in groupby(jobs, lambda job: (_options(lines[job.place].options), job.tags)):
        together = list(grouped)
        asked = replace(
            own[together[0].place],
            prompts=tuple(job.prompt for job in together),
            seeds=tuple(job.seed for job in together),
            num_images=1,
        )
        tagged = [loras.tagged(tag) for tag in together[0].tags]
        shown = {job.prompt: job.shown for job in together}
        works.append(Work(settle(asked, folder), shown, (*always, *tagged)))
    return works


def unread_notes(lines: Sequence[PromptLine], request: Request, wildcards: Wildcards) -> Iterator[str]:
    """Return a line for each prompt that has what other programs read, and for the negative prompt."""
    if not request.prompt_weights:
        return
    for prompt in dict.fromkeys(line.prompt for line in lines):
        if note := unread(prompt, wildcards):
            yield note
    negatives = (line.options.get("negative_prompt", request.negative_prompt) for line in lines)
    for prompt in dict.fromkeys(negatives):
        if prompt and (note := unread(prompt, wildcards, negative=True)):
            yield note


def _check_prompt(line: PromptLine, request: Request, wildcards: Wildcards, loras: LiveLoras) -> None:
    """Refuse a prompt whose first picture can't be had; settling a request imports torch."""
    for job in _jobs(0, line, replace(request, num_images=1), wildcards):
        for tag in job.tags:
            loras.tagged(tag)


def _own_request(base: Request, line: PromptLine) -> Request:
    options = dict(line.options)
    if options.get("seed") == RANDOM:
        options["seed"] = drawn_seed()
    return replace(base, **options, prompts=(line.prompt,))


def _checked(own: Request, line: PromptLine, folder: PipelineFolder) -> Request:
    """Check what a line asks for, before any picture is made."""
    try:
        settle(own, folder)
    except UsageError as error:
        if line.place is None:
            raise
        raise UsageError(f"{line.place}: {error}") from error
    return own


def _jobs(place: int, line: PromptLine, request: Request, wildcards: Wildcards) -> Iterator[_Job]:
    assert request.seed is not None
    for number in range(request.num_images):
        seed = (request.seed + number) % SEEDS
        prompt = shown = line.prompt
        tags: tuple[LoraTag, ...] = ()
        if request.prompt_weights:
            try:
                shown = wildcards.resolve(line.prompt, seed)
                prompt, tags = take_lora_tags(shown)
            except UsageError as error:
                where = line.place or f"prompt '{shortened(line.prompt)}'"
                raise UsageError(f"{where}: {error}") from error
        yield _Job(place, prompt, shown, seed, tags)


def _options(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return what must be equal for two lines to be drawn together."""
    return tuple((name, options[name]) for name in sorted(options) if name not in ("seed", "num_images"))

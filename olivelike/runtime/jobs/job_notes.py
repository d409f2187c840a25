"""Notes for the user on jobs that are not drawn yet, and the records that their pictures carry."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Final

from olivelike._files import file_identity
from olivelike._installed import own_version
from olivelike._text import count, size
from olivelike.digest import digest_file
from olivelike.errors import UsageError
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.pictures import PictureRecord, UsedFile
from olivelike.runtime.pictures.left_out import left_out
from olivelike.runtime.pipeline.hires import hires_size
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, recorded_facts
from olivelike.runtime.pipeline.prompt_cost import batch_texts
from olivelike.runtime.pipeline.request import (
    PICTURE_FIELDS,
    RESAMPLED,
    Pictures,
    Request,
    RequestFields,
    ResolvedRequest,
    asked_fields,
    fields_that_need,
    with_image,
    with_meaning,
)
from olivelike.runtime.prompts.syntax import shortened
from olivelike.runtime.prompts.wildcards import Wildcards
from olivelike.runtime.schedulers.scheduler_names import CLASSES, sampler_of

HASH_DIGITS: Final = 10
"""Digits of a checkpoint's SHA-256, as A1111 prints it."""
_OTHERWISE: Final = frozenset({"seed", "scheduler", "upscaler", *PICTURE_FIELDS})
_ALIKE: Final = tuple(
    one.name for one in fields(Request) if one.name in PictureRecord.__dataclass_fields__ and one.name not in _OTHERWISE
)
"""Fields that a request and a record both have, in the same form."""


def picture_record(
    request: ResolvedRequest, folder: PipelineFolder, used: Pictures[UsedFile], loras: Sequence[UsedFile]
) -> PictureRecord:
    """Return what all pictures of a request have in common, as far as it is known before networks are open.

    Args:
        used: files of the request's pictures.
        loras: on top of the folder.
    """
    scheduler, sampler, schedule = _sampling(request.scheduler, json.dumps(folder.scheduler))
    alike: RequestFields = {name: getattr(request, name) for name in _ALIKE}
    controls = [with_image(one, named.image) for one, named in zip(request.controls, used.controls, strict=True)]
    alike |= {**used.given(), "controls": tuple(controls)}
    return PictureRecord(
        **with_meaning(alike, ()),
        prompt=request.prompts[0],
        seed=request.seed,
        scheduler=scheduler,
        sampler=sampler,
        schedule=schedule,
        width=request.size[0],
        height=request.size[1],
        upscaler=None if request.upscaler is None else used_upscaler(request.upscaler),
        model=os.path.basename(os.path.realpath(folder.path)),  # noqa: PTH119  (a server asks for each picture)
        model_hash=folder.recorded.sha256[:HASH_DIGITS] or None,
        loras=tuple(loras),
        version=_program(),
    )


@lru_cache(maxsize=64)
def _sampling(name: str | None, config: str) -> tuple[str | None, str, str | None]:
    """Return the scheduler's name that makes it again, and A1111's sampler and schedule type."""
    from olivelike.runtime.schedulers.class_settings import scheduler_settings

    chosen = scheduler_settings(name, json.loads(config))
    own = chosen.class_name
    return name or (own if own in CLASSES else None), *sampler_of(own, chosen.settings)


@lru_cache(maxsize=1)
def _program() -> str:
    return f"olivelike {own_version()}"


def used_upscaler(path: Path) -> UsedFile:
    """Return an upscaler's name and hash for the record; one of `RESAMPLED` is no file."""
    if str(path) in RESAMPLED:
        return UsedFile(str(path))
    return UsedFile(path.name, _file_hash(path, file_identity(path.stat())))


@lru_cache(maxsize=16)
def _file_hash(path: Path, _identity: tuple[int, ...]) -> str:
    return digest_file(path)


def recorded_fields(record: PictureRecord, given: Collection[str]) -> RequestFields:
    """Return what a picture's record says of the request that makes it again.

    `given` are fields of the request that are there beside it, such as `init_image`: A1111 writes a strength without
    one too.
    """
    values = {name: getattr(record, name) for name in (*_ALIKE, "scheduler", "seed")}
    if record.width and record.height:
        values["size"] = record.width, record.height
    if record.upscaler is not None and record.upscaler.name in RESAMPLED:
        values["upscaler"] = Path(record.upscaler.name)
    return {name: value for name, value in with_meaning(values, given).items() if value is not None}


_NO_CHOICES: Final = "choices are made in prompts alone"
_NO_FILE: Final = "no such file in wildcards/; --wildcard-dir names another folder"
_OPTIONS: Final = "|".join(
    re.escape(name).replace(r"\-", "[-_]")
    for name in sorted({
        "prompt", "negative-prompt", "cfg-scale", "sampler-name", "n-iter", "batch-size", "width", "height",  # A1111's
        *(name for _, asked in asked_fields() for name in (asked.name, *asked.aliases)),
    }, key=len, reverse=True)
)  # fmt: skip
"""Options of a line, and A1111's, each as `-` or `_` joins its words; longer ones first."""
_UNREAD: Final = (
    (re.compile(r"(?<!\\)<(?!lora:|lyco:)[a-zA-Z_]+:[^<>\s][^<>]*>"), "there is no such extra network here"),
    (re.compile(r"(?<![\w\\])embedding:[\w./-]+"), "write a textual inversion as its token alone"),
    (re.compile(r"(?<!\\)\$\{[^{}]*\}"), "variables are not read"),
    (re.compile(rf"(?<!\S)--(?:{_OPTIONS})(?![\w-])"), "in a file a line of options begins with --prompt"),
    (re.compile(r"(?<!\S)--(?:n|w|h|d|s|l|ss)(?=\s)"), "options behind a prompt are read in files"),
)  # fmt: skip
_NEGATIVE: Final = (
    (re.compile(r"(?<!\\)<(?:lora|lyco):[^<>]+>"), "a LoRA is named in the prompt"),
    (re.compile(r"(?<!\\)\bAND\b"), "only prompts are composed; `and` in small letters is the word"),
    (re.compile(r"(?<!\\)\{[^{}|]*\|[^{}]*\}"), _NO_CHOICES),
)

LARGE: Final = 4
"""Times the UNet's own area: 1024x1024 for SD 1.5, up to which people enlarge pictures and wait."""
_EXACT: Final = 1000
"""From here on three digits would be written with an exponent."""


def unread_notes(lines: Sequence[PromptLine], request: Request, wildcards: Wildcards) -> Iterator[str]:
    """Return a line for each prompt that has what other programs read, and for the negative prompt."""
    plain = not request.prompt_weights
    for prompt in dict.fromkeys(line.prompt for line in lines):
        if note := unread(prompt, wildcards, plain=plain):
            yield note
    negatives = (line.fields.get("negative_prompt", request.negative_prompt) for line in lines)
    for negative in dict.fromkeys(negatives):
        if negative and (note := unread(negative, wildcards, negative=True, plain=plain)):
            yield note


def unread(prompt: str, wildcards: Wildcards, *, negative: bool = False, plain: bool = False) -> str | None:
    """Return one line on what in a prompt looks like syntax and is taken as words; `None` if there is nothing.

    A `negative` prompt has less syntax, and a `plain` one, without emphasis, choices alone.
    """
    unread_here = unread_words(prompt, wildcards, negative=negative, plain=plain)
    found = [f"{words} ({why})" for words, why in unread_here]
    if not found:
        return None
    what = "the negative prompt" if negative else f"the prompt '{shortened(prompt)}'"
    return f"{what}: taken as words: {', '.join(found)}; a backslash before it says that it is meant so"


def unread_words(
    prompt: str, wildcards: Wildcards, *, negative: bool = False, plain: bool = False, no_file: str = _NO_FILE
) -> dict[tuple[str, str], None]:
    """Return what in a prompt looks like syntax and is taken as words, each once with the reason.

    Args:
        prompt: the text.
        wildcards: files that names stand for.
        negative: whether it is a negative prompt, which has less syntax.
        plain: whether brackets and the like are words, so that of all syntax there are LoRAs and choices.
        no_file: the reason where no file has a name.
    """
    found = [
        (match[0], why)
        for pattern, why in (*_UNREAD, *(_NEGATIVE if negative else ()))
        if why == _NO_CHOICES or not plain
        for match in pattern.finditer(prompt)
    ]
    unknown = Wildcards(()).unknown(prompt) if negative else wildcards.unknown(prompt)
    found += [(name, _NO_CHOICES if negative else no_file) for name in unknown]
    return dict.fromkeys(found)


def guidance_notes(requests: Iterable[ResolvedRequest], folder: PipelineFolder) -> Iterator[str]:
    """Return a line for each of what is asked of guidance that would be without effect."""
    requests = list(requests)
    if not folder.takes_negative_prompt and not folder.takes_guidance and any(one.guided for one in requests):
        yield f"the guidance scale is not used: this {folder.family.title} was distilled to draw without"
    unled = [one for one in requests if not batch_texts(one.prompts, one, folder).guided]
    about = fields_that_need("guidance")
    idle = [name for name in about if any(getattr(one, name) != getattr(Request, name) for one in unled)]
    negative = any(one.negative_prompt for one in (requests if folder.takes_guidance else unled))
    named = [*(["the negative prompt"] if negative else []), *idle]
    if not named:
        return
    what = f"{', '.join(named)}: not used"
    if folder.takes_guidance:
        yield f"{what}: this UNet takes the guidance as an input, and runs on the prompt alone"
    else:
        scale = max(one.guidance_scale for one in unled)
        yield (
            f"{what}: at guidance {scale:g} nothing leads away from a negative prompt; take guidance above 1, if the "
            "model is made for it"
        )


def hires_notes(requests: Iterable[ResolvedRequest], folder: PipelineFolder) -> Iterator[str]:
    """Return a line for each second pass that is not as large as was asked for."""
    asked = dict.fromkeys((one.hires, one.size, hires_size(one, folder)) for one in requests)
    for times, (width, height), drawn in asked:
        if times is not None and drawn != (round(width * times), round(height * times)):
            yield (
                f"hires {times:g} of {width}x{height} is drawn at {drawn[0]}x{drawn[1]}, the nearest that this "
                "pipeline makes"
            )


def size_notes(requests: Iterable[ResolvedRequest], folder: PipelineFolder) -> Iterator[str]:
    """Return a line for each size of more than four times the area that the denoiser was trained on.

    Its convolutions take time by the area and its self-attention by the square of it, so that the ratio of the
    areas is the least, and its square the most. The VAE decoder holds two tensors at full size before its last
    convolutions, in float32; that is told where it is more than half of what is free. Who asks for a second pass
    knows that it is large, and what the first drew once is not drawn several times.
    """
    import psutil

    own = folder.default_size
    sizes = dict.fromkeys(
        (
            hires_size(one, folder),
            1 if one.decode_singly else min(one.batch_size, len(one.seeded_prompts)),
            one.hires is not None,
        )
        for one in requests
    )
    for (width, height), pictures, again in sizes:  # Each once, in order; `pictures` are decoded at once.
        times = width * height / (own[0] * own[1])
        free, memory = psutil.virtual_memory().available, folder.decoder_memory((width, height), pictures)
        scarce = f"the VAE decoder takes at least {size(memory)} of memory ({size(free)} are free)"
        if times > LARGE and not again:
            yield (
                f"{width}x{height} is {_factor(times)} times the area that this model was trained on "
                f"({own[0]}x{own[1]}): a step takes {_factor(times)} to {_factor(times * times)} times as long, "
                + (f"{scarce}, " if 2 * memory > free else "")
                + "and what the prompt names is often drawn several times"
            )
        elif times > LARGE and 2 * memory > free:
            yield f"{width}x{height}: {scarce}"


def reference_notes(requests: Iterable[ResolvedRequest], folder: PipelineFolder) -> Iterator[str]:
    """Return a line for each set of references that is much more to attend to than the picture itself."""
    with_some = [one for one in requests if one.references]
    if not with_some:
        return
    from olivelike.runtime.pipeline.references import shown_size

    sets = dict.fromkeys((one.size, tuple(shown_size(image) for image in one.references)) for one in with_some)
    for drawn, sizes in sets:
        times = 1 + sum(map(folder.patches, sizes)) / folder.patches(drawn)
        if times > LARGE:
            yield (
                f"{count(len(sizes), 'reference')} beside {drawn[0]}x{drawn[1]}: a step takes at least "
                f"{_factor(times)} times as long as without, and up to {_factor(times * times)} times; smaller ones "
                "take less"
            )


def tile_notes(requests: Iterable[ResolvedRequest], folder: PipelineFolder) -> Iterator[str]:
    """Return a line if a VAE does not work on whole pictures: in strips, or in tiles where that is not possible."""
    side = min(folder.default_size)
    sizes = [size for one in requests if one.tiled_vae and max(size := hires_size(one, folder)) > side]
    if not sizes or folder.has_tiny_vae:
        return
    from olivelike.runtime.pipeline.strips import CutError, find_cut

    width, height = (pixels // folder.vae_factor for pixels in max(sizes, key=math.prod))
    latents = "latent_sample", folder.latent_channels or 4
    why = "as memory has no room for more or --tiled-vae says"
    try:
        find_cut(folder.model("vae_decoder"), latents, ("sample", 3), (height, width), {})
    except CutError as error:
        yield (
            f"the VAE works in tiles of {side}x{side}, {why}: each has tones of its own, which fade into each other; "
            f"it can't work in strips of the whole picture: {error}"
        )
    else:
        yield f"the VAE works in strips, {why}; the picture is the same but for rounding"


def _factor(times: float) -> str:
    return f"{times:.3g}" if times < _EXACT else f"{times:,.0f}"


def record_notes(record: PictureRecord, folder: Path, used: Pictures[UsedFile], loras: Sequence[UsedFile]) -> list[str]:
    """Return notes on what may make a picture another one than that of the record.

    Raises `UsageError` if the picture was made of files that are not given.

    Args:
        used: files of pictures.
        loras: on top of the folder.
    """
    here = recorded_facts(folder).sha256
    return [
        *image_notes(record, used),
        *_lora_notes(record, folder, loras),
        *model_notes(record, folder.resolve().name, here),
    ]


def image_notes(record: PictureRecord, used: Pictures[UsedFile]) -> Iterator[str]:
    """Return notes on initial picture, mask, and what is not taken over; the same as in `record_notes`."""
    for option, before, now in (
        ("--init-image", record.init_image, used.init_image), ("--mask", record.mask, used.mask),
    ):  # fmt: skip
        if before is not None and now is None:
            raise UsageError(
                f"the picture was made from {before.name}, which is not in it, and no picture beside it or here has "
                f"the same content; give it with {option}"
            )
        if before is not None and now is not None and before.hash != now.hash:
            yield f"the picture was made from {before.name}; {now.name} ({option}) has other content"
    yield from _left_out_notes(record, started=used.init_image is not None)


def _left_out_notes(record: PictureRecord, *, started: bool) -> Iterator[str]:
    """Return a line on what of a recipe is not taken over, and lines on options that come near it."""
    if (sentence := left_out(record, started=started)) is None:
        return
    yield sentence
    if record.strength is not None and record.init_image is None and not started:
        yield "the picture is made from the prompt alone; --init-image starts from a picture"
    other = record.other
    if "Hires upscale" in other and record.hires is None:
        strength = f":{other['Denoising strength']}" if "Denoising strength" in other else ""
        steps = other.get("Hires steps") or record.steps
        option = shortened(f"--hires {other['Hires upscale']}{strength} --hires-steps {steps}", 60)
        yield f"the second pass is left out; {option} draws one, with --upscaler FILE by an upscaler that you have"


def upscaler_notes(record: PictureRecord, now: UsedFile | None) -> Iterator[str]:
    """Return notes on what enlarges the picture; the same as in `record_notes`."""
    before = record.upscaler
    if before is not None and now is None:
        raise UsageError(f"the picture was enlarged by {before.name}, which is not in it; give it with --upscaler")
    if before is not None and now is not None and before.hash != now.hash:
        yield f"the picture was enlarged by {before.name}; {now.name} (--upscaler) has other content"


def _lora_notes(record: PictureRecord, folder: Path, loras: Sequence[UsedFile]) -> Iterator[str]:
    if record.loras and not loras:
        named = ", ".join(f"{lora.name}:{1 if lora.weight is None else lora.weight:g}" for lora in record.loras)
        raise UsageError(
            f"the picture was made with LoRAs that {folder} is used without: {named}; give them with --lora, "
            "or others in their place"
        )
    here = {lora.hash: lora for lora in loras}
    for lora in record.loras:
        now = here.pop(lora.hash, None)
        if now is None:
            yield f"the picture was made with the LoRA {lora.name}, which is not among those of --lora"
        elif lora.weight not in (None, now.weight):
            yield f"the picture was made with the LoRA {lora.name}:{lora.weight:g}, now its weight is {now.weight:g}"
    for lora in here.values():
        yield f"the picture was made without the LoRA {lora.name}"


def model_notes(record: PictureRecord, name: str, here: str) -> Iterator[str]:
    """Return notes on the model, of this name and hash, as in `record_notes`."""
    if record.model is not None and record.model != name:
        yield f"the picture was made with {record.model}, this is {name}"
    # A1111's older hashes, of 8 digits, are of a part of the file.
    made = record.model_hash or ""
    if len(here) >= len(made) >= HASH_DIGITS and not here.startswith(made):
        yield (f"the picture was made with a checkpoint of hash {made}, {name} with one of {here[:HASH_DIGITS]}")

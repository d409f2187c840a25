"""Between a request and the record that a picture carries."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.model.records.output import OutputRecord
from olivelike.runtime.pictures import PictureRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from olivelike.runtime.pictures import UsedFile
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.pipeline.result import Picture

_HASH_DIGITS: Final = 10
"""Of a checkpoint's SHA-256, as A1111 prints it."""


def picture_record(
    request: Request,
    folder: PipelineFolder,
    used: tuple[UsedFile | None, UsedFile | None],
    loras: Sequence[UsedFile],
) -> PictureRecord:
    """Return what all pictures of a request have in common, as far as it is known before networks are open.

    `of_picture` adds what is each picture's own.

    Args:
        request: settled.
        folder: that makes the pictures.
        used: initial picture and mask.
        loras: on top of the folder.
    """
    from olivelike.runtime.schedulers.make_scheduler import make_scheduler, sampler_name
    from olivelike.runtime.schedulers.scheduler_names import CLASSES

    assert request.size is not None
    scheduler = make_scheduler(request.scheduler, folder.scheduler)
    own = type(scheduler).__name__
    sampler, schedule = sampler_name(scheduler)
    return PictureRecord(
        prompt=request.prompts[0],
        seed=request.seed,
        negative_prompt=request.negative_prompt,
        steps=request.steps,
        scheduler=request.scheduler or (own if own in CLASSES else None),
        sampler=sampler,
        schedule=schedule,
        guidance_scale=request.guidance_scale,
        guidance_rescale=request.guidance_rescale,
        eta=request.eta,
        width=request.size[0],
        height=request.size[1],
        strength=request.strength,
        init_image=used[0],
        mask=used[1],
        fit=request.fit,
        clip_skip=request.clip_skip,
        prompt_weights=request.prompt_weights,
        model=folder.path.resolve().name,
        model_hash=(_checkpoint_hash(folder.path) or "")[:_HASH_DIGITS] or None,
        loras=tuple(loras),
        version=f"olivelike {version('olivelike')}",
    )


def of_picture(record: PictureRecord, picture: Picture, prompt: str) -> PictureRecord:
    """Return the record of one picture, whose prompt is `prompt` with the tags of LoRAs."""
    return replace(record, prompt=prompt, seed=picture.seed)


def fill_from_record(request: Request, given: frozenset[str], record: PictureRecord) -> Request:
    """Take from a picture's record what the command line does not say.

    Args:
        request: what the command line says.
        given: names of the request's fields that it says.
        record: of the picture to make again.
    """
    size = (record.width, record.height) if record.width and record.height else None
    # Strength without an initial picture, as A1111 writes it for its upscaling, would be refused.
    strength = record.strength if request.init_image is not None else None
    values: dict[str, Any] = {
        "prompts": (record.prompt,),
        "negative_prompt": record.negative_prompt,
        "steps": record.steps,
        "guidance_scale": record.guidance_scale,
        "guidance_rescale": record.guidance_rescale,
        "scheduler": record.scheduler,
        "eta": record.eta,
        "seed": record.seed,
        "size": size,
        "fit": record.fit,
        "strength": strength,
        "clip_skip": record.clip_skip,
        "prompt_weights": record.prompt_weights,
    }
    taken = {name: value for name, value in values.items() if name not in given and value is not None}
    return replace(request, **taken)


def record_notes(
    record: PictureRecord,
    folder: Path,
    used: tuple[UsedFile | None, UsedFile | None],
    loras: Sequence[UsedFile],
) -> list[str]:
    """Return notes on what may make a picture another one than that of the record.

    Args:
        record: of the picture to make again.
        folder: the pipeline.
        used: initial picture and mask.
        loras: on top of the folder.

    Raises:
        UsageError: if the picture was made of files that are not given.
    """
    return [*_image_notes(record, used), *_lora_notes(record, folder, loras), *_model_notes(record, folder)]


def _image_notes(record: PictureRecord, used: tuple[UsedFile | None, UsedFile | None]) -> Iterator[str]:
    for option, before, now in zip(
        ("--init-image", "--mask"), (record.init_image, record.mask), used, strict=True
    ):
        if before is not None and now is None:
            raise UsageError(
                f"the picture was made from {before.name}, which is not in it, and no picture beside it or here has "
                f"the same content; give it with {option}"
            )
        if before is not None and now is not None and before.hash != now.hash:
            yield f"the picture was made from {before.name}; {now.name} ({option}) has other content"
    if record.strength is not None and record.init_image is None and used[0] is None:
        yield (
            f"the picture has strength {record.strength:g}, as one that was made from a picture or enlarged, but does "
            "not say from which; it is made from the prompt alone (--init-image starts from a picture)"
        )


def _lora_notes(record: PictureRecord, folder: Path, loras: Sequence[UsedFile]) -> Iterator[str]:
    if record.loras and not loras:
        named = ", ".join(
            f"{lora.name}:{1 if lora.weight is None else lora.weight:g}" for lora in record.loras
        )
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


def _model_notes(record: PictureRecord, folder: Path) -> Iterator[str]:
    name = folder.resolve().name
    if record.model is not None and record.model != name:
        yield f"the picture was made with {record.model}, this is {name}"
    # A1111's older hashes, of 8 digits, are of a part of the file.
    made, here = record.model_hash or "", _checkpoint_hash(folder) or ""
    if here and len(made) >= _HASH_DIGITS and not here.startswith(made):
        yield (
            f"the picture was made with a checkpoint of hash {made}, {name} with one of {here[:_HASH_DIGITS]}"
        )


def _checkpoint_hash(folder: Path) -> str | None:
    """Return the SHA-256 of the checkpoint that a folder was made of, if that was a single file."""
    record = OutputRecord.read(folder)
    return record.source.sha256 if record is not None else None

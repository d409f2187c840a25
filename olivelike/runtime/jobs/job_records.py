"""Between a request and the record that its pictures carry."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, cast

from olivelike._untrusted import read_json
from olivelike.runtime.pictures import PictureRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from olivelike.runtime.pictures import UsedFile
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request, RequestFields

HASH_DIGITS: Final = 10
"""Of a checkpoint's SHA-256, as A1111 prints it."""


def picture_record(
    request: Request,
    folder: PipelineFolder,
    used: tuple[UsedFile | None, UsedFile | None],
    loras: Sequence[UsedFile],
) -> PictureRecord:
    """Return what all pictures of a request have in common, as far as it is known before networks are open.

    Args:
        request: with nothing left open.
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
        model_hash=checkpoint_hash(folder.path)[:HASH_DIGITS] or None,
        loras=tuple(loras),
        version=f"olivelike {version('olivelike')}",
    )


def recorded_fields(record: PictureRecord, *, from_image: bool) -> RequestFields:
    """Return what a picture's record says of the request that makes it again.

    Args:
        record: of the picture.
        from_image: whether there is an initial picture. A1111 writes a strength for its upscaling without one.
    """
    values = {
        "negative_prompt": record.negative_prompt,
        "steps": record.steps,
        "guidance_scale": record.guidance_scale,
        "guidance_rescale": record.guidance_rescale,
        "scheduler": record.scheduler,
        "eta": record.eta,
        "seed": record.seed,
        "size": (record.width, record.height) if record.width and record.height else None,
        "fit": record.fit,
        "strength": record.strength if from_image else None,
        "clip_skip": record.clip_skip,
        "prompt_weights": record.prompt_weights,
    }
    known = {name: value for name, value in values.items() if value is not None}
    return cast("RequestFields", known)


def checkpoint_hash(folder: Path) -> str:
    """Return the SHA-256 of the checkpoint that a folder was made from; empty if it does not say."""
    try:
        record: Any = read_json(folder / "olivelike.json")
        return str(record["source"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""

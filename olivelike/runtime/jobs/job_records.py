"""Between a request and the record that its pictures carry."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from olivelike.model.records.output import OutputRecord
from olivelike.runtime.pictures import PictureRecord, UsedFile

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request, RequestFields

HASH_DIGITS: Final = 10
"""Of a checkpoint's SHA-256, as A1111 prints it."""
_ALIKE: Final = (
    "negative_prompt", "steps", "guidance_scale", "guidance_rescale", "eta", "strength", "fit", "clip_skip",
    "prompt_weights",
)  # fmt: skip
"""Fields that a request and a record both have."""


def picture_record(
    request: Request, folder: PipelineFolder, used: tuple[UsedFile | None, UsedFile | None], loras: Sequence[UsedFile]
) -> PictureRecord:
    """Return what all pictures of a request have in common, as far as it is known before networks are open.

    Args:
        request: with nothing left open.
        folder: that makes the pictures.
        used: initial picture and mask.
        loras: on top of the folder.
    """
    from olivelike.runtime.schedulers.make_scheduler import make_scheduler
    from olivelike.runtime.schedulers.scheduler_names import CLASSES, sampler_of

    assert request.size is not None
    scheduler = make_scheduler(request.scheduler, folder.scheduler)
    own = type(scheduler).__name__
    sampler, schedule = sampler_of(own, scheduler.config)
    alike: dict[str, Any] = {name: getattr(request, name) for name in _ALIKE}
    return PictureRecord(
        **alike,
        prompt=request.prompts[0],
        seed=request.seed,
        scheduler=request.scheduler or (own if own in CLASSES else None),
        sampler=sampler,
        schedule=schedule,
        width=request.size[0],
        height=request.size[1],
        init_image=used[0],
        mask=used[1],
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
    values = {name: getattr(record, name) for name in (*_ALIKE, "scheduler", "seed")}
    if record.width and record.height:
        values["size"] = record.width, record.height
    if not from_image:
        del values["strength"]
    return cast("RequestFields", {name: value for name, value in values.items() if value is not None})


def checkpoint_hash(folder: Path) -> str:
    """Return the SHA-256 of the checkpoint that a folder was made from; empty if it does not say."""
    record = OutputRecord.read(folder)
    return (record.source.sha256 or "") if record is not None else ""

"""Between a request and the record that a picture carries."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from olivelike.errors import UsageError
from olivelike.runtime.pictures import PictureRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from olivelike.runtime.folder import PipelineFolder
    from olivelike.runtime.pictures import UsedFile
    from olivelike.runtime.request import Request
    from olivelike.runtime.result import Picture


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
    from olivelike.runtime.schedulers import make_scheduler, sampler_name

    assert request.size is not None
    scheduler = make_scheduler(request.scheduler, folder.scheduler)
    sampler, schedule = sampler_name(scheduler)
    provenance = _provenance(folder.path)
    return PictureRecord(
        prompt=request.prompts[0],
        seed=request.seed,
        negative_prompt=request.negative_prompt,
        steps=request.steps,
        scheduler=request.scheduler or type(scheduler).__name__,
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
        clip_skip=request.clip_skip,
        prompt_weights=request.prompt_weights,
        model=folder.path.resolve().name,
        model_hash=str(provenance["sha256"])[:10] if "sha256" in provenance else None,
        loras=tuple(loras),
        version=f"olivelike {version('olivelike')}",
    )


def of_picture(record: PictureRecord, picture: Picture) -> PictureRecord:
    """Return the record of one picture."""
    return replace(record, prompt=picture.prompt, seed=picture.seed)


def fill_from_record(
    request: Request, given: frozenset[str], record: PictureRecord, folder: Path, loras: Sequence[UsedFile]
) -> tuple[Request, list[str]]:
    """Take from a picture's record what the command line does not say.

    Args:
        request: what the command line says.
        given: names of the request's fields that it says.
        record: of the picture to make again.
        folder: the pipeline.
        loras: named on the command line.

    Returns:
        The request, and notes on what may make the picture another one.

    Raises:
        UsageError: if the picture was made of files that are not given.
    """
    for field, option, used in (
        ("init_image", "--init-image", record.init_image),
        ("mask", "--mask", record.mask),
    ):
        if used is not None and field not in given:
            raise UsageError(
                f"the picture was made from {used.name}, which is not in it; give it with {option}"
            )
    _check_loras(record, folder, loras)
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
        "strength": strength,
        "clip_skip": record.clip_skip,
        "prompt_weights": record.prompt_weights,
    }
    taken = {name: value for name, value in values.items() if name not in given and value is not None}
    return replace(request, **taken), _notes(record, folder)


def _check_loras(record: PictureRecord, folder: Path, loras: Sequence[UsedFile]) -> None:
    here = {lora.hash for lora in loras}
    missing = [lora for lora in record.loras if lora.hash not in here]
    if missing and not loras:
        named = ", ".join(f"{lora.name}:{1 if lora.weight is None else lora.weight:g}" for lora in missing)
        raise UsageError(
            f"the picture was made with LoRAs that {folder} is used without: {named}; give them with --lora, "
            "or others in their place"
        )


def _notes(record: PictureRecord, folder: Path) -> list[str]:
    name = folder.resolve().name
    if record.model is not None and record.model != name:
        return [f"the picture was made with {record.model}, this is {name}"]
    return []


def _provenance(folder: Path) -> dict[str, Any]:
    try:
        source = json.loads((folder / "olivelike.json").read_bytes())["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return source if isinstance(source, dict) else {}

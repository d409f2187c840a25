"""What `olivelike info` says of a picture."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.runtime.pictures import PictureFile, UsedFile


def picture_json(picture: PictureFile) -> dict[str, Any]:
    """Return what a picture file says of itself as JSON values."""
    return {
        "kind": "picture",
        "format": picture.format,
        "width": picture.width,
        "height": picture.height,
        "record_of": None if picture.record is None else "olivelike" if picture.own else "A1111",
        "record": None if picture.record is None else asdict(picture.record),
        "parameters": picture.parameters,
    }


def picture_lines(picture: PictureFile) -> Iterator[str]:
    """Return what a picture file says of itself, a line for each fact."""
    yield f"{picture.path}: a picture, {picture.format}, {picture.width}x{picture.height}"
    record = picture.record
    if record is None:
        yield "It has no record of what made it."
        return
    facts = {
        "prompt": record.prompt,
        "negative": record.negative_prompt,
        "steps": record.steps,
        "scheduler": record.scheduler or record.sampler,
        "guidance": record.guidance_scale,
        "seed": record.seed,
        "made at": f"{record.width}x{record.height}" if record.width else None,
        "strength": record.strength,
        "started from": _used(record.init_image),
        "mask": _used(record.mask),
        "rescale": record.guidance_rescale or None,
        "eta": record.eta or None,
        "clip skip": record.clip_skip or None,
        "weights": None if record.prompt_weights else "brackets in the prompt are text",
        "model": " ".join(part for part in (record.model, record.model_hash) if part) or None,
        **{f"LoRA {number}": _used(lora) for number, lora in enumerate(record.loras, 1)},
        "provider": record.provider,
        "made by": record.version or (None if picture.own else "a program that writes as A1111 does"),
        **record.other,
    }
    for title, value in facts.items():
        if value is not None:
            yield f"{_shown(title):<14}{_shown(str(value))}".replace("\n", f"\n{'':14}")


def _shown(text: str) -> str:
    """Return text without what would steer the terminal: a picture may come from anyone."""
    return "\n".join(map(one_line, text.split("\n")))


def _used(file: UsedFile | None) -> str | None:
    if file is None:
        return None
    weight = f" at {file.weight:g}" if file.weight is not None else ""
    return f"{file.name}{weight}" + (f" ({file.hash})" if file.hash else "")

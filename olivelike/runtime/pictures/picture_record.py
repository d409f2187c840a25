"""What made a picture, as a value and as the JSON that is kept in the picture."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003  (pydantic reads the annotations)
from dataclasses import asdict, dataclass, field

from olivelike._untrusted import parse_json
from olivelike.errors import SourceError

_FORMAT = "olivelike/picture/1"


@dataclass(frozen=True)
class UsedFile:
    """A file that had a part in a picture, by name and content, never by its place on the machine."""

    name: str
    hash: str | None = None
    """Hexadecimal SHA-256 or its beginning; of a LoRA the first 12 digits of A1111's AutoV3."""
    weight: float | None = None
    """Of a LoRA."""


@dataclass(frozen=True)
class PictureRecord:
    """Everything that remakes a picture; `None` where a picture of another program does not tell."""

    prompt: str
    negative_prompt: str | None = None
    steps: int | None = None
    scheduler: str | None = None
    """A name that `find_scheduler` takes; `None` for a folder's own one that has none there."""
    sampler: str | None = None
    """A1111's name of it, without the schedule type; of a class without one, the class."""
    schedule: str | None = None
    """A1111's schedule type; `None` for the plain one."""
    guidance_scale: float | None = None
    guidance_rescale: float = 0.0
    eta: float = 0.0
    seed: int | None = None
    """Of this very picture."""
    width: int | None = None
    height: int | None = None
    strength: float | None = None
    """With an initial picture."""
    init_image: UsedFile | None = None
    mask: UsedFile | None = None
    clip_skip: int = 0
    """Last layers of the text encoder that are left out; A1111 counts one more."""
    prompt_weights: bool = True
    """Whether brackets in the prompts are weights."""
    model: str | None = None
    """Name of the pipeline's folder or checkpoint."""
    model_hash: str | None = None
    """First ten hexadecimal digits of the checkpoint's SHA-256, as A1111 has it."""
    loras: tuple[UsedFile, ...] = ()
    provider: str | None = None
    """Execution provider that ran the UNet."""
    version: str | None = None
    """Program that made it, such as `olivelike 0.1.0`."""
    other: Mapping[str, str] = field(default_factory=dict)
    """Further fields that A1111 wrote, as text."""
    fit: bool = False
    """Whether initial picture and mask were cropped to the size's shape."""

    def to_json(self) -> str:
        """Return the record as JSON in ASCII, with the name of its format."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, allow_nan=False)


def record_from_json(text: str, where: str) -> PictureRecord:
    """Read what `PictureRecord.to_json` wrote; fields of later versions are left out.

    Args:
        text: the JSON.
        where: the file, for messages.

    Raises:
        SourceError: if it is damaged, or of a format that this version does not know.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        value = parse_json(text, halves=True)
    except ValueError as error:
        raise SourceError(
            f"{where}: its record is no JSON: {error}; the file was changed or cut off"
        ) from error
    found = value.pop("format", None) if isinstance(value, dict) else None
    if found != _FORMAT:
        raise SourceError(
            f"{where}: its record has format {found!r}, this version reads {_FORMAT!r}; update olivelike, or fetch the "
            "file again"
        )
    try:
        record = TypeAdapter(PictureRecord).validate_python(value)
        record.to_json()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SourceError(f"{where}: its record is damaged at {place!r}: {first['msg']}") from error
    except ValueError as error:  # A whole number of 400 digits becomes infinity where a fraction is due.
        raise SourceError(
            f"{where}: its record is damaged: a number is too large; fetch the file again"
        ) from error
    return record

"""What made a picture, as a value, and as the two texts that are kept in the picture: JSON, and A1111's.

A1111's has prompt, negative prompt, and a last line of settings, as `create_infotext` of its `modules/processing.py`
writes them; `recipe_text` reads it.

Pictures as the bytes of a file, with what made them inside.

PNG: A1111's text under `parameters`, the JSON record under `olivelike`. JPEG and WebP: A1111's text as EXIF
`UserComment`, the record as `ImageDescription`. All: the mark of AI as XMP.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from olivelike._untrusted import parse_json
from olivelike.errors import SessionError, SourceError, UsageError
from olivelike.runtime.pictures.ai_mark import XMP_TEXT, source_type, xmp_packet

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from pydantic import TypeAdapter

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
class UsedControl:
    """A picture that led another one, by a ControlNet or a T2I-Adapter."""

    image: UsedFile
    net: str | None = None
    """Name of that in its pipeline."""
    strength: float = 1.0
    start: float = 0.0
    end: float = 1.0
    """From which to which share of the steps it led."""
    preprocessor: Literal["none", "canny"] = "none"


def _told(label: str, *, later: bool = False) -> Mapping[str, Any]:
    """Return metadata of a field: what `olivelike info` calls it; `later` is written only where it is not the default.

    So files of other pictures stay the same as before the field was.
    """
    return {"label": label, "later": later}


@dataclass(frozen=True)
class PictureRecord:
    """Everything that remakes a picture; `None` where a picture of another program does not tell."""

    prompt: str = field(metadata=_told("prompt"))
    negative_prompt: str | None = field(default=None, metadata=_told("negative"))
    steps: int | None = field(default=None, metadata=_told("steps"))
    scheduler: str | None = field(default=None, metadata=_told("scheduler"))
    """A name that `find_scheduler` takes; `None` for a folder's own one that has none there."""
    sampler: str | None = None
    """A1111's name of it, without the schedule type; of a class without one, the class."""
    schedule: str | None = None
    """A1111's schedule type; `None` for the plain one."""
    guidance_scale: float | None = field(default=None, metadata=_told("guidance"))
    guidance_rescale: float = field(default=0.0, metadata=_told("rescale"))
    eta: float = field(default=0.0, metadata=_told("eta"))
    seed: int | None = field(default=None, metadata=_told("seed"))
    """Of this very picture."""
    width: int | None = field(default=None, metadata=_told("made at"))
    height: int | None = None
    strength: float | None = field(default=None, metadata=_told("strength"))
    """With an initial picture."""
    init_image: UsedFile | None = field(default=None, metadata=_told("started from"))
    mask: UsedFile | None = field(default=None, metadata=_told("mask"))
    clip_skip: int = field(default=0, metadata=_told("clip skip"))
    """Last layers of the text encoder that are left out; A1111 counts one more."""
    prompt_weights: bool = field(default=True, metadata=_told("weights"))
    """Whether brackets in the prompts are weights."""
    model: str | None = field(default=None, metadata=_told("model"))
    """Name of the pipeline's folder or checkpoint."""
    model_hash: str | None = None
    """First ten hexadecimal digits of the checkpoint's SHA-256, as A1111 has it."""
    loras: tuple[UsedFile, ...] = field(default=(), metadata=_told("LoRA"))
    provider: str | None = field(default=None, metadata=_told("provider"))
    """Execution provider that ran the UNet."""
    version: str | None = field(default=None, metadata=_told("made by"))
    """Program that made it, such as `olivelike 0.1.0`."""
    other: Mapping[str, str] = field(default_factory=dict)
    """Further fields that A1111 wrote, as text."""
    guidance_interval: tuple[float, float] | None = field(default=None, metadata=_told("guidance from", later=True))
    """From which to which share of the steps there was guidance."""
    cache_interval: int = field(default=1, metadata=_told("whole UNet each", later=True))
    """Steps from one to the next in which the whole UNet ran."""
    fit: bool = field(default=False, metadata=_told("cropped to fit"))
    """Whether initial picture and mask were cropped to the size's shape."""
    variation_strength: float = field(default=0.0, metadata=_told("by a share of", later=True))
    """Share of another seed's noise in the initial noise."""
    variation_seed: int | None = field(default=None, metadata=_told("varied with", later=True))
    """That seed, of this very picture."""
    hires: float | None = field(default=None, metadata=_told("drawn again", later=True))
    """How many times as large it was drawn again."""
    hires_strength: float = field(default=0.7, metadata={"later": True})
    upscaler: UsedFile | None = field(default=None, metadata=_told("upscaler", later=True))
    """What enlarged it: between the two, with `hires`; else in the end."""
    inpaint_area: Literal["whole", "masked"] = field(default="whole", metadata=_told("drawn area", later=True))
    """`masked` was drawn around the mask alone, at the size."""
    mask_blur: int | None = field(default=None, metadata=_told("mask blur", later=True))
    """Pixels of the edge where the initial picture was put back; `None` if it was not."""
    inpaint_padding: int = field(default=32, metadata={"later": True})
    """Pixels around a masked area."""
    tiled_vae: bool = field(default=False, metadata=_told("VAE", later=True))
    """Whether the VAE worked on part of the picture at a time."""
    controls: tuple[UsedControl, ...] = field(default=(), metadata=_told("led by", later=True))
    """Pictures that led it."""
    control_guess: bool = field(default=False, metadata=_told("led", later=True))
    """Whether they led the prompt alone."""
    ip_adapter_images: tuple[UsedFile, ...] = field(default=(), metadata=_told("shown", later=True))
    """Pictures that were a prompt, by an IP-Adapter."""
    ip_adapter_scale: float = field(default=1.0, metadata=_told("shown with", later=True))
    """How strongly they led."""

    def to_json(self) -> str:
        """Return the record as JSON in ASCII, with the name of its format."""
        values = asdict(self)
        for one in fields(self):
            if one.metadata.get("later") and values[one.name] == one.default:
                del values[one.name]
        return json.dumps({"format": _FORMAT, **values}, allow_nan=False)


def record_from_json(text: str, where: str) -> PictureRecord:
    """Read what `PictureRecord.to_json` wrote; fields of later versions are left out.

    Raises `SourceError` if it is damaged, or of a format that this version does not know.
    """
    from pydantic import ValidationError

    try:
        # What halves of surrogate pairs have in UTF-8 is a question mark, as in `a1111_text`.
        whole = json.dumps(parse_json(text, halves=True), ensure_ascii=False).encode("utf-8", "replace")
        value = json.loads(whole)
    except ValueError as error:
        raise SourceError(f"{where}: its record is no JSON: {error}; the file was changed or cut off") from error
    found = value.pop("format", None) if isinstance(value, dict) else None
    if found != _FORMAT:
        raise SourceError(
            f"{where}: its record has format {found!r}, this version reads {_FORMAT!r}; update olivelike, or fetch the "
            "file again"
        )
    try:
        record = _validator().validate_python(value)
        record.to_json()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SourceError(f"{where}: its record is damaged at {place!r}: {first['msg']}") from error
    except ValueError as error:  # A whole number of 400 digits becomes infinity where a fraction is due.
        raise SourceError(f"{where}: its record is damaged: a number is too large; fetch the file again") from error
    return record


@lru_cache(maxsize=1)
def _validator() -> TypeAdapter[PictureRecord]:
    """Return what checks the fields of a record; making it takes as long as hundreds of uses."""
    from pydantic import TypeAdapter

    return TypeAdapter(PictureRecord)


NEGATIVE: Final = "Negative prompt:"
_PLAIN_SCHEDULE = "Uniform"
"""Always written: without a schedule type, A1111 has another one for many samplers."""
LATENT: Final = "Latent"
"""A1111's upscaler of latents."""
_RNG = "CPU"
"""Makes A1111 draw its noise as torch's generator on the CPU does."""


def a1111_text(record: PictureRecord) -> str:
    """Return the text that A1111 and what descends from it read."""
    lines = [record.prompt]
    if record.negative_prompt:
        lines.append(f"{NEGATIVE} {record.negative_prompt}")
    lines.append(", ".join(f"{name}: {_quote(value)}" for name, value in _settings(record)))
    # A PNG's text ends at a NUL, and a lone surrogate has no UTF-8.
    return "\n".join(lines).replace("\0", " ").encode("utf-8", "replace").decode()


def a1111_parameters(record: PictureRecord) -> dict[str, str]:
    """Return what A1111 reads in its text, by its names; the size as two numbers."""
    found = {"Prompt": record.prompt, "Negative prompt": record.negative_prompt or "", **dict(_settings(record))}
    found.pop("Size", None)
    if record.width and record.height:
        found |= {"Size-1": str(record.width), "Size-2": str(record.height)}
    return found


def _settings(record: PictureRecord) -> Iterator[tuple[str, str]]:
    size = f"{record.width}x{record.height}" if record.width and record.height else None
    hashes = ", ".join(f"{lora.name}: {lora.hash}" for lora in record.loras if lora.hash)
    pairs: tuple[tuple[str, Any], ...] = (
        ("Steps", record.steps),
        ("Sampler", record.sampler),
        ("Schedule type", (record.schedule or _PLAIN_SCHEDULE) if record.sampler else None),
        ("CFG scale", record.guidance_scale),
        ("CFG Rescale", record.guidance_rescale or None),
        ("Seed", record.seed),
        ("Size", size),
        ("Model hash", record.model_hash),
        ("Model", record.model),
        ("Denoising strength", record.strength if record.hires is None else record.hires_strength),
        ("Hires upscale", record.hires),
        ("Hires upscaler", (record.upscaler.name if record.upscaler else LATENT) if record.hires else None),
        ("Postprocess upscaler", record.upscaler.name if record.upscaler and not record.hires else None),
        ("Variation seed", record.variation_seed),
        ("Variation seed strength", record.variation_strength or None),
        ("Mask blur", record.mask_blur),
        ("Inpaint area", "Only masked" if record.inpaint_area == "masked" else None),
        ("Masked area padding", record.inpaint_padding if record.inpaint_area == "masked" else None),
        ("Clip skip", record.clip_skip + 1 if record.clip_skip else None),
        ("Eta", record.eta or None),
        ("Guidance interval", record.guidance_interval and "{:g}:{:g}".format(*record.guidance_interval)),
        ("Cache interval", record.cache_interval if record.cache_interval > 1 else None),
        ("Emphasis", None if record.prompt_weights else "None"),
        ("Lora hashes", hashes or None),
        *((f"ControlNet {number}", _control(one, record)) for number, one in enumerate(record.controls)),
        *(
            (f"ControlNet {number}", f"Module: ip-adapter-auto, Weight: {record.ip_adapter_scale:g}")
            for number, _ in enumerate(record.ip_adapter_images, len(record.controls))
        ),
    )
    other = {"RNG": _RNG, **record.other}
    for name, value in (*pairs, *other.items(), ("Version", record.version)):
        if value is not None:
            yield name, str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _control(control: UsedControl, record: PictureRecord) -> str:
    """Return what A1111's extension for ControlNets writes of a picture that led."""
    mode = "My prompt is more important" if record.control_guess else "Balanced"
    return (
        f"Module: {control.preprocessor}, Model: {control.net}, Weight: {control.strength:g}, "
        f"Guidance Start: {control.start:g}, Guidance End: {control.end:g}, Control Mode: {mode}"
    )


def _quote(text: str) -> str:
    if any(mark in text for mark in ",:\n\r") or text.startswith('"') or text != text.strip():
        return json.dumps(text, ensure_ascii=False)
    return text


FORMATS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""File format by suffix."""

PARAMETERS: Final = "parameters"
COMMENT: Final = "UserComment"
"""EXIF's, among the texts of a picture."""
RECORD: Final = "olivelike"
EXIF_IFD: Final = 0x8769
IMAGE_DESCRIPTION: Final = 0x010E
USER_COMMENT: Final = 0x9286
UNICODE: Final = b"UNICODE\0"
"""What a `UserComment` in UTF-16 begins with; EXIF 2.3, section 4.6.5."""

_QUALITY: Final = 95


def encode_picture(
    image: Image.Image,
    suffix: str,
    record: PictureRecord,
    *,
    sheet: bool = False,
    metadata: bool = True,
    quality: int = _QUALITY,
) -> bytes:
    """Return the bytes of a picture file. Raises `UsageError` if the format can't hold the picture or its text.

    Args:
        suffix: one of `FORMATS`.
        record: what made it.
        sheet: write A1111's text alone, as for a sheet of pictures, which no record remakes.
        quality: of JPEG and WebP, up to 100.
        metadata: write what made it; the mark that AI did is written in any case.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    form, xmp = FORMATS[suffix.lower()], xmp_packet(source_type(masked=record.mask is not None))
    buffer = io.BytesIO()
    try:
        if form == "PNG":
            chunks = PngInfo()
            if metadata:
                chunks.add_text(PARAMETERS, a1111_text(record))
                if not sheet:
                    chunks.add_itxt(RECORD, record.to_json())
            chunks.add_itxt(XMP_TEXT, xmp.decode())
            image.save(buffer, form, pnginfo=chunks)
        else:
            exif = Image.Exif()
            if metadata:
                exif.get_ifd(EXIF_IFD)[USER_COMMENT] = UNICODE + a1111_text(record).encode("utf-16-be")
                if not sheet:
                    exif[IMAGE_DESCRIPTION] = record.to_json()
            image.save(buffer, form, quality=quality, exif=exif, xmp=xmp)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"a picture of {image.width}x{image.height} can't be written as {form}: {error}; write a .png"
        ) from error
    return buffer.getvalue()


def to_pictures(pixels: np.ndarray, refuse: Callable[[], SessionError]) -> list[Image.Image]:
    """Return pictures for what a network made, rounded as diffusers' `VaeImageProcessor.numpy_to_pil` does.

    Raises what `refuse` returns if there are values that are no numbers, which networks in half precision can give.
    `pixels` are float32 of shape (n, height, width, 3), from 0 to 1.
    """
    import numpy as np
    from PIL import Image

    if not np.isfinite(pixels).all():
        raise refuse()
    return [Image.fromarray(picture) for picture in (pixels * 255).round().astype(np.uint8)]

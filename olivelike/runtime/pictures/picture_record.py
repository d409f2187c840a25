"""Record of what made a picture, as a value, and as the two texts that are kept in its file: JSON, and A1111's.

A1111's has prompt, negative prompt, and a last line of settings, as `create_infotext` of its `modules/processing.py`
writes them; `recipe_text` reads it.

In a PNG, A1111's text is under `parameters` and the JSON record under `olivelike`; in JPEG and WebP, the text is EXIF's
`UserComment` and the record its `ImageDescription`. All have the mark of AI as XMP.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, get_type_hints

from olivelike._untrusted import Json, parse_json
from olivelike.errors import SourceError, UsageError
from olivelike.runtime.pictures.ai_mark import XMP_TEXT, source_type, source_url, xmp_packet
from olivelike.runtime.pipeline.request import (
    LABELS,
    Control,
    Recorded,
    Told,
    Written,
    read_number,
    read_seed,
    read_whole,
    with_clip_layer,
)

if TYPE_CHECKING:
    from PIL import Image
    from pydantic import BaseModel


_FORMAT = "olivelike/picture/1"


@dataclass(frozen=True)
class UsedFile:
    """A file that had a part in a picture, by name and content, never by its place on the machine."""

    name: str
    hash: str | None = None
    """Hexadecimal SHA-256 or its beginning; of a LoRA the first 12 digits of A1111's AutoV3."""
    weight: float | None = None
    """Factor of a LoRA."""


def _read_loras(text: str) -> tuple[UsedFile, ...]:
    pairs = (pair.partition(":") for pair in text.split(",") if pair.strip())
    return tuple(UsedFile(name.strip(), value.strip() or None) for name, _, value in pairs)


def _told(
    default: Any,
    label: str | None = None,
    text: str | None = None,
    written: Written | None = None,
    *,
    later: bool = False,
    within: bool = False,
) -> Any:
    """Declare a field of a record; see `Told`. `later` is written only where it is not the default.

    What a request has too is called as there, without a `label`.
    """
    return field(default=default, metadata={"label": label, "told": Told(text, written, not later, within)})


@dataclass(frozen=True)
class PictureRecord(Recorded):
    """Everything that remakes a picture; `None` where a picture of another program does not tell."""

    prompt: str = field(metadata={"label": "Prompt", "told": Told(always=True)})
    negative_prompt: str | None = _told(None)
    steps: int | None = _told(None, written=Written("Steps", read_whole))
    scheduler: str | None = _told(None)
    """A name that `find_scheduler` takes; `None` for a folder's own one that has none there."""
    sampler: str | None = _told(None, written=Written("Sampler", str), within=True)
    """A1111's name of it, without the schedule type; of a class without one, the class."""
    schedule: str | None = _told(None, written=Written("Schedule type", str, None), within=True)
    """A1111's schedule type; `None` for the plain one."""
    guidance_scale: float | None = _told(None, written=Written("CFG scale", read_number))
    seed: int | None = _told(None, written=Written("Seed", read_seed))
    """Seed of this very picture."""
    width: int | None = _told(None, "Size", "{width}x{height}")
    height: int | None = _told(None, within=True)
    strength: float | None = _told(None, written=Written("Denoising strength", read_number, None))
    """With an initial picture."""
    init_image: UsedFile | None = _told(None, "Initial picture")
    mask: UsedFile | None = _told(None, "Mask")
    model: str | None = _told(None, "Model", written=Written("Model", str))
    """Name of the pipeline's folder or checkpoint."""
    model_hash: str | None = _told(None, written=Written("Model hash", str), within=True)
    """First ten hexadecimal digits of the checkpoint's SHA-256, as A1111 has it."""
    loras: tuple[UsedFile, ...] = _told((), "LoRA", written=Written("Lora hashes", _read_loras, None))
    provider: str | None = _told(None, "Provider")
    """Execution provider that ran the UNet."""
    version: str | None = _told(None, "Made by", written=Written("Version", str, None))
    """Program that made it, such as `olivelike 0.1.0`."""
    other: Mapping[str, str] = field(default_factory=dict, metadata={"told": Told(always=True, within=True)})
    """Further fields that A1111 wrote, as text."""
    upscaler: UsedFile | None = _told(None, "Upscaler", later=True)
    """Network that enlarged it: between the two, with `hires`; else in the end."""
    controls: tuple[Control[UsedFile], ...] = _told((), "ControlNet", later=True)
    """Pictures that led it."""
    ip_adapter_images: tuple[UsedFile, ...] = _told((), "IP-Adapter", later=True)
    """Pictures that were a prompt, by an IP-Adapter."""
    references: tuple[UsedFile, ...] = _told((), "Reference", later=True)
    """Pictures that the denoiser saw beside the text."""

    def to_json(self) -> str:
        """Return the record as JSON in ASCII, with the name of its format."""
        return self._json

    # A picture's file has both texts, and so has the gallery's index.
    @cached_property
    def _json(self) -> str:
        told = (one for one in fields_of_files() if told_of(one).always or getattr(self, one.name) != one.default)
        return json.dumps({"format": _FORMAT, **self._values(told)}, allow_nan=False)

    @cached_property
    def _parameters(self) -> str:
        return _a1111_text(self)

    def values(self) -> Json:
        """Return all fields as JSON has them, in the order of files."""
        return self._values(fields_of_files())

    def _values(self, told: Iterable[Field[Any]]) -> Json:
        return {one.name: _plain(getattr(self, one.name)) for one in told}


def _plain(value: Any) -> Any:
    """Return a field's value as JSON has it."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return asdict(value) if isinstance(value, UsedFile | Control) else value


_BEFORE: Final = {
    "guidance_rescale": "seed", "eta": "seed", "clip_layer": "model", "prompt_weights": "model",
    "upscaler": "inpaint_area", "controls": "control_guess", "ip_adapter_images": "ip_adapter_scale",
}  # fmt: skip
"""Fields that stand right before another one in files; all others as they are declared, those of records first."""


def told_of(one: Field[Any]) -> Told:
    """Return how a field of a record is told."""
    told: Told = one.metadata["told"]
    return told


def label_of(one: Field[Any]) -> str | None:
    """Return what a field of a record is called; `None` if it is told together with another one."""
    return None if told_of(one).within else one.metadata["label"] or LABELS[one.name]


def told_sampler(record: PictureRecord) -> str | None:
    """Return sampler and schedule type as people call them, or else the scheduler's name."""
    return " ".join(filter(None, (record.sampler, record.schedule))) if record.sampler else record.scheduler


@lru_cache(maxsize=1)
def fields_of_files() -> tuple[Field[Any], ...]:
    """Return the fields of a record in the order that files have."""
    shared = [one.name for one in fields(Recorded)]
    own = [one.name for one in fields(PictureRecord) if one.name not in shared]
    names = [name for name in (*own, *shared) if name not in _BEFORE]
    for name, behind in _BEFORE.items():
        names.insert(names.index(behind), name)
    by_name = {one.name: one for one in fields(PictureRecord)}
    return tuple(by_name[name] for name in names)


_LAST: Final = ("model", "loras", "provider", "version")


def told_in_words(record: PictureRecord) -> Iterator[tuple[str, str, str]]:
    """Yield field, label and text of all that a record tells, where it is not the default."""
    named = " ".join(part for part in (record.model, record.model_hash) if part)
    together = replace(record, scheduler=told_sampler(record), model=named or None)
    for one in sorted(fields_of_files(), key=lambda one: _LAST.index(one.name) if one.name in _LAST else -1):
        told, value = told_of(one), getattr(together, one.name)
        if (label := label_of(one)) is None or value == one.default:
            continue
        if isinstance(value, tuple) and told.text is None:
            yield from ((one.name, f"{label} {number}", _said(part)) for number, part in enumerate(value, 1))
        else:
            yield one.name, label, told.text.format_map(vars(record)) if told.text else _said(value)


def _said(value: Any) -> str:
    """Say a value: a file by name, weight and hash, a picture that led by how it did."""
    if isinstance(value, Control):
        from olivelike.runtime.pictures.preprocessors import PREPROCESSORS

        share = f", from {value.start:g} to {value.end:g} of the steps" if (value.start, value.end) != (0, 1) else ""
        made = f", {PREPROCESSORS[value.preprocessor].told}" if value.preprocessor in PREPROCESSORS else ""
        net = f", {value.net}" if value.net else ""
        return f"{_said(value.image)}{net}, strength {value.strength:g}{share}{made}"
    if isinstance(value, UsedFile):
        weight = f" at {value.weight:g}" if value.weight is not None else ""
        return f"{value.name}{weight}" + (f" ({value.hash})" if value.hash else "")
    return str(value)


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
        found = _validator().model_validate(with_clip_layer(value))
        record = PictureRecord(**{name: getattr(found, name) for name in found.model_fields_set})
        record.to_json()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise SourceError(f"{where}: its record is damaged at {place!r}: {first['msg']}") from error
    except ValueError as error:  # A whole number of 400 digits becomes infinity where a fraction is due.
        raise SourceError(f"{where}: its record is damaged: a number is too large; fetch the file again") from error
    return record


@lru_cache(maxsize=1)
def _validator() -> type[BaseModel]:
    """Return what checks the fields of a record; making it takes as long as hundreds of uses.

    Bounds of orders are left out: what was drawn may be beyond them.
    """
    from pydantic import create_model

    types = get_type_hints(PictureRecord)
    shape: dict[str, Any] = {
        one.name: (types[one.name], ... if one.default is MISSING and one.default_factory is MISSING else None)
        for one in fields(PictureRecord)
    }
    return create_model("PictureRecord", **shape)


NEGATIVE: Final = "Negative prompt:"
_FIRST: Final = (
    "Steps", "Sampler", "Schedule type", "CFG scale", "CFG Rescale", "Seed", "Size", "Model hash", "Model",
    "Denoising strength", "Hires upscale", "Hires steps", "Hires upscaler", "Postprocess upscaler", "Variation seed",
    "Variation seed strength", "Mask blur", "Inpaint area", "Masked area padding", "Clip skip", "Eta",
    "Guidance interval", "Cache interval", "Emphasis",
)  # fmt: skip
"""Order of settings in A1111's text; others come behind."""
_PLAIN_SCHEDULE = "Uniform"
"""Always written: without a schedule type, A1111 has another one for many samplers."""
LATENT: Final = "Latent"
"""A1111's upscaler of latents."""
_RNG = "CPU"
"""Makes A1111 draw its noise as torch's generator on the CPU does."""


def a1111_text(record: PictureRecord) -> str:
    """Return the text that A1111 and what descends from it read."""
    return record._parameters  # noqa: SLF001  (made once)


def _a1111_text(record: PictureRecord) -> str:
    lines = [_prompt(record)]
    if record.negative_prompt:
        lines.append(f"{NEGATIVE} {record.negative_prompt}")
    lines.append(", ".join(f"{name}: {_quote(value)}" for name, value in _settings(record)))
    # A PNG's text ends at a NUL, and a lone surrogate has no UTF-8.
    return "\n".join(lines).replace("\0", " ").encode("utf-8", "replace").decode()


def _prompt(record: PictureRecord) -> str:
    """Return the prompt with all LoRAs, as A1111 has them."""
    tags = [f"<lora:{one.name}:{one.weight:g}>" for one in unnamed_loras(record) if one.weight is not None]
    return " ".join(filter(None, (record.prompt, *tags)))


_LORA_TAG: Final = re.compile(r"(?<!\\)<(?:lora|lyco):([^:<>]+)")


def unnamed_loras(record: PictureRecord) -> list[UsedFile]:
    """Return the LoRAs that the prompt does not name itself."""
    named = {name.strip().rpartition("/")[2] for name in _LORA_TAG.findall(record.prompt)}
    return [lora for lora in record.loras if lora.name.rpartition("/")[2] not in named]


def a1111_parameters(record: PictureRecord) -> dict[str, str]:
    """Return what A1111 reads in its text, by its names; the size as two numbers."""
    found = {"Prompt": _prompt(record), "Negative prompt": record.negative_prompt or "", **dict(_settings(record))}
    found.pop("Size", None)
    if record.width and record.height:
        found |= {"Size-1": str(record.width), "Size-2": str(record.height)}
    return found


def _settings(record: PictureRecord) -> Iterator[tuple[str, str]]:
    plain = {
        written.name: written.write(value)
        for one in fields_of_files()
        if (written := told_of(one).written)
        and written.write
        and (value := getattr(record, one.name)) not in (one.default, None)
    }
    enlarged = record.upscaler.name.removesuffix(".onnx") if record.upscaler else None
    hashes = ", ".join(f"{lora.name}: {lora.hash}" for lora in record.loras if lora.hash)
    together = {
        "Schedule type": (record.schedule or _PLAIN_SCHEDULE) if record.sampler else None,
        "Size": f"{record.width}x{record.height}" if record.width and record.height else None,
        "Denoising strength": record.denoising_strength(record.strength),
        "Hires upscale": record.hires,
        "Hires steps": record.second_steps(record.steps) if record.hires and record.steps else None,
        "Hires upscaler": (enlarged or LATENT) if record.hires else None,
        "Postprocess upscaler": None if record.hires else enlarged,
        "Masked area padding": record.inpaint_padding if "Inpaint area" in plain else None,
    }
    found = {**together, **plain}
    pairs: tuple[tuple[str, Any], ...] = (
        *((name, found.pop(name, None)) for name in _FIRST),
        *found.items(),
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


def _control(control: Control[UsedFile], record: PictureRecord) -> str:
    """Return what A1111's extension for ControlNets writes of a picture that led."""
    mode = "ControlNet is more important" if record.control_guess else "Balanced"
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
"""Beginning of a `UserComment` in UTF-16; EXIF 2.3, section 4.6.5."""

_QUALITY: Final = 95
PNG_STRATEGY: Final = zlib.Z_RLE
"""Repeats nothing but the byte before: photographs as small as at zlib's level 4, in half the time."""


class PictureSigner(Protocol):
    """Somebody who signs pictures."""

    def signed(self, data: bytes, form: str, source_type: str, record: Json | None) -> bytes:
        """Return a picture's file with its signature.

        Args:
            data: The file.
            form: `PNG`, `JPEG` or `WEBP`.
            source_type: URL of its IPTC digital source type.
            record: What made it, if that is to be told.
        """


def encode_picture(
    image: Image.Image,
    suffix: str,
    record: PictureRecord,
    *,
    sheet: bool = False,
    metadata: bool = True,
    quality: int = _QUALITY,
    signer: PictureSigner | None = None,
) -> bytes:
    """Return the bytes of a picture file. Raises `UsageError` if the format can't hold the picture or its text.

    Args:
        suffix: one of `FORMATS`.
        record: what made it.
        sheet: write A1111's text alone, as for a sheet of pictures, which no record remakes.
        quality: of JPEG and WebP, up to 100.
        metadata: write what made it; the mark that AI did is written in any case.
        signer: signs the file, with the same record.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    form, kind = FORMATS[suffix.lower()], source_type(masked=record.mask is not None)
    xmp = xmp_packet(kind)
    buffer = io.BytesIO()
    try:
        if form == "PNG":
            chunks = PngInfo()
            if metadata:
                chunks.add_text(PARAMETERS, a1111_text(record))
                if not sheet:
                    chunks.add_itxt(RECORD, record.to_json())
            chunks.add_itxt(XMP_TEXT, xmp.decode())
            image.save(buffer, form, pnginfo=chunks, compress_type=PNG_STRATEGY)
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
    if signer is None:
        return buffer.getvalue()
    told = json.loads(record.to_json()) if metadata and not sheet else None
    return signer.signed(buffer.getvalue(), form, source_url(kind), told)

"""A1111's text of a picture, and those of its kin, read strictly: all of it is understood, or it is no recipe.

The form is that of `create_infotext` in A1111's `modules/processing.py`: prompt, `Negative prompt:`, and settings that
begin with `Steps:`. Others write it with other separators, with the settings on several lines, and with lines behind
them, such as `Template:` of sd-dynamic-prompts. What follows the settings is no part of a prompt. A text whose settings
are not found has no prompt: nobody can tell what of it is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Final

from olivelike._untrusted import Json, JsonView, one_line
from olivelike.errors import SourceError
from olivelike.runtime.pictures.picture_record import LATENT, NEGATIVE, PictureRecord, UsedFile, told_of
from olivelike.runtime.pipeline.request import RESAMPLED, RequestFields, hires_fields, read_number, read_whole
from olivelike.runtime.schedulers.scheduler_names import written_schedule

_LONGEST: Final = 65_536
"""Characters of settings that are read."""
_LONGEST_TEXT: Final = 1 << 20
_MOST_STARTS: Final = 100
_LEAST: Final = 3
"""Settings of known names that make a line one of settings."""
_LINE_END: Final = re.compile(r"\r\n?|\n")
_NEGATIVE_LINE: Final = re.compile(r"negative prompt:[ \t]*", re.IGNORECASE)
_NEGATIVE_INSIDE: Final = re.compile(r"[ \t]Negative prompt:")
_FIRST: Final = re.compile(r"[ \t]*steps:[ \t]*\d{1,9}[ \t]*(?P<mark>[,;|]|$)", re.IGNORECASE)
_FIRST_INSIDE: Final = re.compile(r"[ \t](?=Steps:[ \t]*\d{1,9}[ \t]*[,;|][ \t]*[A-Za-z][\w \-/]{0,60}:)")
_TEMPLATE: Final = re.compile(r"^((?:Negative )?Template):", re.MULTILINE)
"""Lines of sd-dynamic-prompts behind the settings: what the prompts were before choices were made."""
_NAME: Final = re.compile(r"\s*([^\s,;|:\"{}\[\]][^,;|:\"{}\[\]\n]{0,79}?)\s*:[ \t]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SIZE: Final = re.compile(r"(\d{1,6})\s*[x\u00d7*]\s*(\d{1,6})")
_BEFORE_DEFAULTS: Final = re.compile(r"v1\.[0-8]\.")
"""Versions of A1111 in which a sampler without a schedule type had the plain one."""
FURTHER: Final = "further text"
"""Name of what stands among or behind the settings and has none."""

_READERS: Final = {
    written.name: (one.name, written.read)
    for one in fields(PictureRecord)
    if (written := told_of(one).written) and written.read
}
"""A1111's name → field of the record, and what reads it or raises `ValueError`."""
_KNOWN: Final = {
    name.casefold(): name
    for name in (
        *_READERS, "Size", "Hires upscale", "Hires upscaler", "Hires steps",
        "RNG", "ENSD", "VAE", "VAE hash", "TI hashes", "Tiling", "Face restoration", "Batch size", "Batch pos",
        "Scheduler", "Distilled CFG Scale",
    )
}  # fmt: skip
"""Names of settings in small letters → as A1111 writes them."""
_ALSO: Final = {"variation strength": "Variation seed strength", "eta ddim": "Eta", "cfgscale": "CFG scale"}
"""Names that SD.Next, A1111 since 1.6 and others have for these."""
_TELLING: Final = frozenset({"Steps", "Sampler", "CFG scale", "Seed", "Model hash", "Schedule type"})
"""Names that begin a line of settings and hardly one of a prompt."""


def parse_a1111(text: str, where: str = "the text") -> PictureRecord:
    """Read the text of a picture.

    Raises `SourceError`, with the reason, for a text that is not wholly understood; nothing of it is taken for a prompt
    then. `where` is for messages.
    """
    try:
        prompt, negative, settings = _parts(text)
    except ValueError as error:
        raise SourceError(
            f"{where}: can't be read as a recipe: {error}; take what you need from the text by hand"
        ) from error
    return record_of_settings(PictureRecord(prompt, negative), settings)


def _parts(text: str) -> tuple[str, str | None, dict[str, str]]:
    """Return prompt, negative prompt and settings. Raises `ValueError` with the reason if they can't be told apart."""
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"it has {len(text):,} characters, and at most {_LONGEST_TEXT:,} are read")
    lines = _LINE_END.split(text.strip())
    starts = _settings_lines(lines)
    if not starts:  # Somebody's copy may have lost its line ends.
        lines = _LINE_END.split(_FIRST_INSIDE.sub("\n", text.strip()))
        starts = _settings_lines(lines)
    if not starts:
        raise ValueError("there is no line of settings in it that begins with Steps")
    if len(starts) > 1:
        numbers = " and ".join(str(start + 1) for start in starts[:3])
        raise ValueError(f"there are settings on lines {numbers}, and nothing says which of them hold")
    (start,) = starts
    prompt, negative = _prompts(lines[:start])
    return prompt, negative, _settings("\n".join(lines[start:]))


def _settings_lines(lines: list[str]) -> list[int]:
    """Return the lines that settings begin on: those of `Steps`, else one that has several known names."""
    begun = [number for number, line in enumerate(lines) if _FIRST.match(line)]
    if len(begun) > _MOST_STARTS:
        raise ValueError(f"{len(begun)} lines in it begin with Steps")
    ends = [*begun, len(lines)][1:]
    found = [
        start for start, end in zip(begun, ends, strict=True) if _known_names("\n".join(lines[start:end])) >= _LEAST
    ]
    return found or [
        number for number, line in enumerate(lines) if _begins_known(line) and _known_names(line) >= _LEAST
    ]


def _known_names(text: str) -> int:
    return len({name for name, _ in _pairs(text[:_LONGEST]) if name in _CANONICAL})


def _begins_known(line: str) -> bool:
    name = _NAME.match(line)
    return name is not None and _canonical(name[1]) in _CANONICAL


def _prompts(lines: list[str]) -> tuple[str, str | None]:
    """Return prompt and negative prompt of the lines before the settings."""
    if not any(_NEGATIVE_LINE.match(line.strip()) for line in lines):
        text = "\n".join(lines)
        if len(_NEGATIVE_INSIDE.findall(text)) == 1:
            lines = _NEGATIVE_INSIDE.sub(f"\n{NEGATIVE}", text).split("\n")
    prompts: tuple[list[str], list[str]] = ([], [])
    negative = False
    for number, line in enumerate((line.strip() for line in lines), 1):
        label = _NEGATIVE_LINE.match(line)
        rest = line[label.end() :].strip() if label else line
        name = _NAME.match(rest)
        if name is not None and (_canonical(name[1]) in _TELLING or (_begins_known(rest) and _known_names(rest) > 1)):
            raise ValueError(f"line {number} looks like settings ({one_line(rest[:40])}), and stands among the prompts")
        negative = negative or label is not None
        prompts[negative].append(rest)
    return "\n".join(prompts[0]).strip(), "\n".join(prompts[1]).strip() if negative else None


def _settings(text: str) -> dict[str, str]:
    """Return the settings by their names. Raises `ValueError` if one is there twice, with two values."""
    if len(text) > _LONGEST:
        raise ValueError(f"its settings have {len(text):,} characters, and at most {_LONGEST:,} are read")
    text, *templates = _TEMPLATE.split(text)
    found: dict[str, str] = {}
    for name, value in _pairs(text):
        if name == FURTHER:
            found[name] = f"{found[name]}, {value}" if name in found else value
        elif name in _CANONICAL and found.get(name, value) != value:
            raise ValueError(f"it says {name} twice: {one_line(found[name][:40])} and {one_line(value[:40])}")
        else:
            found[name] = value
    return found | {name: value.strip() for name, value in zip(templates[::2], templates[1::2], strict=True)}


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Return names and values in order; a value is in quotes, is JSON, or reaches up to the next separator or line."""
    first = _FIRST.match(text)
    mark = (first["mark"] if first else "") or ","
    until = re.compile(rf"[^\n{re.escape(mark)}]*")
    behind = re.compile(rf"[ \t]*(?:{re.escape(mark)}|\n|$)")
    decoder = json.JSONDecoder()
    place, closed = 0, True
    while place < len(text):
        name = _NAME.match(text, place)
        start = name.end() if name else place
        end = None
        if name is not None and text.startswith('"', start):
            string = _STRING.match(text, start)
            end = string.end() if string else None
        elif name is not None and closed and text[start : start + 1] in ("[", "{"):
            try:
                _, end = decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                closed = False  # What is open to the end is looked for once.
        after = behind.match(text, end) if end is not None else None
        if end is None or after is None:
            whole = until.match(text, start)
            assert whole is not None
            end = whole.end()
            after = behind.match(text, end)
        value = text[start:end].strip()
        if name is not None:
            yield _canonical(name[1]), _unquote(value)
        elif value:
            yield FURTHER, value
        place = max(after.end() if after else end, place + 1)


def _canonical(name: str) -> str:
    plain = " ".join(name.split())
    return _KNOWN.get(plain.casefold()) or _ALSO.get(plain.casefold()) or plain


_CANONICAL: Final = frozenset(_KNOWN.values())


def record_of_settings(record: PictureRecord, settings: Mapping[str, str]) -> PictureRecord:
    """Return a record with settings that have A1111's names; what has no field in it stays among the other ones."""
    found: Json = {}
    rest = dict(settings)
    if "Scheduler" in rest and "Schedule type" not in rest:  # as ComfyUI's and Fooocus' writers of this text call it
        rest["Schedule type"] = rest.pop("Scheduler")
    readers = dict(_READERS)
    if "DDIM" not in rest.get("Sampler", "").upper():
        del readers["Eta"]  # Of other samplers it is how much noise they add, which can't be changed here.
    if _enlarged(rest):
        del readers["Denoising strength"]  # Of the second pass, and not of a picture that was started from.
    for name, (key, read) in readers.items():
        if name in rest:
            try:
                found[key] = read(rest[name])
            except ValueError:  # Another program's own notation stays among the other fields.
                continue
            del rest[name]
    size = _SIZE.fullmatch(rest.get("Size", ""))
    if size is not None:
        found["width"], found["height"] = int(size[1]), int(size[2])
        del rest["Size"]
    upscaler = rest.get("Hires upscaler")
    if upscaler in (LATENT, *RESAMPLED) and (hires := take_hires(rest, found.get("steps"))):
        found |= {**hires, "upscaler": None if upscaler == LATENT else UsedFile(upscaler)}
    return replace(record, other=rest, **{**found, **_sampling(found)})


def take_hires(settings: dict[str, str], steps: int | None) -> RequestFields:
    """Take a second pass out of A1111's settings, whose first has so many steps; nothing, if there is none to be read.

    Where it has no steps of its own it runs as many: `sample_hr_pass` of `modules/processing.py`.
    """
    try:
        strength = read_number(settings["Denoising strength"])
        runs = read_whole(settings.get("Hires steps", "0")) or steps or 0
        if runs == int((steps or 0) * min(strength, 1)):  # The default here, and what texts of ours say of it.
            runs = 0
        found = hires_fields(read_number(settings["Hires upscale"]), strength, hires_steps=runs)
        del settings["Hires upscale"], settings["Hires upscaler"], settings["Denoising strength"]
    except (ValueError, KeyError):
        return {}
    settings.pop("Hires steps", None)
    return found


def _enlarged(settings: Mapping[str, str]) -> bool:
    return any(name.startswith("Hires ") for name in settings)


def _sampling(found: JsonView) -> dict[str, str | None]:
    """Return the schedule type and the scheduler's name."""
    sampler, schedule = found.get("sampler"), found.get("schedule")
    if not sampler:
        return {}
    if schedule is not None and sampler.casefold().endswith(f" {schedule.casefold()}"):
        sampler = sampler[: -len(schedule) - 1]  # It is in both.
    if schedule is not None or not _BEFORE_DEFAULTS.match(found.get("version") or ""):
        schedule = written_schedule(sampler, schedule)
    return {"sampler": sampler, "schedule": schedule, "scheduler": f"{sampler} {schedule}" if schedule else sampler}


def _unquote(text: str) -> str:
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    try:
        value = str(json.loads(text, strict=False))
        value.encode()  # Halves of surrogate pairs have no UTF-8, and could not be sent on.
    except ValueError:
        return text
    return value

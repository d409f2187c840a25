"""`olivelike info`: what a folder, a weight file or a picture is."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from olivelike._untrusted import one_line
from olivelike.cli import options as shared

if TYPE_CHECKING:
    from olivelike.engine.output.folder_info import FolderInfo
    from olivelike.runtime.pictures import PictureFile, UsedFile
    from olivelike.sources.identify.weight_file import FileHashes


_NARROWEST = 14
_WIDEST = 34
"""Columns of a title."""


def info(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A .safetensors, .ckpt, .pt or .bin file, a picture, or a folder with a pipeline.",
            show_default=False,
        ),
    ],
    hashes: Annotated[
        bool, typer.Option("--hash/--no-hash", help="Also read the whole file, for the hashes of model sites.")
    ] = True,
    allow_pickle: shared.AllowPickle = False,
    json: shared.Json = False,
) -> None:
    """Say what a folder, a weight file or a picture is.

    Kind and family come from what a file holds, never from its name. Of a folder that olivelike wrote: what it was
    made of, for what, and whether it is complete.
    """
    from olivelike.cli.stdout import write_found, write_lines

    if file.is_dir():
        from olivelike.engine.output.folder_info import describe_folder

        folder = describe_folder(file)
        # A folder may come from anyone.
        write_found(folder.to_json(), map(one_line, _folder_lines(folder)), json=json)
        return
    from olivelike.runtime.pictures.picture_reading import is_picture, read_picture

    if is_picture(file):
        picture = read_picture(file)
        write_found(picture_json(picture), picture_lines(picture), json=json)
        return
    from olivelike.sources.files.pickled import read_pickle_table
    from olivelike.sources.identify.weight_file import describe_weight_file, hash_file

    found = describe_weight_file(file, read_pickle_table if allow_pickle else None)
    if not json:  # What it is need not wait for its hashes.
        write_lines(found.summary_lines())
    made = hash_file(file, found.data_start) if hashes else None
    value = {**found.to_json(), **({"hashes": made.to_json()} if made else {})}
    write_found(value, _hash_lines(made) if made else (), json=json)


def _hash_lines(made: "FileHashes") -> "Iterator[str]":
    for title, value in (
        ("AutoV1", made.auto_v1),
        ("AutoV2", f"{made.auto_v2} (A1111's model hash)"),
        ("AutoV3", made.auto_v3),
        ("SHA-256", made.sha256),
    ):
        if value is not None:
            yield f"{title:<14}{value}"


def _folder_lines(folder: "FolderInfo") -> "Iterator[str]":
    from olivelike.cli.display.text import count, size

    yield f"{folder.path}: {folder.title}"
    for title, value in folder.facts.items():
        values = value if isinstance(value, list) else [value]
        for number, one in enumerate(values):
            yield f"{'' if number else title:<14}{one}"
    longest = max(map(len, folder.components), default=0)
    for number, (name, text) in enumerate(folder.components.items()):
        taken = size(folder.sizes[name]) if folder.sizes[name] else ""  # Some are in another's file.
        yield f"{'' if number else 'components':<14}{name:<{longest}}  {taken:>9}  {text}"
    yield f"{'size':<14}{size(folder.bytes)} in {count(folder.files, 'file')}"
    for problem in folder.problems:
        yield f"{'problem':<14}{problem}"
    if folder.then is not None:
        yield f"{'next':<14}{folder.then}"


def picture_json(picture: "PictureFile") -> dict[str, Any]:
    """Return what a picture file says of itself as JSON values."""
    from olivelike.runtime.pictures.left_out import left_out

    return {
        "kind": "picture",
        "format": picture.format,
        "width": picture.width,
        "height": picture.height,
        "record_of": picture.program,
        "record": None if picture.record is None else asdict(picture.record),
        "left_out": None if picture.record is None else left_out(picture.record),
        "unread": picture.unread,
        "parameters": picture.parameters,
        "digital_source_type": picture.source_type,
    }


def picture_lines(picture: "PictureFile") -> "Iterator[str]":
    """Return what a picture file says of itself, a line for each fact."""
    from olivelike.runtime.pictures.ai_mark import in_words
    from olivelike.runtime.pictures.left_out import left_out

    yield f"{picture.path}: a picture, {picture.format}, {picture.width}x{picture.height}"
    if picture.source_type is not None:
        yield f"{'marked':<14}{in_words(picture.source_type)}"
    record = picture.record
    if picture.unread is not None:
        yield _shown(picture.unread)
        if picture.parameters is not None:
            yield from _columns({"its text": picture.parameters})
        return
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
        "varied with": record.variation_seed,
        "by a share of": record.variation_strength or None,
        "drawn again": f"at {record.hires:g} times the size, strength {record.hires_strength:g}"
        if record.hires
        else None,
        "upscaler": _used(record.upscaler),
        "made at": f"{record.width}x{record.height}" if record.width else None,
        "strength": record.strength,
        "started from": _used(record.init_image),
        "mask": _used(record.mask),
        "drawn area": f"the masked, with {record.inpaint_padding} pixels around it"
        if record.inpaint_area == "masked"
        else None,
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
    yield from _columns({title: str(value) for title, value in facts.items() if value is not None})
    if sentence := left_out(record):
        yield sentence


def _columns(facts: dict[str, str]) -> "Iterator[str]":
    """Return titles and values side by side; a title that is longer than others has two spaces behind it."""
    titles = {title: one_line(title) for title in facts}
    wide = min(max(_NARROWEST, *(len(title) + 2 for title in titles.values())), _WIDEST)
    for title, value in facts.items():
        yield f"{titles[title] + '  ':<{wide}}{_shown(value)}".replace("\n", f"\n{'':{wide}}")


def _shown(text: str) -> str:
    """Return text without what would steer the terminal: a picture may come from anyone."""
    return "\n".join(map(one_line, text.split("\n")))


def _used(file: "UsedFile | None") -> str | None:
    if file is None:
        return None
    weight = f" at {file.weight:g}" if file.weight is not None else ""
    return f"{file.name}{weight}" + (f" ({file.hash})" if file.hash else "")

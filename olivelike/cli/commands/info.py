"""`olivelike info`: what a folder, a weight file or a picture is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike._untrusted import Json, one_line
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_found, write_lines
from olivelike.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.engine.output.folder_info import FolderInfo
    from olivelike.runtime.pictures import PictureFile
    from olivelike.runtime.pictures.picture_signature import PictureSignature
    from olivelike.sources.identify.weight_file import FileHashes


_OF_PICTURES = "--certificate: that is for signed pictures; `verify-signature` checks folders"
_NARROWEST = 14
_WIDEST = 34
"""Columns of a title."""


def info(
    file: Annotated[
        Path, argument("FILE", "A .safetensors, .ckpt, .pt or .bin file, a picture, or a folder with a pipeline.")
    ],
    hashes: Annotated[
        bool, option("--hash/--no-hash", "Also read the whole file, for the hashes of model sites.")
    ] = True,
    certificate: Annotated[
        list[Path] | None, option("FILE", "Root that a picture's signer must descend from, as PEM; repeatable.")
    ] = None,
    allow_pickle: shared.AllowPickle = False,
    json: shared.Json = False,
) -> None:
    """Say what a folder, a weight file or a picture is.

    Kind and family come from what a file holds, never from its name. Of a folder that olivelike wrote: what it was
    made of, for what, and whether it is complete. Of a signed picture: who signed it, and whether it was changed since;
    with --certificate the exit status is 5 unless all is well.
    """
    if file.is_dir():
        if certificate:
            raise UsageError(_OF_PICTURES)
        from olivelike.engine.output.folder_info import describe_folder

        folder = describe_folder(file)
        # A folder may come from anyone.
        write_found(folder.to_json(), map(one_line, _folder_lines(folder)), json=json)
        return
    from olivelike.runtime.pictures.picture_reading import is_picture, read_picture

    if is_picture(file):
        from olivelike.runtime.pictures.picture_signature import read_signature

        picture, signature = read_picture(file), read_signature(file, certificate or ())
        lines = (*picture_lines(picture), *_signature_lines(signature, roots=len(certificate or ())))
        write_found({**picture_json(picture), "signature": signature.to_json()}, lines, json=json)
        if certificate and signature.state != "trusted":
            raise typer.Exit(VerificationError.exit_code)
        return
    if certificate and file.exists():
        raise UsageError(_OF_PICTURES)
    from olivelike.sources.files.pickled import read_pickle_table
    from olivelike.sources.identify.weight_file import describe_weight_file, hash_file

    found = describe_weight_file(file, read_pickle_table if allow_pickle else None)
    if not json:  # What it is need not wait for its hashes.
        write_lines(found.summary_lines())
    made = hash_file(file, found.data_start) if hashes else None
    value = {**found.to_json(), **({"hashes": made.to_json()} if made else {})}
    then = () if found.then is None else (f"{'next':<14}{found.then}",)
    write_found(value, (*(_hash_lines(made) if made else ()), *then), json=json)


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
    from olivelike._text import count, size

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


def picture_json(picture: "PictureFile") -> Json:
    """Return what a picture file says of itself as JSON values."""
    from olivelike.runtime.pictures.left_out import left_out

    return {
        "kind": "picture",
        "format": picture.format,
        "width": picture.width,
        "height": picture.height,
        "record_of": picture.program,
        "record": None if picture.record is None else picture.record.values(),
        "left_out": None if picture.record is None else left_out(picture.record),
        "unread": picture.unread,
        "parameters": picture.parameters,
        "digital_source_type": picture.source_type,
    }


def picture_lines(picture: "PictureFile") -> "Iterator[str]":
    """Return what a picture file says of itself, a line for each fact."""
    from olivelike.runtime.pictures.ai_mark import in_words
    from olivelike.runtime.pictures.left_out import left_out
    from olivelike.runtime.pictures.picture_record import told_in_words

    yield f"{picture.path}: a picture, {picture.format}, {picture.width}x{picture.height}"
    if picture.source_type is not None:
        yield f"{'Marked':<14}{in_words(picture.source_type)}"
    record = picture.record
    if picture.unread is not None:
        yield _shown(picture.unread)
        if picture.parameters is not None:
            yield from _columns({"its text": picture.parameters})
        return
    if record is None:
        yield "It has no record of what made it."
        return
    told = {label: text for _, label, text in told_in_words(record)}
    if record.version is None and not picture.own:
        told["Made by"] = "a program that writes as A1111 does"
    yield from _columns({**told, **record.other})
    if sentence := left_out(record):
        yield sentence


def _signature_lines(signature: "PictureSignature", *, roots: int) -> "Iterator[str]":
    """Return what came of checking a signature; nothing if there is none and nobody asked."""
    if signature.state == "none":
        if roots:
            yield f"{'Signature':<14}none"
        return
    reason = "; ".join(signature.problems)
    words = {"invalid": "does not hold", "unchecked": "was not checked"}
    yield f"{'Signature':<14}{words.get(signature.state, 'holds: nothing was changed since')}{reason and f': {reason}'}"
    if signature.signer is not None:
        serial = f" (certificate {signature.serial})" if signature.serial else ""
        yield f"{'Signed by':<14}{signature.signer}{serial}"
    if signature.made_by is not None:
        yield f"{'Signed with':<14}{signature.made_by}"
    if signature.state == "trusted":
        yield f"{'Trusted':<14}by {', '.join(map(one_line, signature.trusted_by))}"
    elif signature.state == "valid":
        why = "it descends from no root that you named" if roots else "name its root with --certificate"
        yield f"{'Trusted':<14}no: anybody can make a certificate of that name; {why}"


def _columns(facts: dict[str, str]) -> "Iterator[str]":
    """Return titles and values side by side; a title that is longer than others has two spaces behind it."""
    titles = {title: one_line(title) for title in facts}
    wide = min(max(_NARROWEST, *(len(title) + 2 for title in titles.values())), _WIDEST)
    for title, value in facts.items():
        yield f"{titles[title] + '  ':<{wide}}{_shown(value)}".replace("\n", f"\n{'':{wide}}")


def _shown(text: str) -> str:
    """Return text without what would steer the terminal: a picture may come from anyone."""
    return "\n".join(map(one_line, text.split("\n")))

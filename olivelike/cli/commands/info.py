"""`olivelike info`: what a folder, a weight file or a picture is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from olivelike.cli import options as shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.engine.output.folder_info import FolderInfo


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
        bool,
        typer.Option("--hash/--no-hash", help="Also read the whole file, for the hashes of model sites."),
    ] = True,
    allow_pickle: shared.AllowPickle = False,
    json: shared.Json = False,
) -> None:
    """Say what a folder, a weight file or a picture is.

    Kind and family come from what a file holds, never from its name. Of a folder that olivelike wrote: what it was
    made of, for what, and whether it is complete.
    """
    from olivelike.cli.stdout import write_json, write_line
    from olivelike.runtime.pictures.picture_reading import is_picture, read_picture

    if file.is_dir():
        from olivelike._untrusted import one_line
        from olivelike.engine.output.folder_info import describe_folder

        folder = describe_folder(file)
        if json:
            write_json(folder.to_json())
            return
        for line in _folder_lines(folder):
            write_line(one_line(line))  # A folder may come from anyone.
        return

    if is_picture(file):
        from olivelike.cli.display.picture_info import picture_json, picture_lines

        picture = read_picture(file)
        if json:
            write_json(picture_json(picture))
            return
        for line in picture_lines(picture):
            write_line(line)
        return

    from olivelike.sources.files.pickled import read_pickle_table
    from olivelike.sources.identify.weight_file import describe_weight_file, hash_file

    found = describe_weight_file(file, read_pickle_table if allow_pickle else None)
    if json:
        computed = {"hashes": hash_file(file, found.data_start).to_json()} if hashes else {}
        write_json({**found.to_json(), **computed})
        return
    for line in found.summary_lines():
        write_line(line)
    if hashes:
        made = hash_file(file, found.data_start)
        for title, value in (
            ("AutoV1", made.auto_v1),
            ("AutoV2", f"{made.auto_v2} (A1111's model hash)"),
            ("AutoV3", made.auto_v3),
            ("SHA-256", made.sha256),
        ):
            if value is not None:
                write_line(f"{title:<14}{value}")


def _folder_lines(folder: "FolderInfo") -> "Iterator[str]":
    from olivelike.cli.display.text import count, size

    yield f"{folder.path}: {folder.title}"
    for title, value in folder.facts.items():
        values = value if isinstance(value, list) else [value]
        for number, one in enumerate(values):
            yield f"{'' if number else title:<14}{one}"
    longest = max(map(len, folder.components), default=0)
    for number, (name, text) in enumerate(folder.components.items()):
        yield f"{'' if number else 'components':<14}{name:<{longest}}  {size(folder.sizes[name]):>9}  {text}"
    yield f"{'size':<14}{size(folder.bytes)} in {count(folder.files, 'file')}"
    for problem in folder.problems:
        yield f"{'problem':<14}{problem}"
    if folder.then is not None:
        yield f"{'next':<14}{folder.then}"

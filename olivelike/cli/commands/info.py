"""`olivelike info`: what a folder, a weight file or a picture is."""

from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared


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
        from olivelike.cli.display.folder_info import describe_folder

        folder = describe_folder(file)
        if json:
            write_json(folder.to_json())
            return
        for line in folder.lines():
            write_line(line)
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

"""`olivelike bom`: what a folder is made of, file by file, for programs that check such lists."""

from pathlib import Path
from typing import Annotated

from olivelike._text import count
from olivelike._untrusted import one_line
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_found


def bom(
    folder: Annotated[Path, argument("FOLDER", "An output of olivelike.")],
    output: Annotated[
        Path | None, option("--output -o FILE", "File to write; by default bom.cdx.json in the folder.")
    ] = None,
    json: shared.Json = False,
) -> None:
    """Write the bill of materials of a folder: networks, files, sources, hashes and licences, as CycloneDX 1.6.

    Each file is read and held against the folder's record; the exit status is 5 if one was changed.
    """
    from olivelike.extras.bom.bill_of_materials import write_bom

    made = write_bom(folder, output)
    held = (count(made.networks, "network"), count(made.files, "file"), count(made.sources, "source"))
    lines = [
        f"wrote {made.path}: {', '.join(held)}",
        *(f"{name} is under {said}" for name, said in made.licenses.items()),
        *(f"no file says the licence of {name}" for name in made.unknown),
    ]
    write_found(made.to_json(), map(one_line, lines), json=json)

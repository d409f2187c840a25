"""`olivelike package`: outputs for several targets as one model package of ONNX Runtime."""

from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared


def package(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Outputs, each for another target.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write: NAME.ortpackage.")],
    overwrite: shared.Overwrite = False,
    json: shared.Json = False,
) -> None:
    """Put outputs for several targets together as one model package of ONNX Runtime.

    Weights that they have alike are stored once.
    """
    from olivelike._extras import needed
    from olivelike._text import size
    from olivelike.cli.stdout import write_found

    made = needed("WRITERS", "package", "olivelike package")(folders, output, overwrite=overwrite)
    lines = [
        f"wrote {made.path}: {made.files} files, {size(made.bytes)}, for {', '.join(made.targets)}",
        f"stored once for several targets: {size(made.shared_bytes)}",
        *(f"left alone, since it was changed: {path}" for path in made.left),
    ]
    found = {
        "path": str(made.path), "targets": list(made.targets), "files": made.files, "bytes": made.bytes,
        "shared_bytes": made.shared_bytes, "left": list(made.left),
    }  # fmt: skip
    write_found(found, lines, json=json)

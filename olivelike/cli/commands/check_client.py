"""`olivelike check-client`: whether a client can load a folder."""

from pathlib import Path
from typing import Annotated

from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_found
from olivelike.errors import SourceError


def check_client(
    folder: Annotated[Path, argument("FOLDER", "A pipeline's folder, of whatever origin.")],
    client: Annotated[
        str, option("NAME", "Who is to load it: diffusers, optimum, csharp, onnxstack, a1111-dml or web.")
    ],
    json: shared.Json = False,
) -> None:
    """Check a folder against what a client insists on.

    One line for each requirement, with the reason and the remedy where it is not met. No weight is read.
    """
    from olivelike.measure.clients import check_client as check

    result = check(folder, client)
    write_found(result.to_json(), map(str, result.verdicts), json=json)
    if result.failed:
        raise SourceError(
            f"{folder}: {client} can't load it: {result.failed} of {len(result.verdicts)} requirements are not met"
        )

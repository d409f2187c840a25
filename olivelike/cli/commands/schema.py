"""`olivelike schema`: the JSON schema of workflow files."""

import json
from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared


def schema(
    plugins: shared.Plugins = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write here, not to standard output.")
    ] = None,
) -> None:
    """Print the JSON schema of workflow files, for editors.

    It knows the passes of installed plugins, and of those that are named.
    """
    from olivelike.cli.stdout import write, write_text_file
    from olivelike.workflow import json_schema

    text = json.dumps(json_schema(shared.load_registry(plugins)), indent=2) + "\n"
    if output is None:
        write(text)
    else:
        write_text_file(output, text)

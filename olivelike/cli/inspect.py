"""`olivelike inspect`: what an ONNX file holds, and what targets make of it."""

from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)],
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="Ask this target alone; may be repeated."),
    ] = None,
    json: shared.Json = False,
) -> None:
    """Say what an ONNX file holds, without reading weights.

    For each target also what it would leave to the CPU.
    """
    from olivelike.cli.stdout import write_json, write_line
    from olivelike.inspection import inspect_model
    from olivelike.targets import find_target

    asked = [find_target(name) for name in targets] if targets else None
    inspection = inspect_model(model, asked)
    if json:
        write_json(inspection.to_json())
        return
    for line in inspection.summary_lines():
        write_line(line)

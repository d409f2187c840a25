"""`olivelike graph`: a picture of the plan."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared


class Format(StrEnum):
    """What the picture is written in."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


def graph(
    workflow: shared.Workflow,
    format: Annotated[  # noqa: A002  (typer shows the name)
        Format, typer.Option("--format", help="Mermaid for Markdown, DOT for Graphviz, SVG for a browser.")
    ] = Format.MERMAID,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write here, not to standard output.")
    ] = None,
    only: shared.Only = None,
    until: shared.Until = None,
    overrides: shared.Overrides = None,
    plugins: shared.Plugins = None,
    allow_plugins: shared.AllowPlugins = False,
    loras: shared.Loras = None,
    cache_dir: shared.CacheDir = None,
    allow_pickle: shared.AllowPickle = False,
) -> None:
    """Draw the nodes, coloured by whether they would run."""
    from olivelike import engine
    from olivelike.cli.stdout import write, write_text_file
    from olivelike.measure.report.graph_drawing import FORMATS

    options = shared.selection(
        overrides=overrides,
        plugins=plugins,
        allow_plugins=allow_plugins,
        cache_dir=cache_dir,
        only=only,
        until=until,
        allow_pickle=allow_pickle,
        loras=loras,
    )
    _, plan = engine.plan(workflow, options)
    drawing = FORMATS[format.value](plan)
    if output is None:
        write(drawing)
    else:
        write_text_file(output, drawing)

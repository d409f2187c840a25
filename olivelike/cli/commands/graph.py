"""`olivelike graph`: a picture of the plan."""

from enum import StrEnum
from typing import Annotated

import typer

from olivelike.cli import options as shared
from olivelike.cli.stdout import write_text


class Format(StrEnum):
    """Format of the picture."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


@shared.with_groups
def graph(
    workflow: shared.Workflow,
    nodes: shared.NodeOptions,
    chosen: shared.WorkflowOptions,
    format: Annotated[  # noqa: A002  (typer shows the name)
        Format, typer.Option(help="Mermaid for Markdown, DOT for Graphviz, SVG for a browser.")
    ] = Format.MERMAID,
    output: shared.OutputFile = None,
) -> None:
    """Draw the nodes, coloured by whether they would run."""
    from olivelike.engine.preparation import plan
    from olivelike.measure.report.graph_drawing import FORMATS

    _, planned = plan(workflow, shared.engine_options(nodes, chosen))
    write_text(FORMATS[format.value](planned), output)

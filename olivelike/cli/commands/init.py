"""`olivelike init`: a new project folder."""

from pathlib import Path
from typing import Annotated

from olivelike._text import quoted
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_error, write_line
from olivelike.errors import PluginError


def init(
    folder: Annotated[Path, argument("DIR", "The folder; made if needed.", show_default=True)] = Path(),
    source: Annotated[
        str, option("SOURCE", "Hub id or folder of the pipeline.")
    ] = "stable-diffusion-v1-5/stable-diffusion-v1-5",
    target: Annotated[str, option("TARGET", "Execution provider that the result is for.")] = "cpu",
) -> None:
    """Begin a project: workflow, plugin with test, store.

    Nothing is overwritten.
    """
    from olivelike.workflow.findings import file_label
    from olivelike.workflow.passes.allowed_plugins import AllowedPlugins
    from olivelike.workflow.scaffold import create_project

    project = create_project(folder.absolute(), source, target)
    for path in project.files:
        write_line(f"wrote {file_label(path)}")
    try:
        AllowedPlugins().allow_folders([project.plugins.resolve()])
    except PluginError as error:  # The project is complete; its first command will ask.
        write_error(f"note: {error}")
    write_line(f"next: olivelike plan {quoted(file_label(project.workflow))}")

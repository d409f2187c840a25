"""`olivelike validate`: everything that is wrong with workflow files."""

from typing import Annotated

import typer

from olivelike.cli import options as shared


def validate(
    workflows: Annotated[
        list[str], typer.Argument(metavar="WORKFLOW", help="Workflow files, or names of shipped ones.")
    ],
    overrides: shared.Overrides = None,
    plugins: shared.Plugins = None,
    allow_plugins: shared.AllowPlugins = False,
) -> None:
    """Report everything that is wrong with workflow files.

    Each finding has its file, line and column. Sources are not opened; `plan` does that.
    """
    from olivelike.cli.plugin_question import ask
    from olivelike.cli.stdout import write_error, write_line
    from olivelike.cli.text import count
    from olivelike.errors import OlivelikeError
    from olivelike.workflow import load_workflow

    worst = 0
    for workflow in workflows:
        try:
            loaded = load_workflow(
                workflow,
                tuple(overrides or ()),
                tuple(plugins or ()),
                allow_plugins=allow_plugins,
                ask=ask,
            )
        except OlivelikeError as error:
            write_error(f"error: {error}")
            worst = max(worst, error.exit_code)
        else:
            steps = sum(len(chain) for chain in loaded.steps.values())
            parts = [count(len(loaded.steps), "component"), count(steps, "step")]
            if loaded.sweep:
                parts.append(count(len(loaded.sweep), "variant"))
            write_line(f"{workflow}: valid ({', '.join(parts)})")
    if worst:
        raise typer.Exit(worst)

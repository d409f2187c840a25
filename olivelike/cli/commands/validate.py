"""`olivelike validate`: everything that is wrong with workflow files."""

from typing import Annotated, Any

import typer

from olivelike.cli import options as shared


def validate(
    workflows: Annotated[
        list[str], typer.Argument(metavar="WORKFLOW", help="Workflow files, or names of shipped ones.")
    ],
    overrides: shared.Overrides = None,
    plugins: shared.Plugins = None,
    allow_plugins: shared.AllowPlugins = False,
    json: shared.Json = False,
) -> None:
    """Report everything that is wrong with workflow files.

    Each finding has its file, line and column. Sources are not opened; `plan` does that.
    """
    from olivelike.cli.display.text import count
    from olivelike.cli.plugin_question import ask
    from olivelike.cli.stdout import write_error, write_json, write_line
    from olivelike.engine.plan.chains import check_without_source
    from olivelike.errors import OlivelikeError
    from olivelike.workflow import load_workflow

    worst = 0
    found: list[dict[str, Any]] = []
    for workflow in workflows:
        facts: dict[str, Any] = {"workflow": workflow, "valid": True, "error": None}
        try:
            loaded = load_workflow(
                workflow,
                tuple(overrides or ()),
                tuple(plugins or ()),
                allow_plugins=allow_plugins,
                ask=ask,
            )
            check_without_source(loaded)
        except OlivelikeError as error:
            facts |= {"valid": False, "error": str(error)}
            worst = max(worst, error.exit_code)
            if not json:
                write_error(f"error: {error}")
        else:
            steps = sum(len(chain) for chain in loaded.steps.values())
            facts |= {"components": len(loaded.steps), "steps": steps, "variants": len(loaded.sweep)}
            parts = [count(len(loaded.steps), "component"), count(steps, "step")]
            if loaded.sweep:
                parts.append(count(len(loaded.sweep), "variant"))
            if not json:
                write_line(f"{workflow}: valid ({', '.join(parts)})")
        found.append(facts)
    if json:
        write_json(found)
    if worst:
        raise typer.Exit(worst)

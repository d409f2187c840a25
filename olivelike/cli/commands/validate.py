"""`olivelike validate`: everything that is wrong with workflow files."""

from typing import Annotated, Any

import typer

from olivelike.cli import options as shared


@shared.with_groups
def validate(
    workflows: Annotated[
        list[str], typer.Argument(metavar="WORKFLOW", help="Workflow files, or names of shipped ones.")
    ],
    chosen: shared.FileOptions,
    json: shared.Json = False,
) -> None:
    """Report everything that is wrong with workflow files.

    Each finding has its file, line and column. Sources are not opened; `plan` does that."""
    from olivelike import engine
    from olivelike.cli.display.text import count
    from olivelike.cli.stdout import write_error, write_json, write_line
    from olivelike.errors import OlivelikeError

    options = shared.engine_options(chosen)
    worst = 0
    found: list[dict[str, Any]] = []
    for workflow in workflows:
        facts: dict[str, Any] = {"workflow": workflow, "valid": True, "error": None}
        try:
            loaded = engine.validate(workflow, options)
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

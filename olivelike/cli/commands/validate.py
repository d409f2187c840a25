"""`olivelike validate`: everything that is wrong with workflow files."""

from typing import TYPE_CHECKING, Annotated

import typer

from olivelike._text import count
from olivelike.cli import options as shared
from olivelike.cli.options import argument
from olivelike.cli.stdout import write_error, write_json, write_line
from olivelike.errors import OlivelikeError

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.engine.prepared import Options
    from olivelike.workflow import LoadedWorkflow


@shared.with_groups
def validate(
    workflows: Annotated[list[str], argument("WORKFLOW", "Workflow files, or names of shipped ones.")],
    chosen: shared.FileOptions,
    combination: shared.Combination = None,
    json: shared.Json = False,
) -> None:
    """Report everything that is wrong with workflow files.

    Each finding has its file, line and column. Of a `matrix` all combinations are looked at. Sources are not opened;
    `plan` does that.
    """
    options = shared.engine_options(chosen, combination=combination)
    worst = 0
    found: list[Json] = []
    for workflow in workflows:
        facts: Json = {"workflow": workflow, "valid": True, "error": None}
        try:
            found_in = _validated(workflow, options)
        except OlivelikeError as error:
            facts |= {"valid": False, "error": str(error)}
            worst = max(worst, error.exit_code)
            if not json:
                write_error(f"error: {error}")
        else:
            loaded = found_in[0]
            steps = sum(len(chain) for chain in loaded.steps.values())
            facts |= {"components": len(loaded.steps), "steps": steps, "variants": len(loaded.sweep)}
            facts["combinations"] = [one.combination for one in found_in if one.combination is not None]
            parts = [count(len(loaded.steps), "component"), count(steps, "step")]
            if loaded.sweep:
                parts.append(count(len(loaded.sweep), "variant"))
            if facts["combinations"]:
                parts = [count(len(found_in), "combination")]
            if not json:
                write_line(f"{workflow}: valid ({', '.join(parts)})")
        found.append(facts)
    if json:
        write_json(found)
    if worst:
        raise typer.Exit(worst)


def _validated(workflow: str, options: "Options") -> "list[LoadedWorkflow]":
    """Return the workflow, or that of each combination."""
    from olivelike.engine.preparation import validate as validate_one
    from olivelike.workflow.matrix import UnnamedCombinationError

    try:
        return [validate_one(workflow, options)]
    except UnnamedCombinationError:
        from olivelike.engine.fleet import validate_fleet

        return list(validate_fleet(workflow, options).values())

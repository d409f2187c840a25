"""`olivelike run`: execute what is not stored, and leave a complete pipeline."""

import dataclasses
import sys
from typing import Annotated

import typer

from olivelike.cli import options as shared
from olivelike.errors import UsageError


def run(
    workflow: shared.Workflow,
    only: shared.Only = None,
    until: shared.Until = None,
    overrides: shared.Overrides = None,
    plugins: shared.Plugins = None,
    allow_plugins: shared.AllowPlugins = False,
    loras: shared.Loras = None,
    output: shared.Output = None,
    cache_dir: shared.CacheDir = None,
    clean_cache: Annotated[
        bool, typer.Option("--clean-cache", help="Drop what this workflow's nodes stored, and make it again.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Publish complete outputs although another one failed.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, help="Processes at once; by default one per core, 4 at most."
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="What all nodes together may use, such as 8GiB; by default four fifths of what is free.",
        ),
    ] = None,
    overwrite: shared.Overwrite = False,
    allow_pickle: shared.AllowPickle = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and run nothing.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write each event as a JSON object on a line of standard output.")
    ] = False,
) -> None:
    """Execute what is not stored, write the pipeline.

    With nothing to do it says so, at once.
    """
    chosen = shared.selection(
        overrides, plugins, cache_dir, output, only, until, allow_pickle, loras, allow_plugins
    )
    if dry_run:
        if clean_cache:
            raise UsageError("--dry-run changes nothing, so it can't go with --clean-cache; leave one out")
        from olivelike.cli.plan import show_plan

        show_plan(workflow, chosen, json)
        return
    chosen = dataclasses.replace(
        chosen,
        clean_cache=clean_cache,
        keep_going=keep_going,
        workers=workers,
        memory_limit=_bytes(memory_limit),
        overwrite=overwrite,
    )
    from olivelike import engine

    if json:
        from olivelike.cli.json_lines import JsonLines

        with JsonLines() as lines:
            engine.run(workflow, chosen, lines)
        return
    from olivelike.cli.run_display import RunDisplay

    with RunDisplay(live=sys.stdout.isatty()) as display:
        display.summarise(engine.run(workflow, chosen, display))


def _bytes(memory_limit: str | None) -> int | None:
    if memory_limit is None:
        return None
    from olivelike.store.limits import parse_size

    return parse_size(memory_limit, "--memory-limit")

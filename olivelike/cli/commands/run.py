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
    workers: shared.Workers = None,
    memory_limit: shared.MemoryLimit = None,
    overwrite: shared.Overwrite = False,
    allow_pickle: shared.AllowPickle = False,
    dry_run: shared.DryRun = False,
    json: shared.JsonLines = False,
) -> None:
    """Execute what is not stored, write the pipeline.

    With nothing to do it says so, at once.
    """
    chosen = shared.selection(
        overrides=overrides,
        plugins=plugins,
        allow_plugins=allow_plugins,
        cache_dir=cache_dir,
        output=output,
        only=only,
        until=until,
        allow_pickle=allow_pickle,
        loras=loras,
        workers=workers,
        memory_limit=memory_limit,
    )
    if dry_run:
        if clean_cache:
            raise UsageError("--dry-run changes nothing, so it can't go with --clean-cache; leave one out")
        from olivelike.cli.commands.plan import show_plan

        show_plan(workflow, chosen, json)
        return
    chosen = dataclasses.replace(chosen, clean_cache=clean_cache, keep_going=keep_going, overwrite=overwrite)
    from olivelike import engine
    from olivelike.measure.report import write_report

    if json:
        from olivelike.cli.display.json_lines import JsonLines

        with JsonLines() as lines:
            engine.run(workflow, chosen, lines, write_report)
        return
    from olivelike.cli.display.run_display import RunDisplay

    with RunDisplay(live=sys.stdout.isatty()) as display:
        display.summarise(engine.run(workflow, chosen, display, write_report))

"""`olivelike run`: execute what is not stored, and leave a complete pipeline."""

from typing import Annotated

from olivelike.cli import options as shared
from olivelike.cli.options import option
from olivelike.errors import UsageError


@shared.with_groups
def run(
    workflow: shared.Workflow,
    nodes: shared.NodeOptions,
    chosen: shared.WorkflowOptions,
    limits: shared.LimitOptions,
    output: shared.Output = None,
    clean_cache: Annotated[
        bool, option("--clean-cache", "Drop what this workflow's nodes stored, and make it again.")
    ] = False,
    keep_going: Annotated[
        bool, option("--keep-going", "Publish complete outputs although another one failed.")
    ] = False,
    overwrite: shared.Overwrite = False,
    cluster: shared.Cluster = None,
    max_parallel: Annotated[
        int | None, option("N", "Combinations of a `matrix` at work at once; by default 8.", min=1)
    ] = None,
    dry_run: shared.DryRun = False,
    json: shared.JsonLines = False,
) -> None:
    """Execute what is not stored, write the pipeline.

    With nothing to do it says so, at once.
    """
    options = shared.engine_options(
        nodes, chosen, limits, output=output, clean_cache=clean_cache, keep_going=keep_going, overwrite=overwrite,
        cluster=cluster,
    )  # fmt: skip
    if dry_run:
        if clean_cache:
            raise UsageError("--dry-run changes nothing, so it can't go with --clean-cache; leave one out")
        from olivelike.cli.display.run_display import show_plan

        show_plan(workflow, options, json)
        return
    from olivelike.cli.display.run_display import show_run

    show_run(workflow, options, json, max_parallel)

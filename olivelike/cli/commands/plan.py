"""`olivelike plan`: which nodes would run, and why."""

from olivelike.cli import options as shared


@shared.with_groups
def plan(
    workflow: shared.Workflow,
    nodes: shared.NodeOptions,
    chosen: shared.WorkflowOptions,
    limits: shared.LimitOptions,
    output: shared.Output = None,
    json: shared.Json = False,
) -> None:
    """Show which nodes would run, and why; nothing changes.

    A hit is stored; a miss runs; a pending node is decided when upstream has run; an uncached one runs always.
    """
    from olivelike.cli.display.run_display import show_plan

    show_plan(workflow, shared.engine_options(nodes, chosen, limits, output=output), json)

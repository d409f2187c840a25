"""`olivelike explain`: which part of a node's key differs from the nearest earlier run."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from olivelike.cli import options as shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.engine import Prepared
    from olivelike.engine.plan import PlannedNode

_SHOWN_DIGITS = 12
_SHOWN_MODULES = 3


def explain(
    workflow: shared.Workflow,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Such as unet.convert; all nodes if none is named.")
    ] = None,
    only: shared.Only = None,
    until: shared.Until = None,
    overrides: shared.Overrides = None,
    plugins: shared.Plugins = None,
    allow_plugins: shared.AllowPlugins = False,
    loras: shared.Loras = None,
    output: shared.Output = None,
    cache_dir: shared.CacheDir = None,
    allow_pickle: shared.AllowPickle = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also name every module that the code of a key is over.")
    ] = False,
    json: shared.Json = False,
) -> None:
    """Say why each node would run or not.

    Names what differs from the nearest earlier run: an option, a version, code, a facet.
    """
    from olivelike import engine
    from olivelike.cli.display.text import fitted
    from olivelike.cli.stdout import write_json, write_line

    options = shared.selection(
        overrides=overrides,
        plugins=plugins,
        allow_plugins=allow_plugins,
        cache_dir=cache_dir,
        output=output,
        only=only,
        until=until,
        allow_pickle=allow_pickle,
        loras=loras,
    )
    prepared, plan = engine.plan(workflow, options)
    nodes = list(plan.nodes) if node is None else [_named(node, list(plan.nodes))]
    if json:
        write_json([_to_json(planned, prepared) for planned in nodes])
        return
    for planned in nodes:
        for line in _lines(planned, prepared):
            write_line(fitted(line))
    if node is None:
        return
    for line in _key_lines(nodes[0], verbose):
        write_line(line)
    for cause in _causes(nodes[0], list(plan.nodes)):
        for line in _lines(cause, prepared):
            write_line(fitted(line))


def _named(name: str, nodes: "list[PlannedNode]") -> "PlannedNode":
    from olivelike._text import did_you_mean
    from olivelike.errors import UsageError

    by_id = {planned.node.id: planned for planned in nodes}
    if name not in by_id:
        raise UsageError(f"the workflow has no node {name!r}; {did_you_mean(name, list(by_id), 'nodes')}")
    return by_id[name]


def _causes(planned: "PlannedNode", nodes: "list[PlannedNode]") -> "Iterator[PlannedNode]":
    """Yield what a pending node waits for, nearest first."""
    by_id = {other.node.id: other for other in nodes}
    while planned.status == "pending" and planned.node.parent is not None:
        planned = by_id[planned.node.parent]
        yield planned


def _to_json(planned: "PlannedNode", prepared: "Prepared") -> dict[str, Any]:
    return {
        "node": planned.node.id,
        "status": planned.status,
        "reason": planned.reason,
        "changes": _changes(planned, prepared),
        "key": planned.key.digest if planned.key else None,
        "inputs": planned.key.inputs() if planned.key else None,
        "facts": _stored_facts(planned, prepared) if planned.status == "hit" else {},
    }


def _changes(planned: "PlannedNode", prepared: "Prepared") -> list[str]:
    """Return what differs from the nearest earlier run, a sentence each."""
    from olivelike.engine.plan import differences, nearest

    if planned.key is None or planned.status != "miss":
        return []
    inputs = planned.key.inputs()
    before = nearest(planned.node.id, inputs, prepared.history)
    return [] if before is None else differences(inputs, before)


def _lines(planned: "PlannedNode", prepared: "Prepared") -> "Iterator[str]":
    changes = _changes(planned, prepared)
    match planned.status:
        case "hit":
            yield f"{planned.node.id}: does not run, {planned.reason}{_when_stored(planned, prepared)}"
            yield from _found(_stored_facts(planned, prepared))
        case "pending":
            yield f"{planned.node.id}: {planned.reason}"
        case _:
            yield f"{planned.node.id}: runs" + ("" if changes else f", {planned.reason}")
            yield from (f"  - {change}" for change in changes)


def _stored_facts(planned: "PlannedNode", prepared: "Prepared") -> dict[str, Any]:
    action = prepared.store.get_action(planned.key.digest) if planned.key else None
    return action.facts if action else {}


def _found(facts: dict[str, Any]) -> "Iterator[str]":
    """Yield what a step found out: how far from torch it is, and what it kept in float32."""
    if verification := facts.get("verification"):
        yield f"  - relative error {verification['relative_error']:.1e} against torch, of {verification['limit']:.0e}"
    if auto := facts.get("auto"):
        blocks = ", ".join(auto["kept_fp32_blocks"]) or "no block"
        yield f"  - {blocks} kept in float32; relative error {auto['relative_error']:.1e} against torch"


def _when_stored(planned: "PlannedNode", prepared: "Prepared") -> str:
    import datetime as dt

    from olivelike.cli.display.text import duration, moment

    action = prepared.store.get_action(planned.key.digest) if planned.key else None
    if action is None:
        return ""
    return f" since {moment(dt.datetime.fromisoformat(action.created))}; it took {duration(action.seconds)}"


def _key_lines(planned: "PlannedNode", verbose: bool) -> "Iterator[str]":
    """Yield the parts of a key."""
    from olivelike.cli.display.text import count
    from olivelike.engine.plan.explain import told

    key = planned.key
    if key is None:
        return
    yield f"  key      {key.digest}"
    yield from (f"  facet    {name} {digest[:_SHOWN_DIGITS]}" for name, digest in sorted(key.facets.items()))
    yield from (f"  option   {name} = {told(value)}" for name, value in key.options.items())
    yield from (f"  tool     {name} {version}" for name, version in key.tools.items())
    yield from (f"  named    {name}" for name in key.named)
    if key.target is not None:
        yield f"  target   {key.target['name']}"
    modules = list(key.modules)
    if verbose:
        yield f"  code     {key.code[:_SHOWN_DIGITS]}, over {count(len(modules), 'module')}"
        yield from (f"           {name} {key.modules[name][:_SHOWN_DIGITS]}" for name in modules)
        return
    more = len(modules) - _SHOWN_MODULES
    shown = ", ".join(modules[:_SHOWN_MODULES]) + (f" and {more} more (--verbose)" if more > 0 else "")
    yield f"  code     {key.code[:_SHOWN_DIGITS]}, over {shown}"

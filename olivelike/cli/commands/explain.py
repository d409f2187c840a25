"""`olivelike explain`: which part of a node's key differs from the nearest earlier run."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from olivelike._text import count, duration, moment
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_json, write_lines

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.engine.explanation import Explanation
    from olivelike.engine.plan.planner import PlannedNode

_SHOWN_DIGITS = 12
_SHOWN_MODULES = 3


@shared.with_groups
def explain(
    workflow: shared.Workflow,
    nodes: shared.NodeOptions,
    chosen: shared.WorkflowOptions,
    node: Annotated[str | None, argument("NODE", "Such as unet.convert; all nodes if none is named.")] = None,
    output: shared.Output = None,
    verbose: Annotated[bool, option("--verbose", "Also name every module that the code of a key is over.")] = False,
    json: shared.Json = False,
) -> None:
    """Say why each node would run or not.

    Names what differs from the nearest earlier run: an option, a version, code, a LoRA, a facet.
    """
    from olivelike.cli.display.text import fitted
    from olivelike.engine.explanation import explain as explain_nodes
    from olivelike.workflow.matrix import UnnamedCombinationError

    options = shared.engine_options(nodes, chosen, output=output)
    try:
        found: Mapping[str, tuple[Explanation, ...]] = {"": explain_nodes(workflow, options, node)}
    except UnnamedCombinationError:
        from olivelike.engine.fleet import explain_fleet

        found = explain_fleet(workflow, options, node)
    if json:
        write_json(
            [
                ({"combination": name} if name else {}) | one.to_json()
                for name, explanations in found.items()
                for one in (explanations if node is None else explanations[:1])
            ]
        )
        return
    for name, explanations in found.items():
        if name:
            write_lines([f"{name}:"])
        for number, explanation in enumerate(explanations):
            write_lines(map(fitted, _lines(explanation)))
            if node is not None and number == 0:
                write_lines(_key_lines(explanation.planned, verbose))


def _lines(found: "Explanation") -> "Iterator[str]":
    node, reason = found.planned.node.id, found.planned.reason
    match found.planned.status:
        case "hit":
            yield f"{node}: does not run, {reason}{_when_stored(found)}"
            yield from _findings(found.facts)
        case "shelf":
            yield f"{node}: does not run, {reason}"
        case "pending":
            yield f"{node}: {reason}"
        case _:
            yield f"{node}: runs" + ("" if found.changes else f", {reason}")
            yield from (f"  - {change}" for change in found.changes)


def _findings(facts: "JsonView") -> "Iterator[str]":
    """Yield what a step found out: how far from torch it is, and what it kept in float32."""
    if verification := facts.get("verification"):
        yield f"  - relative error {verification['relative_error']:.1e} against torch, of {verification['limit']:.0e}"
    if auto := facts.get("auto"):
        blocks = ", ".join(auto["kept_fp32_blocks"]) or "no block"
        yield f"  - {blocks} kept in float32; relative error {auto['relative_error']:.1e} against torch"


def _when_stored(found: "Explanation") -> str:
    import datetime as dt

    if found.created is None or found.seconds is None:
        return ""
    return f" since {moment(dt.datetime.fromisoformat(found.created))}; it took {duration(found.seconds)}"


def _key_lines(planned: "PlannedNode", verbose: bool) -> "Iterator[str]":
    """Yield the parts of a key."""
    from olivelike.engine.plan.reasons import told

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

"""`olivelike targets`: what a workflow and `convert` may name, ours and those of installed plugins."""

from typing import Annotated

from olivelike._untrusted import Json, one_line
from olivelike.cli import options as shared
from olivelike.cli.options import argument
from olivelike.cli.stdout import write_found


def targets(
    name: Annotated[str | None, argument("NAME", "Show what this target claims of its provider.")] = None,
    json: shared.Json = False,
) -> None:
    """List targets, those of plugins too, or show what one claims of its provider and how that is known."""
    from olivelike._table import Table
    from olivelike.model.plugin_targets import all_targets, claims, find_plugin_target
    from olivelike.model.targets import find_target

    if name is None:
        found = all_targets()
        rows = [
            (one.name, one_line(one.plugin) or "built-in", one_line(one.provider), str(one.opset), one.precision)
            for one in found
        ]
        table = Table(("target", "from", "runs on", "opset", "precision"), rows)
        write_found([{**one.facts(), "plugin": one.plugin} for one in found], table.lines(), json=json)
        return
    target = find_target(name)
    offered = find_plugin_target(target.name) if target.plugin else None
    sources = {} if offered is None else {claim: one_line(text) for claim, text in offered.sources.items()}
    value: Json = {**target.facts(), "plugin": target.plugin, "sources": sources}
    lines = [f"{target.name} ({one_line(target.plugin) or 'built-in'})", f"runs on {one_line(target.provider)}", ""]
    claimed = [(claim, one_line(words), sources.get(claim, "")) for claim, words in claims(target).items()]
    lines += Table(("claim of", "in the table", "known by"), claimed).lines()
    if offered is None:
        lines += ["", "How each claim is known is on the page docs/claims.md."]
    write_found(value, lines, json=json)

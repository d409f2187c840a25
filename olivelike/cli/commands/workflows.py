"""`olivelike workflows`: what is shipped, and what was measured with it."""

import json as json_text
from collections.abc import Iterator
from typing import Annotated, Any

from olivelike._text import did_you_mean
from olivelike._untrusted import JsonView
from olivelike.cli import options as shared
from olivelike.cli.options import argument
from olivelike.cli.stdout import write_found
from olivelike.errors import UsageError


def workflows(
    name: Annotated[str | None, argument("NAME", "Show the chains and figures of this one.")] = None,
    json: shared.Json = False,
) -> None:
    """List the shipped workflows, or show one: its chains, and what was measured."""
    from olivelike._table import Table
    from olivelike.workflow.places import shipped_index

    found = {one["name"]: one for one in shipped_index()}
    if name is None:
        rows = [tuple(one[key] for key in ("name", "model", "target", "precision")) for one in found.values()]
        write_found([*found.values()], Table(("workflow", "model", "target", "precision"), rows).lines(), json=json)
        return
    if name not in found:
        raise UsageError(f"no workflow called {name!r} is shipped; {did_you_mean(name, [*found], 'shipped workflows')}")
    write_found(found[name], _lines(found[name]), json=json)


def _lines(one: "JsonView") -> "Iterator[str]":
    yield one["purpose"]
    yield ""
    facts = {title: one[title] for title in ("model", "target", "precision")}
    beside = {"loras": one["loras"], **one["guides"], "variants": one["variants"]}
    for title, value in (facts | {title: ", ".join(names) for title, names in beside.items() if names}).items():
        yield f"{title + ':':<13}{value}"
    yield ""
    width = max(map(len, one["components"])) + 2
    for component, chain in one["components"].items():
        yield f"{component + ':':<{width}}{', '.join(map(_step, chain))}"
    for figure in one["figures"]:
        yield ""
        yield figure["measured"]
        yield f"    {'; '.join(f'{title}: {cell}' for title, cell in figure['values'].items())}"
        yield f"    by {figure['command']}, docs/{figure['page']}"


def _step(step: Any) -> str:
    if isinstance(step, str):
        return step
    ((name, options),) = step.items()
    return f"{name} {json_text.dumps(options)}"

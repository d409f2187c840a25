"""Where nodes ran and what each operator took, as `olivelike profile` leaves it beside a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike._text import count
from olivelike.measure.report.element import Html, element, facts, fold, section, table
from olivelike.measure.report.record_reading import mapping, number, sequence, shown, text

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN = 12
"""Operator types of each network that are in sight at once."""


def placement(found: Mapping[str, Any]) -> Html:
    """Return, per network, its nodes by provider, and the time that each operator type takes.

    Args:
        found: What `FolderProfile.to_json` returned; empty if the run was not profiled.
    """
    networks = [mapping(network) for network in sequence(found.get("networks"))]
    rows = [
        (
            text(network.get("name")),
            shown(network.get("providers")),
            f"{number(network.get('milliseconds')):,.2f}",
            shown(network.get("inputs")),
        )
        for network in networks
    ]
    return section(
        "placement",
        "Placement",
        table(
            "Nodes by execution provider, and time of one run",
            ("Network", "Nodes", "Milliseconds", "Inputs"),
            rows,
            numbers=(2,),
        ),
        facts([("Measured on", shown(found.get("runtime"))), ("Runs", shown(found.get("runs")))]),
        *map(_network, networks),
    )


def _network(network: Mapping[str, Any]) -> Html:
    title = f"Operators of {text(network.get('name'))}"
    rows = [
        (
            text(operator.get("operator")),
            text(operator.get("provider")),
            shown(operator.get("nodes")),
            f"{number(operator.get('milliseconds')):,.2f}",
            f"{100 * number(operator.get('share')):.1f} %",
        )
        for operator in map(mapping, sequence(network.get("operators")))
    ]
    header = ("Operator", "Provider", "Nodes", "Milliseconds", "Share")
    first = table(f"{title}, slowest first", header, rows[:_SHOWN], numbers=(2, 3, 4))
    rest = table(f"{title}, the rest", header, rows[_SHOWN:], numbers=(2, 3, 4))
    return (
        element("div", fold(title, first, fold(f"{count(len(rows[_SHOWN:]), 'faster operator')}", rest)))
        if rows
        else Html()
    )

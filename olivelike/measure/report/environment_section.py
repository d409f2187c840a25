"""What the run ran on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import size
from olivelike.measure.report.element import Html, element, facts, section
from olivelike.measure.report.record_reading import number, shown

if TYPE_CHECKING:
    from olivelike.measure.report.record_reading import RunReport


def environment(run: RunReport) -> Html:
    """Return the kind of machine and the versions of the libraries."""
    host = run.host
    machine = " ".join(filter(None, (shown(host.get(key)) for key in ("system", "release", "machine"))))
    memory = number(host.get("memory_bytes"))
    return section(
        "environment",
        "Environment",
        facts(
            [
                ("Machine", machine),
                ("Cores", shown(host.get("cores"))),
                ("Memory", size(memory) if memory else ""),
            ]
        ),
        element("h3", "Versions"),
        facts((name, shown(version)) for name, version in run.versions.items()),
    )

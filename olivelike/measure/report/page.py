"""The page of a run's report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from olivelike.measure.report.additions_section import additions
from olivelike.measure.report.beside import Beside
from olivelike.measure.report.changes import changes
from olivelike.measure.report.details import details
from olivelike.measure.report.element import Html, element, join
from olivelike.measure.report.environment_section import environment
from olivelike.measure.report.operators import operators
from olivelike.measure.report.outcome import outcome
from olivelike.measure.report.overview import errors, header
from olivelike.measure.report.pictures_section import pictures
from olivelike.measure.report.placement_section import placement
from olivelike.measure.report.record_reading import read_run, shown
from olivelike.measure.report.shown_paths import without_absolute_paths
from olivelike.measure.report.sizes import sizes
from olivelike.measure.report.speed_section import speed
from olivelike.measure.report.steps import steps
from olivelike.measure.report.style import STYLE
from olivelike.measure.report.verification_section import verification

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A browser loads nothing and runs nothing, whatever the record holds."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")


def page(record: Mapping[str, Any], beside: Beside) -> str:
    """Return a report as HTML that is well-formed as XML too.

    Args:
        record: The run's record.
        beside: What lies beside it.
    """
    record, profile, verified, measured = without_absolute_paths(
        record, beside.profile, beside.verification, beside.bench
    )
    run, beside = read_run(record), Beside(beside.folder, profile, verified, measured)
    sections = [
        errors(run),
        changes(run),
        steps(run),
        verification(run, beside.verification),
        pictures(run, beside),
        speed(beside.bench),
        operators(run),
        placement(beside.profile),
        sizes(run),
        additions(run),
        details(run),
        environment(run),
    ]
    title = f"{run.workflow}: {run.status}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}" />'),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    body = element(
        "body",
        header(run, outcome(run, beside)),
        _contents(sections),
        element("main", *sections),
        _footer(run.versions),
    )
    written = "<!DOCTYPE html>\n" + element("html", head, "\n", body, lang="en") + "\n"
    return _UNPRINTABLE.sub("�", written)


def _contents(sections: list[Html]) -> Html:
    """Return links to the sections that are there."""
    headings = re.findall(r'<h2 id="([a-z]+)">([^<]+)</h2>', join(sections))
    links = [element("a", Html(title), href=f"#{identifier}") for identifier, title in headings]
    return element("nav", *links, aria_label="Sections")


def _footer(versions: Mapping[str, Any]) -> Html:
    made = " ".join(filter(None, ("olivelike", shown(versions.get("olivelike")))))
    return element("footer", f"Made by {made}.")

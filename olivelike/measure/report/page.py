"""The page of a run's report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike._text import count, duration, size
from olivelike._untrusted import parse_json, read_bytes
from olivelike.measure.report import plain_sections as plain
from olivelike.measure.report.comparison import pictures, verification
from olivelike.measure.report.element import Html, element, facts, join, moment
from olivelike.measure.report.findings import read_findings
from olivelike.measure.report.outcome import outcome
from olivelike.measure.report.performance import operators, placement, speed
from olivelike.measure.report.shown_paths import without_absolute_paths
from olivelike.measure.report.steps import steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.model.records.run_record import RunRecord

STYLE: Final = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A browser loads nothing and runs nothing, whatever the record holds."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_ENDS: Final = {"ok": "ended well", "failed": "failed", "interrupted": "was interrupted"}
REPORT_FILE: Final = "report.html"
PROFILE_FILE: Final = "profile.json"
"""What `olivelike profile` measured: `FolderProfile.to_json`."""
BENCH_FILE: Final = "bench.json"
"""What `olivelike bench` measured: `BenchReport.to_json`."""
VERIFICATION_FILE: Final = "verification.json"
"""What `olivelike verify` found: figures by name in `components`, and `pictures`, which name their files."""


@dataclass(frozen=True)
class Beside:
    """What lies beside a report: JSON of commands, `None` where one was not run."""

    folder: Path
    """Where pictures are."""
    profile: object = None
    verification: object = None
    bench: object = None


def page(record: RunRecord, beside: Beside) -> str:
    """Return a report as HTML that is well-formed as XML too.

    Args:
        record: The run's record.
        beside: What lies beside it.
    """
    run, others = without_absolute_paths(record, [beside.profile, beside.verification, beside.bench])
    findings = read_findings(beside.folder, *others)
    sections = [
        plain.errors(run),
        plain.changes(run),
        steps(run),
        verification(run, findings.verified),
        pictures(run, findings),
        speed(findings.bench),
        operators(run),
        placement(findings.profile),
        plain.sizes(run),
        plain.adapters(run),
        plain.details(run),
        plain.environment(run),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}" />'),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{run.workflow}: {run.status}"),
        element("style", Html(STYLE)),
    )
    body = element(
        "body",
        _header(run, outcome(run, findings)),
        _contents(sections),
        element("main", *sections),
        _footer(run.versions),
    )
    written = "<!DOCTYPE html>\n" + element("html", head, "\n", body, lang="en") + "\n"
    return _UNPRINTABLE.sub("�", written)


def _header(run: RunRecord, figures: Html) -> Html:
    """Return the top of the page: what ran, how it ended, what came of it."""
    badge = element("span", run.status, class_=f"badge {run.status}")
    return element(
        "header",
        element("h1", run.workflow, " ", badge),
        element("p", _sentence(run), class_="lead"),
        figures,
        facts(
            [
                ("Target", f"{run.target.name} {run.target.precision}".rstrip()),
                ("Source", plain.origin_text(run.source)),
                ("Output", run.outputs[0] if len(run.outputs) == 1 else ""),
                ("Workflow", f"from the command line: {run.command}" if run.command else run.file or ""),
                ("Finished", moment(run.finished)),
                ("Run", run.run_id),
            ]
        ),
    )


def _sentence(run: RunRecord) -> str:
    ran, stored = run.count("executed"), run.count("hit")
    parts = [f"{ran} of {count(len(run.nodes), 'node')} ran"]
    if stored:
        parts.append(f"{stored} {'was' if stored == 1 else 'were'} stored already")
    parts += [f"{run.count(status)} {status}" for status in ("failed", "skipped") if run.count(status)]
    memory = f" and {size(run.peak_memory_bytes)} of memory at most" if run.peak_memory_bytes else ""
    end = _ENDS.get(run.status, "ended")
    return f"The run {end} after {duration(run.seconds)}{memory}: {', '.join(parts)}."


def _contents(sections: list[Html]) -> Html:
    """Return links to the sections that are there."""
    headings = re.findall(r'<h2 id="([a-z]+)">([^<]+)</h2>', join(sections))
    links = [element("a", Html(title), href=f"#{identifier}") for identifier, title in headings]
    return element("nav", *links, aria_label="Sections")


def _footer(versions: Mapping[str, str]) -> Html:
    return element("footer", f"Made by olivelike {versions.get('olivelike', '')}".rstrip() + ".")


def write_report(record: RunRecord, folder: Path, output: Path | None = None) -> Path:
    """Write the report of a run, in one step.

    Args:
        record: The run's record.
        folder: The run's folder in the store, with what commands left for the report.
        output: The file; by default `report.html` in that folder.

    Returns:
        The path of the file.

    Raises:
        OSError: if it can't be written; then an earlier one is as it was.
    """
    path = folder / REPORT_FILE if output is None else output
    beside = Beside(folder, *(_read(folder / name) for name in (PROFILE_FILE, VERIFICATION_FILE, BENCH_FILE)))
    write_whole(path, page(record, beside).encode(), durable=False)
    return path


def _read(path: Path) -> object:
    """Return the JSON of a file; what can't be read counts as absent."""
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError):
        return None

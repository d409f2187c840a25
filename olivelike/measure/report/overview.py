"""How the run ended, and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import count, duration, size
from olivelike.measure.report.element import Html, element, facts, section
from olivelike.measure.report.origins import origin_text
from olivelike.measure.report.record_reading import mapping, moment, shown

if TYPE_CHECKING:
    from olivelike.measure.report.record_reading import RunReport

_ENDS = {"ok": "ended well", "failed": "failed", "interrupted": "was interrupted"}


def header(run: RunReport, *figures: str) -> Html:
    """Return the top of the page: what ran, how it ended, what came of it."""
    badge = element("span", run.status or "unknown", class_=f"badge {run.status}")
    target = mapping(run.target)
    named = " ".join(filter(None, (shown(target.get("name")), shown(target.get("precision")))))
    return element(
        "header",
        element("h1", run.workflow, " ", badge),
        element("p", _sentence(run), class_="lead"),
        *figures,
        facts(
            [
                ("Target", named),
                ("Source", origin_text(run.source)),
                ("Output", run.outputs[0] if len(run.outputs) == 1 else ""),
                ("Workflow", f"from the command line: {run.command}" if run.command else run.file),
                ("Finished", moment(run.finished)),
                ("Run", run.run_id),
            ]
        ),
    )


def errors(run: RunReport) -> Html:
    """Return what went wrong: each failed node with its log, or else the error of the run."""
    failed = [node for node in run.nodes if node.status == "failed"]
    blocks = [
        element(
            "article",
            element("h3", node.id),
            element("pre", node.error or "no message"),
            facts([("Log", node.log)]),
            class_="error",
        )
        for node in failed
    ]
    if not failed and run.error:
        blocks.append(element("article", element("pre", run.error), class_="error"))
    return section("errors", "What went wrong", *blocks)


def _sentence(run: RunReport) -> str:
    ran, stored = run.count("executed"), run.count("hit")
    parts = [f"{ran} of {count(len(run.nodes), 'node')} ran"]
    if stored:
        parts.append(f"{stored} {'was' if stored == 1 else 'were'} stored already")
    parts += [f"{run.count(status)} {status}" for status in ("failed", "skipped") if run.count(status)]
    end = _ENDS.get(run.status, "ended")
    memory = f" and {size(run.peak_memory_bytes)} of memory at most" if run.peak_memory_bytes else ""
    return f"The run {end} after {duration(run.seconds)}{memory}: {', '.join(parts)}."

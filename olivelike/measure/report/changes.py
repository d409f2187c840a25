"""What is different from the run before of the same workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import count, duration, size
from olivelike.measure.report.element import Html, section, table
from olivelike.measure.report.origins import origin_text
from olivelike.measure.report.record_reading import mapping, moment, number, shown

if TYPE_CHECKING:
    from olivelike.measure.report.record_reading import RunReport


def changes(run: RunReport) -> Html:
    """Return times, sizes and nodes of both runs; nothing if the record knows of none before."""
    before = run.earlier
    if before is None:
        return Html()
    rows = [
        ("Time", duration(before.seconds), duration(run.seconds)),
        ("Nodes that ran", f"{before.ran:,}", f"{run.count('executed'):,}"),
    ]
    for path, files in run.output_files.items():
        name = f"Size of {path}" if len(run.output_files) > 1 else "Size"
        old, new = before.output_bytes.get(path), sum(map(number, mapping(files).values()))
        rows.append((name, size(old) if old is not None else "not there", size(new)))
    said = [
        ("Target", *(shown(value.get("name")) for value in (before.target, run.target))),
        ("Precision", *(shown(value.get("precision")) for value in (before.target, run.target))),
        ("Source", *(origin_text(value) for value in (before.source, run.source))),
    ]
    rows += [(name, old, new) for name, old, new in said if old != new]
    now = {node.id for node in run.nodes}
    then = set(before.node_seconds)
    for title, ids in (("New nodes", now - then), ("Nodes that are gone", then - now)):
        if ids and run.nodes:
            named = f"{count(len(ids), 'node')}: {', '.join(sorted(ids))}"
            rows.append((title, *(("", named) if ids <= now else (named, ""))))
    finished = moment(before.finished)
    return section(
        "changes",
        "Since the last run",
        table(f"Compared with the run that ended on {finished}", ("", "Then", "Now"), rows),
    )

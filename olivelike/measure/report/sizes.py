"""What the source weighs, and what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._text import size
from olivelike.measure.report.element import Html, fold, section, table
from olivelike.measure.report.record_reading import mapping, number

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from olivelike.measure.report.record_reading import RunReport


def sizes(run: RunReport) -> Html:
    """Return the sizes of the source's weight files and of the files of each output."""
    content = [_table("Weight files of the source", run.source_files)]
    for folder, files in run.output_files.items():
        title = f"Files of {folder}"
        content.append(fold(f"{title}, {size(_sum(mapping(files)))}", _table(title, mapping(files))))
    return section("sizes", "Sizes", *content)


def _table(caption: str, files: Mapping[str, Any]) -> Html:
    rows = [(name, size(number(found))) for name, found in files.items()]
    if len(rows) > 1:
        rows.append(("all", size(_sum(files))))
    return table(caption, ("File", "Size"), rows, numbers=(1,))


def _sum(files: Mapping[str, Any]) -> float:
    return sum(map(number, files.values()))

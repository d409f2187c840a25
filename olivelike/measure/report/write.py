"""Writing the report of a run to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike._files import write_whole
from olivelike.measure.report.beside import read_beside
from olivelike.measure.report.page import page

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REPORT_FILE: Final = "report.html"


def write_report(record: Mapping[str, Any], folder: Path, output: Path | None = None) -> Path:
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
    write_whole(path, page(record, read_beside(folder)).encode(), durable=False)
    return path

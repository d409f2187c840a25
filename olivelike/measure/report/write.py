"""Writing the report of a run, from its record and what commands leave beside it: figures as JSON, and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike._untrusted import parse_json, read_bytes
from olivelike.measure.report.page import Beside, page

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.model.records.run_record import RunRecord

REPORT_FILE: Final = "report.html"
PROFILE_FILE: Final = "profile.json"
"""What `olivelike profile` measured: `FolderProfile.to_json`."""
BENCH_FILE: Final = "bench.json"
"""What `olivelike bench` measured: `BenchReport.to_json`."""
VERIFICATION_FILE: Final = "verification.json"
"""What `olivelike verify` found: figures by name in `components`, and `pictures`, which name their files."""


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

"""What commands leave beside a run's report: figures as JSON, and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import parse_json, read_bytes
from olivelike.measure.report.record_reading import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROFILE_FILE: Final = "profile.json"
"""What `olivelike profile` measured: `FolderProfile.to_json`."""
BENCH_FILE: Final = "bench.json"
"""What `olivelike bench` measured: `BenchReport.to_json`."""
VERIFICATION_FILE: Final = "verification.json"
"""What `olivelike verify` found: figures by name in `components`, and `pictures`, which name their files."""


@dataclass(frozen=True)
class Beside:
    """What lies beside a report."""

    folder: Path
    """Where pictures are."""
    profile: Mapping[str, Any] = field(default_factory=dict)
    verification: Mapping[str, Any] = field(default_factory=dict)
    bench: Mapping[str, Any] = field(default_factory=dict)
    """Each is empty if its command was not run."""


def read_beside(folder: Path) -> Beside:
    """Return what lies in a run's folder; what can't be read counts as absent."""
    return Beside(folder, *(_read(folder / name) for name in (PROFILE_FILE, VERIFICATION_FILE, BENCH_FILE)))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(parse_json(read_bytes(path)))
    except (OSError, ValueError):
        return {}

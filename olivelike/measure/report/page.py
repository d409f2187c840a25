"""The page of a run's report; paths in it are as readers elsewhere may see them.

That is relative to the project, or the name alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike._text import count, duration, size
from olivelike._untrusted import parse_json, read_bytes
from olivelike.measure.report import comparison
from olivelike.measure.report.comparison import pictures, verification
from olivelike.measure.report.content import Facts, moment
from olivelike.measure.report.outcome import fidelity, operators, outcome, placement, quantised_weights, speed
from olivelike.measure.report.step_facts import read_findings
from olivelike.measure.report.steps import steps
from olivelike.model.records.reading import from_json, to_json
from olivelike.model.records.run_record import RunRecord

if TYPE_CHECKING:
    from jinja2 import Template

STYLE: Final = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
TEMPLATE: Final = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_ENDS: Final = {"ok": "ended well", "failed": "failed", "interrupted": "was interrupted"}
REPORT_FILE: Final = "report.html"
PROFILE_FILE: Final = "profile.json"
"""Measurements of `olivelike profile`: `FolderProfile.to_json`."""
BENCH_FILE: Final = "bench.json"
"""Measurements of `olivelike bench`: `BenchReport.to_json`."""
FIDELITY_FILE: Final = "fidelity.json"
"""Measurements of `olivelike bench --method`: `FidelityReport.to_json`."""
VERIFICATION_FILE: Final = "verification.json"
"""Findings of `olivelike verify`: figures by name in `components`, and `pictures`, which name their files."""
_BESIDE: Final = (PROFILE_FILE, VERIFICATION_FILE, BENCH_FILE, FIDELITY_FILE)
_PLACES: Final = frozenset({"file", "project", "output", "outputs", "path", "log", "folder"})
"""Keys whose values are paths, or lists of them."""
_FILES_BY_PLACE: Final = frozenset({"output_files", "output_bytes"})
"""Keys of maps whose own keys are paths."""
_QUOTED: Final = re.compile(r"""(['"`])((?:/|[A-Za-z]:[\\/]|\\\\)[^'"`\n]*)\1""")
_ABSOLUTE: Final = re.compile(
    r"""(?<![\w.:/\\~…-])(?:/|[A-Za-z]:[\\/]|\\\\)(?:[^\s/\\:*?"'`<>|,;()\[\]{}]+[\\/])+[^\s/\\:*?"'`<>|,;()\[\]{}]*"""
)
"""Pattern of a path; of one with a space it finds the part before it. Paths that the record names are found whole."""


@dataclass(frozen=True)
class Beside:
    """Results that lie beside a report: JSON of commands, `None` where one was not run."""

    folder: Path
    """Folder of the pictures."""
    profile: object = None
    verification: object = None
    bench: object = None
    fidelity: object = None


def page(record: RunRecord, beside: Beside) -> str:
    """Return a report as HTML that is well-formed as XML too."""
    found = [beside.profile, beside.verification, beside.bench, beside.fidelity]
    run, others = without_absolute_paths(record, found)
    findings = read_findings(beside.folder, *others)
    sections = [
        comparison.errors(run),
        comparison.lost_weights(run),
        comparison.changes(run),
        steps(run),
        quantised_weights(run, findings.verified),
        verification(run, findings.verified),
        pictures(run, findings),
        speed(findings.bench),
        fidelity(findings.fidelity),
        operators(run),
        placement(findings.profile),
        comparison.sizes(run),
        comparison.adapters(run),
        comparison.details(run),
        comparison.environment(run),
    ]
    written = _template().render(
        run=run,
        style=STYLE,
        sentence=_sentence(run),
        figures=outcome(run, findings),
        facts=_facts(run),
        sections=sections,
        maker=f"Made by olivelike {run.versions.get('olivelike', '')}".rstrip() + ".",
    )
    return _UNPRINTABLE.sub("�", written)


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    return Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE)


def _facts(run: RunRecord) -> Facts:
    return Facts(
        [
            ("Target", f"{run.target.name} {run.target.precision}".rstrip()),
            ("Source", comparison.origin_text(run.source)),
            ("Output", run.outputs[0] if len(run.outputs) == 1 else ""),
            ("Workflow", f"from the command line: {run.command}" if run.command else run.file or ""),
            ("Finished", moment(run.finished)),
            ("Run", run.run_id),
        ]
    )


def _sentence(run: RunRecord) -> str:
    ran, stored = run.count("executed"), run.count("hit")
    parts = [f"{ran} of {count(len(run.nodes), 'node')} ran"]
    if stored:
        parts.append(f"{stored} {'was' if stored == 1 else 'were'} stored already")
    if shelved := run.count("shelf"):
        parts.append(f"{shelved} came from the shelf")
    parts += [f"{run.count(status)} {status}" for status in ("failed", "skipped") if run.count(status)]
    memory = f" and {size(run.peak_memory_bytes)} of memory at most" if run.peak_memory_bytes else ""
    end = _ENDS.get(run.status, "ended")
    return f"The run {end} after {duration(run.seconds)}{memory}: {', '.join(parts)}."


def write_report(record: RunRecord, folder: str | Path, output: str | Path | None = None) -> Path:
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
    folder = Path(folder)
    path = folder / REPORT_FILE if output is None else Path(output)
    beside = Beside(folder, *(_read(folder / name) for name in _BESIDE))
    write_whole(path, page(record, beside).encode(), durable=False)
    return path


def _read(path: Path) -> object:
    """Return the JSON of a file; what can't be read counts as absent."""
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError):
        return None


def without_absolute_paths(record: RunRecord, others: Sequence[object]) -> tuple[RunRecord, list[object]]:
    """Return a record, and JSON about the same run, without absolute paths in any text of theirs.

    Paths are shown relative to the project folder of `record`, a run's.
    """
    root, values = _project(record), [to_json(record), *others]
    known = {place: _short(place, root) for value in values for place in _places(value)}
    home = str(Path.home())
    if len(Path(home).parts) > 1:
        known.setdefault(home, "~")
    if root is not None:
        known[root] = "."
    ordered = sorted(known, key=len, reverse=True)
    named = re.compile(rf"(?<![\w./\\])(?:{'|'.join(map(re.escape, ordered))})(?![\w-])") if ordered else None

    def shorten(text: str) -> str:
        if "/" not in text and "\\" not in text:
            return text
        if named is not None:
            if root is not None:
                text = text.replace(f"{root}/", "").replace(f"{root}\\", "")
            text = named.sub(lambda found: known[found[0]], text)
        text = _QUOTED.sub(lambda found: f"{found[1]}{_short(found[2], root)}{found[1]}", text)
        return _ABSOLUTE.sub(lambda found: _short(found[0], root), text)

    shortened, *rest = (_mapped(value, shorten) for value in values)
    return from_json(RunRecord, shortened), rest


def _project(record: RunRecord) -> str | None:
    """Return the project folder; records of earlier versions name the workflow file alone."""
    if record.project is not None and _is_absolute(record.project):
        return record.project
    if record.file is None or not _is_absolute(record.file):
        return None
    folder = _pure(record.file).parent
    return str(folder.parent if folder.name == "workflows" else folder)


def _places(value: object, key: str = "") -> Iterator[str]:
    """Yield the absolute paths that stand where paths do."""
    if isinstance(value, str):
        if key in _PLACES and _is_absolute(value):
            yield value.rstrip("/\\")
    elif isinstance(value, list):
        for entry in value:
            yield from _places(entry, key)
    elif isinstance(value, dict):
        for name, entry in value.items():
            if key in _FILES_BY_PLACE and _is_absolute(name):
                yield name.rstrip("/\\")
            yield from _places(entry, name)


def _is_absolute(text: str) -> bool:
    is_path = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()
    return is_path and len(text.strip("/\\")) > 0 and "\n" not in text


def _short(path: str, root: str | None) -> str:
    place = _pure(path)
    if root is not None and place.is_relative_to(_pure(root)):
        return place.relative_to(root).as_posix()
    return f"…/{place.name}" if place.name else "…"


def _pure(path: str) -> PurePath:
    return PureWindowsPath(path) if re.match(r"[A-Za-z]:|\\\\", path) else PurePosixPath(path)


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(entry, change) for entry in value]
    if isinstance(value, dict):
        return {change(name): _mapped(entry, change) for name, entry in value.items()}
    return value

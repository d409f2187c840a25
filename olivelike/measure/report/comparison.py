"""Sections on what a run's record says by itself, and on pictures and results against the original."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from olivelike._text import count, duration, size
from olivelike._untrusted import read_bytes
from olivelike.engine.output.lost_values import TOLD, lost_values
from olivelike.measure.report.content import (
    Block,
    Facts,
    Failure,
    Fold,
    Heading,
    Items,
    Pictures,
    Section,
    Table,
    moment,
    shown,
)  # fmt: skip
from olivelike.measure.report.step_facts import Findings, Fusion, Quantised, Verified, fusion, quantised
from olivelike.model.records.origin import Origin
from olivelike.model.records.reading import part_of_json
from olivelike.model.records.run_record import NodeRecord, RunRecord

_TITLES: Final = {"verification": "Results against the original", "auto": "What must stay in float, by trial"}
"""Facts with figures, and what the tables of each are called."""
_PICTURES: Final = "pictures"
"""The fact that names pictures."""
COMPARISON_FACTS: Final = frozenset({*_TITLES, _PICTURES})
"""Facts that these sections show."""
_FIRST: Final = (
    "passed", "precision", "relative_error", "limit", "worst", "worst_at", "cosine", "nan", "inf",
)  # fmt: skip
"""Columns in this order; facts come in that of their names."""
_ALMOST_ONE: Final = 0.9
"""From here on, as for cosines, what counts are the digits after the nines."""
_KINDS: Final = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
_LARGEST: Final = 20_000_000
_SIDES: Final = {"original": "Original", "optimised": "Optimised", "difference": "Difference"}

Values = Mapping[str, object]


def verification(run: RunRecord, later: Verified) -> Section:
    """Return a table with a row per step, and for each step the figures of its single comparisons.

    `later` is what `olivelike verify` found of its output.
    """
    content: list[Block] = []
    for fact, title in _TITLES.items():
        content += _tables(title, "Step", {node.id: node.facts.get(fact) for node in run.nodes})
    content += _tables("The output against the original", "Network", later.components)
    return Section("verification", "Verification", tuple(content))


def _tables(title: str, first: str, by_name: Values) -> Iterator[Block]:
    found = [(name, figures) for name, figures in by_name.items() if figures and isinstance(figures, dict)]
    yield _table(title, first, [(name, _plain(figures)) for name, figures in found])
    for name, figures in found:
        singly = [single for single in _singly("", figures, top=True) if single[0]]
        title = f"Each comparison of {name}"
        yield Fold(title, (_table(title, "Comparison", singly),))


def _table(caption: str, first: str, rows: list[tuple[str, Values]]) -> Table:
    named = dict.fromkeys(name for _, figures in rows for name in figures)
    columns = [name for name in _FIRST if name in named] + [name for name in named if name not in _FIRST]
    numbers = [
        place
        for place, name in enumerate(columns, start=1)
        if all(_is_number(figures.get(name, 0)) or figures[name] is None for _, figures in rows)
    ]
    cells = [
        (label, *(_value(figures[name]) if name in figures else "" for name in columns)) for label, figures in rows
    ]
    header = (first, *(name.replace("_", " ") for name in columns))
    return Table(header, cells, numbers, caption)


def _singly(label: str, value: object, *, top: bool = False) -> Iterator[tuple[str, Values]]:
    """Yield each map of plain values with what is said around it: `batch 1, 16x24, seed 0 · out_sample`."""
    nested = [(name, entry) for name, entry in _entries(value) if _has_maps(entry)]
    if isinstance(value, dict) and not nested:
        yield label, value
        return
    plain = {} if top else _plain(value)
    around = _joined(label, ", ".join(_labelled(name, entry) for name, entry in plain.items()))
    for name, entry in nested:
        is_leaf = isinstance(entry, dict) and not any(map(_has_maps, entry.values()))
        is_named = len(nested) > 1 if isinstance(value, dict) else not _plain(entry)
        yield from _singly(_joined(around, name) if is_leaf or is_named else around, entry)


def _entries(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return list(value.items())
    return [(str(n), v) for n, v in enumerate(value, start=1)] if isinstance(value, list) else []


def _plain(value: object) -> dict[str, object]:
    entries = value.items() if isinstance(value, dict) else ()
    return {name: entry for name, entry in entries if not _has_maps(entry)}


def _has_maps(value: object) -> bool:
    if isinstance(value, dict):
        return True
    return isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value)


def _joined(first: str, second: str) -> str:
    return " · ".join(filter(None, (first, second)))


def _labelled(name: str, value: object) -> str:
    return shown(value) if isinstance(value, str) else f"{name} {shown(value)}"


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _value(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.3g}" if abs(value) < _ALMOST_ONE else f"{value:.6g}"
    return "not finite" if value is None else shown(value)


def pictures(run: RunRecord, findings: Findings) -> Section:
    """Return each pair of pictures with its figures; nothing if none is named that is there.

    Args:
        run: The run; the fact `pictures` of a step is a list of maps with the names of the files `original`,
            `optimised` and perhaps `difference`, and any figures.
        findings: The files, and such a list of `olivelike verify`.
    """
    lists = [*(node.facts.get(_PICTURES) for node in run.nodes), list(findings.verified.pictures)]
    pairs = [
        _pair(entry, findings.folder)
        for listed in lists
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, dict)
    ]
    return Section("pictures", "Pictures", tuple(pairs))


def _pair(entry: Values, folder: Path) -> Pictures:
    images = [(label, data) for side, label in _SIDES.items() if (data := _embedded(folder, entry.get(side)))]
    found = [
        (name.replace("_", " "), "infinite" if value is None else shown(value))
        for name, value in entry.items()
        if name not in _SIDES
    ]
    return Pictures(images, Facts(found))


def _embedded(folder: Path, name: object) -> str:
    """Return a picture as a `data:` address; nothing if it is absent, too large, or no picture."""
    if not isinstance(name, str) or not name:
        return ""
    relative = PurePath(name)
    if relative.is_absolute() or ".." in relative.parts:
        return ""
    path = folder / relative
    try:
        content = read_bytes(path, _LARGEST)
    except (OSError, ValueError):  # ValueError: no file can have such a name.
        return ""
    kind = next((kind for magic, kind in _KINDS.items() if content.startswith(magic)), None)
    return f"data:{kind};base64,{base64.b64encode(content).decode()}" if kind else ""


def origin_text(origin: Origin) -> str:
    """Return where a source comes from, and its VAE if that comes from elsewhere."""
    return f"{origin}, VAE of {origin.vae}" if origin.vae is not None else str(origin)


def errors(run: RunRecord) -> Section:
    """Return what went wrong: each failed node with its log, or else the error of the run."""
    failed = [node for node in run.nodes if node.status == "failed"]
    told = [Failure(node.id, node.error or "no message", node.log or "") for node in failed]
    if not failed and run.error:
        told.append(Failure("", run.error))
    return Section("errors", "What went wrong", tuple(told))


def lost_weights(run: RunRecord) -> Section:
    """Return what outputs could not keep of their weights as it was."""
    found = [(node.component, part_of_json(_Lost, dict(node.facts))) for node in run.nodes]
    told = [
        sentence
        for component, lost in found
        for kind in (TOLD if lost is not None else ())
        if (sentence := lost_values(component, kind, vars(lost))) is not None
    ]
    return Section("weights", "Weights that are not as they were", (Items(told),))


@dataclass(frozen=True)
class _Lost:
    """Facts of a node that writes weights: how many values of each initializer."""

    not_finite: Mapping[str, int] = field(default_factory=dict)
    saturated: Mapping[str, int] = field(default_factory=dict)


def changes(run: RunRecord) -> Section:
    """Return times, sizes and nodes of this run and the one before; nothing if the record knows of none."""
    before = run.previous
    if before is None:
        return Section("changes", "", ())
    ran = sum(node.status == "executed" for node in before.nodes.values())
    rows = [
        ("Time", duration(before.seconds), duration(run.seconds)),
        ("Nodes that ran", f"{ran:,}", f"{run.count('executed'):,}"),
    ]
    for path, files in run.output_files.items():
        name = f"Size of {path}" if len(run.output_files) > 1 else "Size"
        old = before.output_bytes.get(path)
        rows.append((name, size(old) if old is not None else "not there", size(sum(files.values()))))
    said = [
        ("Target", before.target.name, run.target.name),
        ("Precision", before.target.precision, run.target.precision),
        ("Source", origin_text(before.source), origin_text(run.source)),
    ]
    rows += [(name, old, new) for name, old, new in said if old != new]
    now, then = {node.id for node in run.nodes}, set(before.nodes)
    for title, ids in (("New nodes", now - then), ("Nodes that are gone", then - now)):
        if ids and run.nodes:
            named = f"{count(len(ids), 'node')}: {', '.join(sorted(ids))}"
            rows.append((title, *(("", named) if ids <= now else (named, ""))))
    caption = f"Compared with the run that ended on {moment(before.finished)}"
    return Section("changes", "Since the last run", (Table(("", "Then", "Now"), rows, caption=caption),))


def sizes(run: RunRecord) -> Section:
    """Return the sizes of the source's weight files and of the files of each output."""
    content: list[Block] = [_sizes("Weight files of the source", run.source_files)]
    for folder, files in run.output_files.items():
        title = f"Files of {folder}"
        content.append(Fold(f"{title}, {size(sum(files.values()))}", (_sizes(title, files),)))
    return Section("sizes", "Sizes", tuple(content))


def _sizes(caption: str, files: Mapping[str, int]) -> Table:
    rows = [(name, size(found)) for name, found in files.items()]
    if len(rows) > 1:
        rows.append(("all", size(sum(files.values()))))
    return Table(("File", "Size"), rows, (1,), caption)


def adapters(run: RunRecord) -> Section:
    """Return what was merged into the source, with its weights."""
    loras = [(str(lora.origin), shown(lora.weight), shown(lora.weights), lora.adapter or "") for lora in run.loras]
    embeddings = [(str(found.origin), found.token, shown(found.vectors)) for found in run.embeddings]
    merged = Table(("File", "Weight", "By component", "Adapter"), loras, (1,), "LoRAs that were merged")
    inversions = Table(("File", "Token", "Vectors"), embeddings, caption="Textual inversions")
    return Section("adapters", "LoRAs and embeddings", (merged, inversions))


def details(run: RunRecord) -> Section:
    """Return the facts of all steps that no other section shows, a row for each step."""
    rows = []
    for node in run.nodes:
        elsewhere = _shown_elsewhere(node)
        named = [(name.replace("_", " "), shown(value)) for name, value in node.facts.items() if name not in elsewhere]
        if found := Facts(named):
            rows.append((node.id, found))
    table = Table(("Step", "Recorded"), rows, caption="Facts that no other section shows", style="facts")
    return Section("details", "Details", (Fold(f"What {count(len(rows), 'step')} recorded", (table,)),))


def _shown_elsewhere(node: NodeRecord) -> frozenset[str]:
    if node.name == "materialize":
        return COMPARISON_FACTS | {"files"}
    if quantised(node) is not None:
        return COMPARISON_FACTS | set(Quantised.__annotations__)
    return COMPARISON_FACTS if fusion(node) is None else COMPARISON_FACTS | set(Fusion.__annotations__)


def environment(run: RunRecord) -> Section:
    """Return the kind of machine and the versions of the libraries."""
    host = run.host
    machine = [
        ("Machine", " ".join(filter(None, (host.system, host.release, host.machine)))),
        ("Cores", shown(host.cores)),
        ("Memory", size(host.memory_bytes) if host.memory_bytes else ""),
    ]
    versions = Facts(list(run.versions.items()))
    return Section("environment", "Environment", (Facts(machine), Heading("Versions"), versions))

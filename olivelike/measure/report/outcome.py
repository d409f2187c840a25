"""What came of a run, first of all: sizes, errors, speed, nodes; a row for each output where there are several."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike._text import change_of_size, count, size
from olivelike.measure.report.element import Html, element, join, table
from olivelike.measure.report.operators import is_fused
from olivelike.measure.report.record_reading import is_number, mapping, number, shown, text
from olivelike.measure.report.speed_section import fastest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from olivelike.measure.report.beside import Beside
    from olivelike.measure.report.record_reading import NodeReport, RunReport

Tile = tuple[str, str, str]
"""A name, the figure, and what is to be said of it."""


@dataclass(frozen=True)
class _Outcome:
    """What is known of one output."""

    size: float
    """Of its files; 0 if they are not known."""
    nodes: tuple[float, float] | None
    """Of its graphs that were fused, before and after."""
    fused: str
    """How many that is, where it is not all of them."""
    verified: tuple[tuple[str, Mapping[str, Any]], ...]
    """Networks with their figures."""


def outcome(run: RunReport, beside: Beside) -> Html:
    """Return the figures that a reader asks for first; of several outputs a table."""
    found = {path: _outcome(run, path, beside) for path in run.outputs}
    source = sum(map(number, run.source_files.values()))
    if len(found) > 1:
        return join((_by_output(found, source), _hint(run, beside)))
    (path, one), *_ = [*found.items(), ("", _outcome(run, "", beside))]
    there = path if one.size or run.status == "ok" else ""
    tiles = [_size(source, one.size), _error(one.verified, there), _speed(beside, there), _nodes(one)]
    shown_tiles = [
        element("div", element("dt", name), element("dd", element("strong", figure), element("small", said)))
        for name, figure, said in tiles
    ]
    return element("dl", *shown_tiles, class_="tiles")


def outcome_names(run: RunReport) -> dict[str, str]:
    """Return what the outputs are called, by folder: their last names where these are different."""
    names = {path: path.replace("\\", "/").rsplit("/", 1)[-1] for path in run.outputs}
    return names if len(set(names.values())) == len(names) else {path: path for path in run.outputs}


def _outcome(run: RunReport, path: str, beside: Beside) -> _Outcome:
    by_id = {node.id: node for node in run.nodes}
    written = [node for node in run.nodes if node.name == "materialize"]
    parents = {node.parent for node in run.nodes}
    only = path if len(run.outputs) <= 1 else ""  # Records of earlier versions do not say who writes what.
    ends = [node for node in written or run.nodes if (node.output or only) == path and node.id not in parents]
    chains = [list(_upwards(node, by_id)) for node in ends]
    fused = [[node for node in chain if is_fused(node)] for chain in chains]
    pairs = [
        (number(c[-1].facts.get("nodes_before")), number(c[0].facts.get("nodes_after"))) for c in fused if c
    ]
    verified = [
        (node.component, mapping(node.facts.get("verification")))
        for chain in chains
        for node in chain
        if mapping(node.facts.get("verification"))
    ]
    folder = text(beside.verification.get("folder"))
    if len(run.outputs) <= 1 or (folder and folder in {path, outcome_names(run)[path]}):
        later = mapping(beside.verification.get("components"))
        verified += [(name, mapping(figures)) for name, figures in later.items()]
    files = mapping(run.output_files.get(path))
    nodes = (sum(before for before, _ in pairs), sum(after for _, after in pairs)) if pairs else None
    fused_share = f"{len(pairs)} of {count(len(chains), 'network')}" if len(pairs) < len(chains) else ""
    return _Outcome(sum(map(number, files.values())), nodes, fused_share, tuple(verified))


def _upwards(node: NodeReport, by_id: Mapping[str, NodeReport]) -> Iterator[NodeReport]:
    """Yield a node and all that it comes from, the nearest first."""
    passed: set[str] = set()
    at: NodeReport | None = node
    while at is not None and at.id not in passed:
        passed.add(at.id)
        yield at
        at = by_id.get(at.parent or "")


def _size(source: float, written: float) -> Tile:
    if not written:
        return "Size", size(source) if source else "unknown", "of the source; nothing was written"
    if not source:
        return "Size", size(written), "of the output"
    return "Size", change_of_size(source, written), f"{_share(source, written)}, source to output"


def _share(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.0f} %".replace("-", "\N{MINUS SIGN}")


def _error(verified: Iterable[tuple[str, Mapping[str, Any]]], path: str) -> Tile:
    """Return the largest relative error against the original; what is not finite is larger than any number."""
    errors = [
        (_finite(figures["relative_error"]), name, figures)
        for name, figures in verified
        if "relative_error" in figures
    ]
    if not errors:
        return "Worst error", "not compared", _command("verify", path)
    worst, name, figures = max(errors, key=lambda item: item[0])
    too_far = any(figures.get("passed") is False for _, _, figures in errors)
    limit = f", limit {figures['limit']:.0e}" if is_number(figures.get("limit")) else ""
    verdict = "too far off" if too_far else f"in {name}"
    return "Worst error", _figure(worst), f"{verdict}{limit}; relative to the original"


def _finite(value: Any) -> float:
    return float(value) if is_number(value) else math.inf


def _figure(error: float) -> str:
    return f"{error:.1e}" if math.isfinite(error) else "not finite"


def _speed(beside: Beside, path: str) -> Tile:
    row = fastest(beside.bench)
    if row is None:
        return "Speed", "not measured", _command("bench", path)
    against = row.get("speed_against")
    ratio, median = row.get("speed"), number(row.get("median_latency"))
    batch = "picture" if row.get("batch_size") == 1 else f"batch of {shown(row.get('batch_size'))}"
    noisy = "; noisy, see Speed" if row.get("note") else ""
    engine = f"{shown(row.get('engine'))}{noisy}"
    if is_number(ratio) and against and against != row.get("engine"):
        return "Speed", f"{ratio:.2f}x {shown(against)}", f"{median:.3g} s a {batch}, {engine}"
    return "Speed", f"{median:.3g} s", f"a {batch}, {engine}"


def _hint(run: RunReport, beside: Beside) -> Html:
    if fastest(beside.bench) is not None or run.status != "ok":
        return Html()
    return element("p", "Speed is not measured: ", _command("bench", run.outputs[0]), class_="hint")


def _command(name: str, path: str) -> str | Html:
    if not path:
        return "there is no output"
    folder = "FOLDER" if path.startswith("…") else shlex.quote(path)
    return element("code", f"olivelike {name} {folder} ", element("span", "--report", class_="whole"))


def _nodes(one: _Outcome) -> Tile:
    if one.nodes is None:
        return "Graph nodes", "not fused", "no step `fuse` has run in it"
    before, after = one.nodes
    return (
        "Graph nodes",
        f"{before:,.0f} → {after:,.0f}",
        f"{_share(before, after) if before else ''} by fusion",
    )


def _nodes_text(one: _Outcome) -> str | Html:
    if one.nodes is None:
        return "not fused"
    figures = f"{one.nodes[0]:,.0f} → {one.nodes[1]:,.0f}"
    return join((figures, element("small", f" in {one.fused}"))) if one.fused else figures


def _by_output(found: Mapping[str, _Outcome], source: float) -> Html:
    rows = []
    for path, one in found.items():
        errors = [
            _finite(figures["relative_error"]) for _, figures in one.verified if "relative_error" in figures
        ]
        rows.append(
            (
                path,
                size(one.size) if one.size else "not written",
                _share(source, one.size) if one.size and source else "",
                _nodes_text(one),
                _figure(max(errors)) if errors else "not compared",
            )
        )
    header = ("Output", "Size", "Change", "Graph nodes", "Worst error")
    caption = f"{count(len(rows), 'output')} of a source of {size(source)}"
    return table(caption, header, rows, numbers=(1, 2, 3, 4))

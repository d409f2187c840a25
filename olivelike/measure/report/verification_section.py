"""How far results are from the original model, as steps leave it in the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from olivelike.measure.report.element import Html, fold, section, table
from olivelike.measure.report.record_reading import is_number, mapping, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from olivelike.measure.report.record_reading import RunReport

VERIFICATION_FACTS: Final = {
    "verification": "Results against the original",
    "auto": "Half precision, by trial",
}
"""Facts that this section shows, and what the tables of each are called."""

_FIRST: Final = (
    "passed",
    "precision",
    "relative_error",
    "limit",
    "worst",
    "worst_at",
    "cosine",
    "nan",
    "inf",
)
"""Columns in this order; facts come in that of their names."""

Figures = tuple[str, "Mapping[str, Any]"]


def verification(run: RunReport, later: Mapping[str, Any]) -> Html:
    """Return a table with a row per step, and for each step the figures of its single comparisons.

    Args:
        run: The run.
        later: What `olivelike verify` found of its output; empty if it was not run.
    """
    content: list[Html] = []
    for fact, title in VERIFICATION_FACTS.items():
        found = [(node.id, node.facts[fact]) for node in run.nodes if mapping(node.facts.get(fact))]
        content += _tables(title, "Step", found)
    components = [item for item in mapping(later.get("components")).items() if mapping(item[1])]
    content += _tables("The output against the original", "Network", components)
    return section("verification", "Verification", *content)


def _tables(title: str, first: str, found: list[Figures]) -> Iterator[Html]:
    yield _table(title, first, [(name, _plain(figures)) for name, figures in found])
    for name, figures in found:
        singly = [single for single in _singly("", figures, top=True) if single[0]]
        title = f"Each comparison of {name}"
        yield fold(title, _table(title, "Comparison", singly))


def _table(caption: str, first: str, rows: list[Figures]) -> Html:
    named = dict.fromkeys(name for _, figures in rows for name in figures)
    columns = [name for name in _FIRST if name in named] + [name for name in named if name not in _FIRST]
    numbers = [
        place
        for place, name in enumerate(columns, start=1)
        if all(is_number(figures.get(name, 0)) or figures[name] is None for _, figures in rows)
    ]
    cells = [
        (label, *(_value(figures[name]) if name in figures else "" for name in columns))
        for label, figures in rows
    ]
    header = (first, *(name.replace("_", " ") for name in columns))
    return table(caption, header, cells, numbers=numbers)


def _singly(label: str, value: Any, *, top: bool = False) -> Iterator[Figures]:
    """Yield each map of plain values with what is said around it: `batch 1, 16x24, seed 0 · out_sample`."""
    entries = (
        value.items() if isinstance(value, dict) else [(str(n), v) for n, v in enumerate(value, start=1)]
    )
    nested = [(name, entry) for name, entry in entries if _has_maps(entry)]
    if isinstance(value, dict) and not nested:
        yield label, value
        return
    plain = {} if top else _plain(value)
    around = _joined(label, ", ".join(_labelled(name, entry) for name, entry in plain.items()))
    for name, entry in nested:
        is_leaf = isinstance(entry, dict) and not any(map(_has_maps, entry.values()))
        is_named = len(nested) > 1 if isinstance(value, dict) else not _plain(entry)
        yield from _singly(_joined(around, name) if is_leaf or is_named else around, entry)


def _plain(value: Any) -> dict[str, Any]:
    return {name: entry for name, entry in mapping(value).items() if not _has_maps(entry)}


def _has_maps(value: Any) -> bool:
    if isinstance(value, dict):
        return True
    return isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value)


def _joined(first: str, second: str) -> str:
    return " · ".join(filter(None, (first, second)))


def _labelled(name: str, value: Any) -> str:
    return shown(value) if isinstance(value, str) else f"{name} {shown(value)}"


def _value(value: Any) -> str:
    if isinstance(value, float) and is_number(value):
        return f"{value:.3g}" if abs(value) < _ALMOST_ONE else f"{value:.6g}"
    return "not finite" if value is None else shown(value)


_ALMOST_ONE: Final = 0.9
"""From here on, as for cosines, what counts are the digits after the nines."""

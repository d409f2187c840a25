"""Display of the combinations of a matrix: a line as each ends, and one table; programs get JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from olivelike._table import Table
from olivelike._text import count, duration, listed, quoted, size
from olivelike._untrusted import Json
from olivelike.cli.display.text import ended, fitted, message
from olivelike.cli.stdout import write_error, write_found, write_json, write_line
from olivelike.engine.execute.events import Event
from olivelike.engine.fleet import PARALLEL, FleetResult, plan_fleet, run_fleet
from olivelike.engine.prepared import Options
from olivelike.engine.run import gravest
from olivelike.errors import OlivelikeError
from olivelike.workflow.findings import file_label
from olivelike.workflow.places import Place

_STATUSES = ("hit", "shelf", "miss", "pending", "uncached")
_SHOWN = 5
"""Most combinations that an error names."""


def show_fleet_plan(workflow: str | Place, options: Options, json: bool) -> None:
    """Plan all combinations of a workflow's matrix and write what each would do."""
    fleet = plan_fleet(workflow, options)
    rows: list[Json] = []
    warnings: dict[str, list[str]] = {}
    for name, (prepared, plan) in fleet.plans.items():
        for warning in plan.warnings:
            warnings.setdefault(warning, []).append(name)
        found = Counter(str(planned.status) for planned in plan.nodes)
        write = sum(planned.write_bytes for planned in plan.nodes if planned.status not in {"hit", "shelf"})
        rows.append(
            {
                "combination": name,
                "nodes": len(plan.nodes),
                **{status: found[status] for status in _STATUSES},
                "write_bytes": write,
                "outputs": [str(output.path) for output in prepared.outputs],
            }
        )
    for warning, names in warnings.items():
        write_error(f"warning: {listed(names, _SHOWN)}: {warning}")
    value = {"combinations": rows, "shared_nodes": fleet.shared}
    header = ("combination", "nodes", *_STATUSES, "writes")
    cells = [(row["combination"], *(str(row[key]) for key in header[1:-1]), size(row["write_bytes"])) for row in rows]
    runs = sum(row["nodes"] - row["hit"] - row["shelf"] for row in rows)
    last = (
        f"{count(len(rows), 'combination')}: {count(runs, 'node')} to run at most, {fleet.shared} of them the same as "
        f"another; about {size(sum(row['write_bytes'] for row in rows))} to write"
    )
    write_found(value, map(fitted, [*Table(header, cells, right=range(1, len(header))).lines(), "", last]), json=json)


def show_fleet(workflow: str | Place, options: Options, json: bool, most: int | None) -> None:
    """Run all combinations of a workflow's matrix, and write a table of what became of them.

    Raises `OlivelikeError` if one failed; the others are complete.
    """
    from olivelike.measure.report import write_report

    names: dict[str, str] = {}
    start, done, reports = time.perf_counter(), 0, dict[str, str]()

    def tell(event: Event) -> None:
        nonlocal done
        if event.name == "run_started":
            names[event.data["combination"]] = event.data["workflow"]
        if json:
            write_json(event.to_json())
        elif event.name == "warning":
            where = f"{event.data['combination']}: " if "combination" in event.data else ""
            write_error(f"warning: {where}{event.data['message']}")
        elif event.name == "run_finished":
            done += 1
            data = event.data
            if data["report"] is not None:
                reports[names[data["combination"]]] = data["report"]
            write_line(f"{done:>4}  {data['combination']}  {_outcome(data)}, {duration(data['seconds'])}")

    result = FleetResult({}, 0.0)
    try:
        result = run_fleet(workflow, options, tell, write_report, most=most or PARALLEL)
        if not json:
            for line in (*_lines(result), *_report_line(reports)):
                write_line(line)
        if (failure := _error(result)) is not None:
            raise failure
    finally:
        if json:  # It comes last whatever happened.
            result = replace(result, seconds=time.perf_counter() - start)
            write_json({"event": "fleet_finished", **_to_json(result, sys.exception())})


def _report_line(reports: Mapping[str, str]) -> list[str]:
    """Say where the last report is, and how one comes to the others."""
    if not reports:
        return []
    name, path = list(reports.items())[-1]
    first = quoted(next(iter(reports)))
    more = f"; {len(reports) - 1} more, such as `olivelike report {first}`" if len(reports) > 1 else ""
    return [f"report of {name}: {file_label(Path(path))}{more}"]


def _error(result: FleetResult) -> OlivelikeError | None:
    """Return the error that stands for those of combinations; what several failed of is told once."""
    if not result.failed:
        return None
    causes: dict[str, list[str]] = {}
    for name, one in result.failed.items():
        causes.setdefault(str(one), []).append(name)
    told = "\n".join(f"{listed(names, _SHOWN)}: {cause}" for cause, names in causes.items())
    return gravest(list(result.failed.values()))(told)


def _outcome(data: Json) -> str:
    if data["status"] != "ok":
        return str(data["status"])
    return f"{data['executed']} of {count(data['nodes'], 'node')} ran" if data["executed"] else "nothing to do"


def _to_json(result: FleetResult, error: BaseException | None) -> Json:
    rows = {
        name: {"error": str(one)} if isinstance(one, OlivelikeError) else one.to_json()
        for name, one in result.results.items()
    }
    return {
        "status": "ok" if error is None else ended(error),
        "seconds": round(result.seconds, 3),
        "failed": len(result.failed),
        "combinations": rows,
        "error": message(error),
    }


def _lines(result: FleetResult) -> list[str]:
    rows, executed = [], 0
    for name, one in result.results.items():
        if isinstance(one, OlivelikeError):
            rows.append((name, "failed", "", "", "", "", ""))
            continue
        executed += one.executed
        output = " and ".join(file_label(path) for path in one.outputs)
        rows.append(
            (name, one.status, str(one.executed), str(one.hits), str(one.shelved), duration(one.seconds), output)
        )
    header = ("combination", "status", "ran", "stored", "shelf", "time", "output")
    failed = f", {len(result.failed)} failed" if result.failed else ""
    last = f"{count(len(rows), 'combination')} in {duration(result.seconds)}: {count(executed, 'node')} ran{failed}"
    return ["", *Table(header, rows, right=range(2, 6)).lines(), "", last]

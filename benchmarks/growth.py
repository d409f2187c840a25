"""How planning grows with nodes, and the store's operations with objects; drawn into an SVG.

    python benchmarks/growth.py                    # 10 to 10,000 nodes, 10³ to 10⁶ objects: minutes, 5 GB
    python benchmarks/growth.py --most 100000      # fewer objects
    python benchmarks/growth.py --draw docs/growth.svg

Seconds are those of this machine. What counts is how they grow: `n` from one column to the next is ten times as many.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import html
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from fleet import write_workflow

from olivelike.engine.fleet import plan_fleet
from olivelike.extras.shared_store.address import parse_address
from olivelike.extras.shared_store.collection import measure
from olivelike.extras.shared_store.shared_store import SharedStore
from olivelike.store import Action, Store
from olivelike.store.actions import KIND
from olivelike.store.folder import seal

PARTS = 10
"""Objects of a result."""
Times = dict[str, dict[int, float]]
"""Seconds by what was done and how many there were."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def action(number: int, data: dict[str, bytes]) -> Action:
    """Return a result with objects of its own."""
    parts = {name: len(one) for name, one in data.items()}
    outputs = {"graph": next(iter(parts))}
    return Action(digest(f"key {number}"), {"pass": "fuse"}, outputs, parts, {}, 1.0, 0, str(dt.datetime.now(dt.UTC)))


def fill(root: Path, first: int, last: int) -> None:
    """Put results from one number to another into a folder, as plain files, without waiting for the disk."""
    for top in ("objects", "actions"):
        for number in range(256):
            (root / top / f"{number:02x}").mkdir(parents=True, exist_ok=True)
    for number in range(first, last):
        contents = [f"object {number} {part}".encode() * 4 for part in range(PARTS)]
        data = {hashlib.sha256(one).hexdigest(): one for one in contents}
        for name, one in data.items():
            (root / "objects" / name[:2] / name).write_bytes(one)
        made = action(number, data)
        (root / "actions" / made.key[:2] / f"{made.key}.json").write_bytes(seal(KIND, asdict(made)))


def seconds(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def store_times(most: int) -> Times:
    """Measure the store's operations with ever more objects in it."""
    found: Times = {}
    with tempfile.TemporaryDirectory() as folder:
        root, objects, done = Path(folder, "cache"), 1000, 0
        while objects <= most:
            fill(root, done, objects // PARTS)
            done = objects // PARTS
            with tempfile.TemporaryDirectory() as other:
                row = measured(root, done, Store.open(Path(other)))
            for name, took in row.items():
                found.setdefault(name, {})[objects] = took
            told = ", ".join(f"{name} {took:.2g} s" for name, took in row.items())
            print(f"{objects:,} objects: {told}", flush=True)
            objects *= 10
    return found


def measured(root: Path, results: int, theirs: Store) -> dict[str, float]:
    """Return how long operations take on a store with so many results; the other store fetches from it."""
    store = Store.open(root)
    shared = SharedStore(parse_address(f"file://{root}", "here"))
    some = [digest(f"key {number}") for number in random.Random(1).sample(range(results), min(results, 200))]

    def put(at: int) -> None:
        data = f"new {results} {at}".encode()
        store.put_action(action(-results - at, {store.put_bytes(data): data}))

    def fetch(key: str) -> None:
        found = shared.find(key)
        assert found is not None
        assert shared.fetch(found, theirs)

    return {
        "open": statistics.median(seconds(lambda: Store.open(root)) for _ in range(5)),
        "find a result": statistics.median(seconds(partial(store.get_action, key)) for key in some),
        "put a result": statistics.median(seconds(partial(put, at)) for at in range(30)),
        "fetch a shared result": statistics.median(seconds(partial(fetch, key)) for key in some[:20]),
        "size of all": seconds(store.size),
        "list a shared store": seconds(partial(measure, shared)),
        "collect": seconds(partial(store.gc, 1 << 50, 3600.0)),
        "verify all": seconds(store.verify),
    }


def plan_times(most: int) -> Times:
    """Measure planning of ever larger matrices."""
    found: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for sources, devices in ((1, 1), (1, 5), (10, 5)):
            file = write_workflow(Path(folder), sources, devices)
            start = time.perf_counter()
            plans = plan_fleet(str(file)).plans.values()
            took = time.perf_counter() - start
            nodes = sum(len(plan.nodes) for _, plan in plans)
            if nodes <= most:
                found[nodes] = took
            print(f"{nodes:,} nodes planned in {took:.2f} s", flush=True)
    return {"plan": found}


def growth(times: dict[int, float]) -> str:
    """Return how a time grows: the exponent between the last two sizes; 1 is linear."""
    (few, early), (many, late) = sorted(times.items())[-2:]
    return f"n^{math.log(late / early) / math.log(many / few):.2f}"


def draw(times: Times, path: Path) -> None:
    """Draw the times on logarithmic axes; a dashed line grows as n log n."""
    left, top, width, height = 70, 20, 520, 330
    sizes = [n for row in times.values() for n in row]
    low, high = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
    values = [took for row in times.values() for took in row.values()]
    floor, ceiling = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def place(n: float, took: float) -> str:
        x = left + width * (math.log10(n) - low) / (high - low)
        y = top + height * (ceiling - math.log10(took)) / (ceiling - floor)
        return f"{x:.1f},{y:.1f}"

    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 400" font-family="sans-serif" font-size="12">',
        '<rect width="800" height="400" fill="#fff"/>',
    ]
    for power in range(low, high + 1):
        x = place(10**power, 10**floor).partition(",")[0]
        lines.append(f'<path d="M{x} {top}V{top + height}" stroke="#ddd"/>')
        lines.append(f'<text x="{x}" y="372" text-anchor="middle">{10**power:,}</text>')
    for power in range(floor, ceiling + 1):
        y = place(10**low, 10**power).partition(",")[2]
        lines.append(f'<path d="M{left} {y}H{left + width}" stroke="#ddd"/>')
        lines.append(f'<text x="62" y="{y}" text-anchor="end">{10.0**power:g} s</text>')
    lines.append(f'<text x="{left + width / 2}" y="392" text-anchor="middle">objects, or nodes of a plan</text>')
    first, last = 10.0 ** max(low, 3), 10.0**high
    unit = 10.0**floor * 3 / (first * math.log(first))
    steep = [place(n, unit * n * math.log(n)) for n in (first, last) if unit * n * math.log(n) <= 10.0**ceiling]
    if len(steep) == 2:
        lines.append(f'<polyline points="{" ".join(steep)}" fill="none" stroke="#888" stroke-dasharray="6 4"/>')
    colors = ("#1b6ca8", "#c8553d", "#4c8c4a", "#8e5ea2", "#b8860b", "#333", "#d1495b", "#00798c", "#6a4c93")
    for (name, row), color, number in zip(times.items(), colors, range(99), strict=False):
        points = " ".join(place(n, took) for n, took in sorted(row.items()))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        label = html.escape(f"{name}: {growth(row)}")
        lines.append(f'<text x="606" y="{40 + 20 * number}" fill="{color}">{label}</text>')
    path.write_text("\n".join([*lines, "</svg>", ""]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="objects")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="write an SVG")
    asked = parser.parse_args()
    times = plan_times(20_000) | store_times(asked.most)
    for name, row in times.items():
        print(f"{name:<24} {growth(row)}")
    if asked.draw:
        draw(times, asked.draw)


if __name__ == "__main__":
    main()

"""How large the server's page is in each language, and how soon it is first painted.

    olivelike run workflows/demo.yaml
    python benchmarks/page.py models/demo                       # Chromium and `pip install playwright`
    python benchmarks/page.py models/demo --beside OTHER_TREE   # two trees in turns
    python benchmarks/page.py models/demo --latency 80          # as a server far away

A browser's context is new for each turn, so that nothing is cached at its first visit, and all at its second. What
other programs take of the machine is in each figure: of two trees, compare quartiles.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
LANGUAGES = ("en", "de", "zh", "ja", "es", "fr")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAINTED = """() => new Promise((told) => {
  const found = () => performance.getEntriesByName("first-contentful-paint")[0];
  if (found()) return told(found().startTime);
  new PerformanceObserver(() => found() && told(found().startTime)).observe({ type: "paint", buffered: true });
})"""
READY = "() => performance.now()"
FETCHED = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .map((one) => [one.name, one.decodedBodySize])"""


@contextmanager
def server(tree: Path, folder: Path, gallery: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "olivelike",
        "serve",
        str(folder.absolute()),
        "--port",
        "0",
        "--gallery",
        str(gallery),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
    )
    try:
        yield process.stdout.readline().split()[0]
    finally:
        process.terminate()
        process.wait(10)


def sizes(url: str, browser: Any) -> None:
    """Print the bytes that a browser fetches of the page in each language."""
    for language in LANGUAGES:
        context = browser.new_context(locale=language)
        page = context.new_page()
        page.goto(url)
        page.locator("html[data-ready]").wait_for(state="attached")
        fetched = {re.sub(r"https?://[^/]+", "", address): size for address, size in page.evaluate(FETCHED)}
        own = {path: size for path, size in fetched.items() if path == "/" or path.startswith("/page/")}
        declared = next(size for path, size in own.items() if path.endswith("/declared.js"))
        print(
            f"{language}: {sum(own.values()) / 1000:.1f} KB in {len(own)} files "
            f"(document {own['/'] / 1000:.1f}, declared {declared / 1000:.1f})"
        )
        context.close()


def visit(url: str, browser: Any, language: str, latency: float) -> tuple[float, float, float]:
    """Return the milliseconds until the page is first painted, until it may be used, and so at a second visit."""
    context = browser.new_context(locale=language)
    page = context.new_page()
    if latency:
        network = context.new_cdp_session(page)
        network.send("Network.enable")
        slow = {"offline": False, "latency": latency, "downloadThroughput": -1, "uploadThroughput": -1}
        network.send("Network.emulateNetworkConditions", slow)
    page.goto(url, wait_until="commit")
    painted = page.evaluate(PAINTED)
    page.locator("html[data-ready]").wait_for(state="attached")
    ready = page.evaluate(READY)
    page.goto(url, wait_until="commit")
    page.locator("html[data-ready]").wait_for(state="attached")
    again = page.evaluate(READY)
    context.close()
    return painted, ready, again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--language", default="en", choices=LANGUAGES)
    parser.add_argument("--latency", type=float, default=0, help="milliseconds that each answer takes longer")
    parser.add_argument("--beside", type=Path, help="another tree, measured in turns")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    trees = [HERE, *([options.beside.absolute()] if options.beside else [])]
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as scratch:
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        times: dict[Path, list[tuple[float, float, float]]] = {tree: [] for tree in trees}
        with ExitStack() as servers:
            urls = {
                tree: servers.enter_context(server(tree, options.folder, Path(scratch, str(number))))
                for number, tree in enumerate(trees)
            }
            sizes(urls[HERE], browser)
            for turn in range(options.turns + 1):
                for tree, url in urls.items():
                    found_times = visit(url, browser, options.language, options.latency)
                    if turn:  # The first one fills the server's caches.
                        times[tree].append(found_times)
        browser.close()
    for tree, rows in times.items():
        for name, column in zip(("first paint", "ready", "ready again"), zip(*rows, strict=True), strict=False):
            low, middle, high = statistics.quantiles(column, n=4)
            told = f"{name} {middle:.0f} ms in the median of {len(column)}, quartiles {low:.0f} and {high:.0f}"
            print(f"{tree.name}, {options.language}: {told}, least {min(column):.0f}")


if __name__ == "__main__":
    main()

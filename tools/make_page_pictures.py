"""Makes the pictures of the server's page and of the static one in `docs/`, of the demo and the pages as they are now.

    olivelike run workflows/demo.yaml
    python -m tools.make_page_pictures models/demo
    olivelike convert demo -t cpu --layout web -o models/demo_web
    olivelike export-web models/demo_web site
    python -m tools.make_page_pictures --site site

Needs playwright (`pip install playwright`) and Chromium, as `tests/serve/page` does.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parents[1] / "docs"
_WIDE: Final = {"width": 1440, "height": 900}
_LIGHT: Final = {
    "prompt": "a {red circle|green square|yellow triangle} on a (blue:1.2) background", "negative_prompt": "blurry",
    "steps": "30", "guidance_scale": "2", "seed": "1", "num_images": "8",
}  # fmt: skip
_DARK: Final = {"prompt": "a red circle on a blue background", "steps": "30", "seed": "1"}
_AXES: Final = {"x": ("prompt_sr", "red circle, green square, yellow triangle"), "y": ("guidance_scale", "1.5, 4, 7.5")}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="What `olivelike serve` serves.")
    parser.add_argument("--site", type=Path, help="What `olivelike export-web` wrote.")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as gallery, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if given.folder:
            command = [
                sys.executable,
                "-m",
                "olivelike",
                "serve",
                str(given.folder),
                "--port",
                "0",
                "--gallery",
                gallery,
            ]
            with _running(command) as address:
                _draw_light(_page(browser, address, "light"))
                _draw_dark(_page(browser, address, "dark"))
        if given.site:
            command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(given.site)]
            with _running(command) as address:
                _draw_site(_page(browser, address, "light"))
        browser.close()
    return 0


@contextmanager
def _running(command: list[str]) -> Iterator[str]:
    """Run a server; yield its address, which is in its first line."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        server.terminate()
        server.wait()


def _page(browser: Any, address: str, scheme: str) -> Any:
    page = browser.new_context(viewport=_WIDE, color_scheme=scheme, locale="en").new_page()
    page.goto(address)
    page.locator("#generate:enabled").wait_for(timeout=60_000)
    page.wait_for_timeout(1000)
    return page


def _generate(page: Any, fields: dict[str, str]) -> None:
    for name, value in fields.items():
        page.fill(f"#{name}", value)
    page.click("#generate")
    page.locator("#status", has_text=re.compile("painted in", re.IGNORECASE)).wait_for(timeout=300_000)
    page.wait_for_timeout(500)


def _draw_light(page: Any) -> None:
    """A batch, with its strip."""
    _generate(page, _LIGHT)
    page.locator("#strip button").first.click()
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=DOCS / "serve-light.png")


def _draw_dark(page: Any) -> None:
    """A plot."""
    page.click("#fold-plot > summary")
    for side, (field, values) in _AXES.items():
        page.select_option(f"#{side}-field", field)
        page.fill(f"#{side}-values", values)
    _generate(page, _DARK)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=DOCS / "serve-dark.png")


def _draw_site(page: Any) -> None:
    """A picture that the browser painted."""
    _generate(page, _DARK)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=DOCS / "web.png")


if __name__ == "__main__":
    raise SystemExit(main())

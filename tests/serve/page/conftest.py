"""The page in headless Chromium, opened at a real server with two models and a LoRA."""

from __future__ import annotations

import io
import os
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from olivelike.serve import ServeSettings
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint
from tests.runtime.pictures.test_upscaling import network
from tests.serve.conftest import Running, running

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1440, "height": 900}
ZOOMED = {"width": 720, "height": 450}
"""The wide one at 200 %."""
UPSCALER = "R-ESRGAN 4x+"
AXE = "OLIVELIKE_AXE_CORE"
IMPORTED = """async (name) => {
  window.imported = await import(document.querySelector("script[type=module]").src.replace("page.js", name));
}"""
"""Has a module of the page as `imported`: the very one, as its address has a version in it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (`pip install playwright`)"
    )
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium is installed (`apt-get install chromium`)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def studio(little: Path, base_settings: ServeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return a server of two models and a LoRA with a thumbnail."""
    place = tmp_path_factory.mktemp("studio")
    first, second = place / "first", place / "second"
    for folder in (first, second):
        shutil.copytree(little, folder)
    settings = equipped(base_settings, place, first, second)
    Image.new("RGB", (64, 64), "orange").save(place / "loras/wild.png")
    with running(settings) as server:
        yield server


def equipped(settings: ServeSettings, place: Path, *folders: Path) -> ServeSettings:
    """Return settings of a server of folders, a LoRA and an upscaler."""
    loras, upscalers = place / "loras", place / "upscalers"
    make_lora(loras / "wild.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
    network(upscalers, scale=4).rename(upscalers / f"{UPSCALER}.onnx")
    return replace(settings, folders=folders, lora_dirs=(loras,), upscaler_dirs=(upscalers,), gallery=place / "gallery")


@dataclass
class Opened:
    """The page in the browser, and what it said and asked for."""

    page: Any
    server: Running
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    may_complain: bool = False

    def open(self, view: str = "") -> None:
        self.page.goto(f"{self.server.url}/{view}")
        self.page.locator("html[data-ready]").wait_for(state="attached")

    def generate(self, wait: str = "^(Painted|[0-9]+ pictures painted)", **fields: object) -> str:
        """Fill fields in by their ids, generate, and wait for what the status says then."""
        for name, value in fields.items():
            self.page.fill(f"#{name}", str(value))
        self.page.click("#generate")
        return self.status(wait)

    def status(self, pattern: str, seconds: float = 60) -> str:
        # In one call: the next job of several may replace what was said before a second one asks. By time, not by
        # frames, which a browser may leave out of a page behind another.
        found = self.page.wait_for_function(
            "(pattern) => [document.getElementById('status').textContent].find((text) => RegExp(pattern).test(text))",
            arg=pattern,
            polling=20,
            timeout=seconds * 1000,
        )
        return str(found.json_value())

    def fold(self, name: str) -> None:
        self.page.click(f"#fold-{name} > summary")

    def picture(self) -> np.ndarray[Any, Any]:
        """Return the picture on the stage as the server has it."""
        with self.server.client() as client:
            data = client.get(self.page.get_attribute("#stage-picture", "src")).content
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(float)

    def job(self) -> dict[str, Any]:
        """Return the newest job as the server has it."""
        with self.server.client() as client:
            found: dict[str, Any] = client.get("/api/jobs?limit=1").json()["jobs"][0]
        return found

    def unfinished(self) -> int:
        with self.server.client() as client:
            states = ("queued", "drawing")
            return sum(len(client.get(f"/api/jobs?state={state}").json()["jobs"]) for state in states)

    def width(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))


@pytest.fixture
def visit(browser: Any, studio: Running) -> Iterator[Callable[..., Opened]]:
    """Return a function that opens the page; nothing is to come on the console, and all requests go to the server."""
    opened: list[Opened] = []

    def open_page(view: str = "", *, server: Running = studio, may_complain: bool = False, **how: Any) -> Opened:
        context = browser.new_context(**{"viewport": DESKTOP, **how})
        page = context.new_page()
        found = Opened(page, server, may_complain=may_complain)
        page.on("console", lambda message: found.console.append(message.text))
        page.on("pageerror", lambda error: found.console.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        opened.append(found)
        found.open(view)
        return found

    yield open_page
    for found in opened:
        found.page.context.close()
        assert found.may_complain or not found.console
        assert {url for url in found.requests if not url.startswith((found.server.url, "data:", "blob:"))} == set()


def holds(page: Any, field: str, value: str) -> None:
    """Wait until a field has a value."""
    from playwright.sync_api import expect  # It may not be installed.

    expect(page.locator(field)).to_have_value(value)


def long(page: Any) -> None:
    """Ask for pictures that take seconds on the quickest machine."""
    for name, value in {"steps": 500, "width": 256, "height": 256}.items():
        page.fill(f"#{name}", str(value))


def png(color: str = "navy", size: tuple[int, int] = (64, 64)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def drop(
    opened: Opened, target: str, name: str, data: bytes, kinds: tuple[str, ...] = ("dragenter", "dragover", "drop")
) -> None:
    """Let a file fall on an element, as a person drags it in from a folder, or paste it there."""
    opened.page.locator(target).evaluate(
        """(target, [name, text, kinds]) => {
          const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], name, { type: "image/png" }));
          for (const kind of kinds) {
            const given = { bubbles: true, cancelable: true, dataTransfer: transfer, clipboardData: transfer };
            target.dispatchEvent(kind === "paste" ? new ClipboardEvent(kind, given) : new DragEvent(kind, given));
          }
        }""",
        [name, b64encode(data).decode(), kinds],
    )


@pytest.fixture(scope="module")
def axe() -> str:
    """Return axe-core's program text."""
    place = Path(os.environ.get(AXE, "node_modules/axe-core"))
    script = place if place.is_file() else place / "axe.min.js"
    if not script.is_file():
        pytest.skip(f"axe-core is not here (`npm pack axe-core`, unpack it, and say where in ${AXE})")
    return script.read_text(encoding="utf-8")


def barriers(page: Any) -> dict[str, list[str]]:
    """Return what axe, once it is in the page, calls serious or critical: rules, and the elements that break them."""
    page.wait_for_timeout(100)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return {
        one["id"]: [node["html"] for node in one["nodes"]] for one in found if one["impact"] in ("serious", "critical")
    }

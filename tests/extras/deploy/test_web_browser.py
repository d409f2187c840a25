"""The page in headless Chromium: what it paints, what it says of bad folders and devices, and whom it asks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from PIL import Image

from olivelike import Options, open_pipeline
from olivelike.engine.convert_request import ConvertRequest, convert as convert_source
from olivelike.engine.run import run
from olivelike.errors import MissingError
from olivelike.extras.deploy.web_page import export_web
from olivelike.model.client_layouts import LAYOUTS
from olivelike.runtime import Request
from olivelike.testing import make_checkpoint
from tests.serve.page.conftest import DESKTOP, PHONE, WIDE, ZOOMED, barriers

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
READY = "#generate:not([disabled])"
PROMPT = "a red circle on a blue background"
NO_ADAPTER = "No available adapters."
"""What Chromium says where it has WebGPU and no graphics card."""
USUAL = {"seed": 1, "steps": 20}


@dataclass
class Site:
    """A server of one folder, and what it was asked."""

    folder: Path
    isolated: bool = False
    changed: dict[str, bytes | None] = field(default_factory=dict)
    """By path, content in place of the file's; `None` for none."""
    url: str = ""


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, site: Site, *args: Any) -> None:
        self.site = site
        super().__init__(*args, directory=str(site.folder))

    def do_GET(self) -> None:
        content = self.site.changed.get(self.path, b"")
        if content:
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        elif content is None:
            self.send_error(404)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        if self.site.isolated:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture
def serve() -> Iterator[Callable[..., Site]]:
    servers = []

    def start(folder: Path, **how: Any) -> Site:
        site = Site(folder, **how)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, site))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        site.url = f"http://127.0.0.1:{server.server_address[1]}/"
        return site

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[..., Any]]:
    """Return a function that starts a browser."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (`pip install playwright`)"
    )
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed (`apt-get install chromium`)")
    with playwright.sync_playwright() as driver:
        started = []

        def start(*arguments: str) -> Any:
            started.append(driver.chromium.launch(executable_path=browser, args=["--no-sandbox", *arguments]))
            return started[-1]

        yield start
        for one in started:
            one.close()


@pytest.fixture(scope="module")
def browser(launch: Callable[..., Any]) -> Any:
    return launch()


@dataclass
class Opened:
    """A page in the browser, and what it said and asked for."""

    page: Any
    console: list[str]
    requests: list[str]

    def paint(self, seconds: float = 120, **values: object) -> str:
        """Fill in the form, generate as `drawn` does by default, and return the status."""
        for name, value in {**USUAL, **values}.items():
            self.page.fill(f"#{name}", str(value))
        self.page.click("#generate")
        return self.wait(seconds)

    def choose(self, sampler: str, schedule: str = "Uniform") -> None:
        self.page.select_option("#sampler", sampler)
        if sampler:
            self.page.select_option("#schedule", schedule)

    def wait(self, seconds: float = 120) -> str:
        self.page.locator(READY).wait_for(timeout=seconds * 1000)
        return str(self.page.text_content("#status"))

    @property
    def problem(self) -> str:
        return str(self.page.text_content("#problem"))

    def picture(self) -> np.ndarray[Any, Any]:
        """Return the picture that is shown, as it would be saved."""
        data = self.page.evaluate(
            """document.getElementById("stage-picture").decode().then(() => {
              const picture = document.getElementById("stage-picture");
              const canvas = new OffscreenCanvas(picture.naturalWidth, picture.naturalHeight);
              canvas.getContext("2d").drawImage(picture, 0, 0);
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              return [canvas.height, canvas.width, [...data]];
            })"""
        )
        height, width, values = data
        return np.array(values, float).reshape(height, width, 4)[..., :3]

    def pictures(self) -> int:
        return int(self.page.locator("#strip li").count())


@pytest.fixture
def visit() -> Iterator[Callable[..., Opened]]:
    """Return a function that opens a site; nothing is to come on the console, and all requests go to the site."""
    opened: list[tuple[Opened, Site, bool]] = []

    def open_site(browser: Any, site: Site, script: str = "", *, may_complain: bool = False, **how: Any) -> Opened:
        page = browser.new_page(**how)
        found = Opened(page, [], [])
        page.on("console", lambda message: found.console.append(message.text))
        page.on("pageerror", lambda error: found.console.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        if script:
            page.add_init_script(script)
        page.goto(site.url)
        opened.append((found, site, may_complain))
        page.locator(f"{READY}, #problem:not([hidden])").first.wait_for(timeout=30_000)
        return found

    yield open_site
    for found, site, may_complain in opened:
        found.page.close()
        assert may_complain or not set(found.console) - {NO_ADAPTER}
        assert {url for url in found.requests if not url.startswith((site.url, "data:", "blob:"))} == set()


def convert(source: str, folder: Path, store: Path, **more: Any) -> Path:
    request = ConvertRequest(source, "cpu", folder, layout="web", **more)
    convert_source(request, Options(cache_dir=store))
    return folder


def page_of(folder: Path, site: Path, **more: Any) -> Path:
    given = os.environ.get("OLIVELIKE_ONNXRUNTIME_WEB")
    try:
        export_web(folder, site, onnxruntime_web=Path(given) if given else None, **more)
    except MissingError as error:
        pytest.skip(str(error))
    return site


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def demo(place: Path) -> Path:
    """Return the demo in the layout `web`."""
    return convert("demo", place / "demo", place / "store")


@pytest.fixture(scope="module")
def demo_page(demo: Path, place: Path) -> Path:
    return page_of(demo, place / "site")


def psnr(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    assert one.shape == other.shape
    error = ((one - other) ** 2).mean()
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def drawn(folder: Path, **request: Any) -> np.ndarray[Any, Any]:
    request = {"prompts": (PROMPT,), **USUAL, **request}
    picture = open_pipeline(folder).generate(Request(**request)).pictures[0]
    return np.asarray(picture.image.convert("RGB")).astype(float)


def test_the_demo_is_painted_in_a_minute_as_generate_paints_it(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    began = monotonic()
    page = visit(browser, serve(demo_page))
    told = page.page.text_content("#download")
    assert page.paint().startswith("Painted")
    assert monotonic() - began < 60
    loaded = sum(
        (demo_page / url.removeprefix(page.page.url)).stat().st_size
        for url in set(page.requests)
        if url.endswith(".wasm") or "model/" in url
    )
    size = f"{loaded / 1e6:.0f} MB"
    assert told == f"Downloads {size} before the first picture, once."
    assert page.page.text_content("#download") == f"Nothing to download: all {size} are here."
    assert psnr(page.picture(), drawn(demo)) >= 50
    assert any("ort-wasm-simd-threaded.wasm" in url for url in page.requests)
    assert not any("asyncify" in url for url in page.requests)  # WebGPU's twice as large files stay where they are.


@pytest.mark.parametrize(
    ("form", "request_"),
    [
        ({"seed": 2**64 - 1, "steps": 7, "guidance_scale": 1}, {"seed": 2**64 - 1, "steps": 7, "guidance_scale": 1}),
        (
            {"prompt": "a (green:1.3) [big] square", "negative_prompt": "(circle), red", "seed": 7, "width": 128},
            {"prompts": ("a (green:1.3) [big] square",), "negative_prompt": "(circle), red", "seed": 7,
             "size": (128, 64)},
        ),
        (
            {"prompt": "a red circle, " * 30 + "BREAK a blue square", "height": 192, "steps": 5, "guidance_scale": 3.5},
            {
                "prompts": ("a red circle, " * 30 + "BREAK a blue square",), "size": (64, 192), "steps": 5,
                "guidance_scale": 3.5,
            },
        ),
        ({"prompt": "", "steps": 3}, {"prompts": ("",), "steps": 3}),  # The safety checker flags this one.
    ],
    ids=["seed", "weights", "chunks", "flagged"],
)  # fmt: skip
def test_what_is_asked_for_gives_the_picture_of_generate(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path,
    form: dict[str, Any], request_: dict[str, Any],
) -> None:  # fmt: skip
    page = visit(browser, serve(demo_page))
    status = page.paint(**form)
    expected = drawn(demo, **request_)
    assert status.startswith("Painted"), page.problem
    assert psnr(page.picture(), expected) >= 50
    assert ("flagged" in status) == (not expected.any())


@pytest.mark.parametrize(
    ("sampler", "schedule"),
    [
        ("PLMS", "Uniform"), ("DPM++ 2M", "Karras"), ("Euler a", "Uniform"), ("Heun", "Uniform"),
        ("DPM++ 2M SDE", "Uniform"), ("UniPC", "Beta"), ("LCM", "Uniform"), ("SA Solver", "KL Optimal"),
        ("DPM++ 2S a", "Normal"),
    ],
)  # fmt: skip
def test_a_sampler_gives_the_picture_of_generate(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path, sampler: str,
    schedule: str,
) -> None:  # fmt: skip
    page = visit(browser, serve(demo_page))
    assert page.page.input_value("#scheduler") == ""
    page.choose(sampler, schedule)
    name = sampler if schedule == "Uniform" else f"{sampler} {schedule}"
    assert page.paint(steps=7).startswith("Painted"), page.problem
    assert psnr(page.picture(), drawn(demo, scheduler=name, steps=7)) >= 50
    assert f"--scheduler '{name}'" in page.page.text_content("#command")
    assert page.page.text_content("#command-note") == ""


def test_brownian_noise_is_drawn_otherwise_which_is_told(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    page.choose("DPM++ SDE", "Karras")
    assert page.paint(steps=10).startswith("Painted"), page.problem
    assert "other details" in page.page.text_content("#command-note")
    expected = drawn(demo, scheduler="DPM++ SDE Karras", steps=10)
    assert np.abs(page.picture().mean((0, 1)) - expected.mean((0, 1))).max() < 30


def test_every_sampler_of_the_list_paints(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    listed = json.loads((demo_page / "model/manifest.json").read_bytes())["samplers"]["list"]
    whole = ("Euler", "DPM++ 2M", "Restart")
    chosen = [
        (one["name"], schedule)
        for one in listed
        for schedule in (one["schedules"] if one["name"] in whole else [one["schedules"][0], one["schedules"][-1]])
    ]
    assert len(chosen) > 50
    for sampler, schedule in [("", ""), *chosen]:
        page.choose(sampler, schedule)
        assert page.paint(steps=4).startswith("Painted"), (sampler, schedule, page.problem)


def test_steps_that_a_sampler_does_not_take_are_told_before_networks_are_loaded(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    page.choose("LCM")
    assert page.paint(steps=51) == "Stopped."
    assert page.problem.startswith("Steps must be ")
    assert not any(url.endswith("weights.pb") for url in page.requests)
    assert page.paint(steps=2).startswith("Painted")


def test_a_model_of_schedulers_that_is_none_is_told(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    known = json.loads((demo_page / "model/manifest.json").read_bytes())
    broken = b"no model"
    known["files"]["scheduler/model.onnx"] = {"size": len(broken), "sha256": hashlib.sha256(broken).hexdigest()}
    changed = {"/model/manifest.json": json.dumps(known).encode(), "/model/scheduler/model.onnx": broken}
    page = visit(browser, serve(demo_page, changed=changed), may_complain=True)
    assert page.paint() == "Stopped."
    assert page.problem.startswith("scheduler can\u2019t be opened: ")


def test_a_folder_whose_own_sampler_is_not_known_has_the_others(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    known = json.loads((demo_page / "model/manifest.json").read_bytes())
    known["samplers"] |= {"own": None, "class": "IPNDMScheduler"}
    known["samplers"]["list"] = [one for one in known["samplers"]["list"] if one["name"] in ("Euler", "Euler a")]
    page = visit(browser, serve(demo_page, changed={"/model/manifest.json": json.dumps(known).encode()}))
    assert "IPNDMScheduler, the model\u2019s own sampler, is not known here" in page.page.text_content("#status")
    assert page.paint(steps=3).startswith("Painted")
    assert psnr(page.picture(), drawn(demo, scheduler="Euler a", steps=3)) >= 50
    page.page.click("#form-reset")
    assert page.page.input_value("#sampler") == "Euler a"


def test_an_isolated_page_uses_threads(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page, isolated=True))
    assert page.page.evaluate("self.crossOriginIsolated")
    page.paint()
    assert psnr(page.picture(), drawn(demo)) >= 50
    if (os.cpu_count() or 1) > 1:  # A thread is a worker that loads the module once more.
        assert sum(url.endswith("ort-wasm-simd-threaded.mjs") for url in page.requests) > 1


def test_painting_is_cancelled_between_steps_and_begins_again(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    page.page.fill("#steps", "1000")
    page.page.focus("#prompt")
    page.page.keyboard.press("Control+Enter")
    page.page.get_by_text(re.compile("Step [0-9]+ of 1000 · ")).wait_for()
    page.page.keyboard.press("Escape")
    assert page.wait(20) == "Cancelled."
    page.page.fill("#steps", "1000")
    page.page.click("#generate")
    page.page.click("#cancel")  # at once: while it loads, or before the first step
    assert page.wait(20) == "Cancelled."
    assert page.paint(steps=20).startswith("Painted")
    assert psnr(page.picture(), drawn(demo)) >= 50


def test_a_browser_without_webgpu_says_so(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page), "Object.defineProperty(Navigator.prototype, 'gpu', { value: undefined });")
    assert page.page.is_disabled("input[value=webgpu]")
    assert "no WebGPU" in page.page.text_content("#device-note")
    assert page.paint(steps=2).startswith("Painted")


def test_a_browser_that_gives_no_graphics_card_says_so(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    assert page.page.is_disabled("input[value=webgpu]")
    assert "no graphics card" in page.page.text_content("#device-note")


MEMORY = "Object.defineProperty(navigator, 'deviceMemory', { value: 8 });"
ADAPTER = """
    Object.defineProperty(navigator, "gpu", {
      value: { requestAdapter: async () => ({ info: { isFallbackAdapter: false } }) },
    });"""


def test_a_card_that_is_gone_is_told_and_wasm_offered(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    known = json.loads((demo_page / "model/manifest.json").read_bytes()) | {"device": "webgpu"}
    changed = {"/model/manifest.json": json.dumps(known).encode()}
    page = visit(browser, serve(demo_page, changed=changed), ADAPTER)
    assert page.page.is_checked("input[value=webgpu]")  # It was made for that.
    assert page.paint(steps=2) == "Stopped."
    assert "no graphics adapter" in page.problem
    page.page.click("#use-wasm")
    assert page.wait().startswith("Painted")
    assert page.page.is_hidden("#problem")


@pytest.mark.parametrize("has_card", [False, True])
def test_a_network_that_wasm_has_no_room_for_is_told_before_anything_is_loaded(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path, has_card: bool
) -> None:
    known = json.loads((demo_page / "model/manifest.json").read_bytes())
    known["files"]["unet/weights.pb"]["size"] = 5 * 10**9
    changed = {"/model/manifest.json": json.dumps(known).encode()}
    page = visit(browser, serve(demo_page, changed=changed), MEMORY + (ADAPTER if has_card else ""))
    assert page.page.is_disabled("input[value=wasm]")
    assert "has 5.0 GB, and the processor (wasm) has room for 4.3 GB at most" in page.page.text_content("#device-note")
    assert page.page.is_enabled("#generate") == has_card
    assert ("t be painted here" in page.problem) != has_card
    memory = "takes about 20.0 GB of memory, and this device says that it has 8.6 GB"
    assert memory in page.page.text_content("#memory-note")


NO_ROOM = {
    "buffers": """
        const Bytes = Uint8Array;
        self.Uint8Array = class extends Bytes {
          constructor(...given) {
            if (given[0] > 5e6) throw new RangeError("Array buffer allocation failed");
            super(...given);
          }
        };""",
    "wasm": """
        WebAssembly.Memory.prototype.grow = () => { throw new RangeError("Maximum memory size exceeded"); };""",
}


@pytest.mark.parametrize("script", NO_ROOM.values(), ids=NO_ROOM.keys())
def test_too_little_memory_is_told(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path, script: str
) -> None:
    # Imports are hoisted: the module that the worker begins with comes before the others.
    changed = {
        "/worker.js": b'import "./no_room.js";\n' + (demo_page / "worker.js").read_bytes(),
        "/no_room.js": script.encode(),
    }
    page = visit(browser, serve(demo_page, changed=changed), may_complain=True)
    assert page.paint() == "Stopped."
    assert page.problem.startswith("There is too little memory in this browser: ")
    assert "smaller picture or pipeline" in page.problem


def _changed(page: Path) -> dict[str, tuple[dict[str, bytes | None], str]]:
    weights = (page / "model/unet/weights.pb").read_bytes()
    flipped = bytes([weights[0] ^ 1]) + weights[1:]
    manifest = (page / "model/manifest.json").read_bytes()
    unet = "/model/unet/weights.pb"
    return {
        "flipped": ({unet: flipped}, "unet/weights.pb is damaged: its bytes"),
        "short": ({unet: weights[:-1]}, f"unet/weights.pb is damaged: it has {len(weights) - 1} of {len(weights)}"),
        "long": ({unet: weights + b"x"}, "unet/weights.pb is damaged: it has more"),
        "missing": ({unet: None}, "unet/weights.pb is missing"),
        "no tokenizer": ({"/model/tokenizer/tokenizer.json": None}, "tokenizer/tokenizer.json is missing"),
        "no schedulers": ({"/model/scheduler/model.onnx": b"{}"}, "scheduler/model.onnx is damaged"),
        "no manifest": ({"/model/manifest.json": None}, "manifest.json is missing"),
        "no JSON": ({"/model/manifest.json": b"<html>"}, "manifest.json is no JSON"),
        "other kind": ({"/model/manifest.json": b'{"kind": "web/9"}'}, "kind “web/9”"),
        "outside": (
            {"/model/manifest.json": manifest.replace(b"unet/weights.pb", b"../unet/weights.pb")},
            "files outside of its folder",
        ),
        "elsewhere": (
            {"/model/manifest.json": manifest.replace(b"unet/weights.pb", b"//example.com/weights.pb")},
            "files outside of its folder",
        ),
        "no runtime": ({"/ort/ort.wasm.min.mjs": None}, "ort.wasm.min.mjs"),
        "no wasm": ({"/ort/ort-wasm-simd-threaded.wasm": None}, "ort-wasm-simd-threaded.wasm"),
    }


DAMAGES = (
    "flipped", "short", "long", "missing", "no tokenizer", "no schedulers", "no manifest", "no JSON", "other kind",
    "outside", "elsewhere", "no runtime", "no wasm",
)  # fmt: skip


@pytest.mark.parametrize("what", DAMAGES)
def test_a_file_that_is_not_as_it_was_is_named(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path, what: str
) -> None:
    changes = _changed(demo_page)
    assert tuple(changes) == DAMAGES
    changed, message = changes[what]
    page = visit(browser, serve(demo_page, changed=changed), may_complain=True)
    if not page.problem:
        page.paint()
    assert message in page.problem
    assert not page.page.is_visible("#use-wasm")


def test_what_the_page_does_not_know_in_a_prompt_is_told(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    page.paint(prompt="[cat:dog:0.5]")
    assert "change from step to step" in page.problem
    assert page.paint(prompt="a dog", steps=2).startswith("Painted")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP, WIDE, ZOOMED], ids=["phone", "desktop", "wide", "zoomed"])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_window(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path, axe: str,
    viewport: dict[str, int], scheme: str,
) -> None:  # fmt: skip
    opened = visit(browser, serve(demo_page), viewport=viewport, color_scheme=scheme)
    page = opened.page
    page.evaluate(axe)
    found = barriers(page)
    opened.paint(steps=2, num_images=2)
    for summary in page.locator("summary:visible").all():
        if not summary.evaluate("(one) => one.parentElement.open"):
            summary.click()
    found |= barriers(page)
    page.click("#picture-delete")
    found |= barriers(page)
    page.click("#confirm-no")
    page.evaluate("document.getElementById('problem').hidden = false")
    assert not found | barriers(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_keys_alone_paint_and_switch_pictures(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    opened = visit(browser, serve(demo_page))
    keyboard = opened.page.keyboard

    def tab_to(where: str) -> None:
        for _ in range(40):
            if opened.page.evaluate("(where) => document.activeElement.matches(where)", where):
                return
            keyboard.press("Tab")
        raise AssertionError(f"{where} is not reached")

    keyboard.press("Tab")
    keyboard.press("Enter")  # "Skip to the prompt"
    tab_to("#prompt")
    keyboard.press("Control+a")
    keyboard.type("a blue square")
    tab_to("#steps")
    keyboard.press("Control+a")
    keyboard.type("2")
    tab_to("#num_images")
    keyboard.press("ArrowUp")
    keyboard.press("Control+Enter")
    assert opened.wait().startswith("2 pictures painted")
    assert opened.page.get_attribute("#stage-picture", "alt") == "a blue square"
    keyboard.press("Tab")
    keyboard.press("Shift+Tab")
    for _ in range(20):
        keyboard.press("Shift+Tab")
        if opened.page.evaluate("document.activeElement.matches('.thumbnail')"):
            break
    last = opened.page.get_attribute("#stage-picture", "src")
    keyboard.press("ArrowLeft")  # The strip is one stop.
    assert opened.page.get_attribute("#stage-picture", "src") != last


def test_a_batch_has_the_pictures_of_generate_in_a_strip_that_outlives_the_visit(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    seed = 2**64 - 2
    assert page.paint(seed=seed, steps=3, num_images=3).startswith("3 pictures painted in ")
    assert page.page.text_content("#picture-facts").startswith("Seed 0 · 64\u00d764 · ")
    for number in range(3):
        page.page.locator("#strip button").nth(number).click()
        assert psnr(page.picture(), drawn(demo, seed=(seed + number) % 2**64, steps=3)) >= 50
    page.page.locator("#strip button").nth(1).click()
    page.page.click("#picture-seed")
    assert page.page.input_value("#seed") == str(seed + 1)
    page.page.fill("#prompt", "another")
    page.page.click("#picture-use")
    assert page.page.input_value("#prompt") == PROMPT
    page.page.click("#picture-delete")
    page.page.click("#confirm-yes")
    page.page.locator("#strip li").nth(2).wait_for(state="detached")
    page.page.reload()
    page.wait()
    assert page.pictures() == 2
    assert page.page.text_content("#picture-facts").startswith("Seed 0")
    assert page.page.input_value("#steps") == "3"
    page.page.click("#fold-kept > summary")
    page.page.click("#forget-pictures")
    page.page.click("#confirm-yes")
    page.page.locator("#stage-empty").wait_for()
    page.page.reload()
    page.wait()
    assert page.pictures() == 0


def test_steps_show_the_picture_and_files_their_bytes_as_they_come(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    page.page.evaluate(
        """() => {
          window.said = [];
          const status = document.getElementById("status");
          new MutationObserver(() => {
            const { hidden, width, height } = document.getElementById("preview");
            window.said.push([status.textContent, document.title, hidden ? null : [width, height]]);
          }).observe(status, { childList: true });
        }"""
    )
    page.paint(steps=4, width=128)
    said = page.page.evaluate("window.said")
    loads = [re.fullmatch(r"Downloading (.+): ([\d.]+) MB of ([\d.]+) MB", text) for text, _, _ in said]
    names = list(dict.fromkeys(found[1] for found in loads if found))
    assert names == ["ONNX Runtime", "scheduler", "text encoder", "unet", "vae decoder", "safety checker"]
    come = [float(found[2]) for found in loads if found]
    assert come == sorted(come)
    assert come[-1] == pytest.approx(float(next(found[3] for found in loads if found)), abs=0.6)
    steps = [(text, preview) for text, _, preview in said if text.startswith("Step")]
    assert [text.partition(" · ")[0] for text, _ in steps] == [f"Step {number} of 4" for number in (1, 2, 3, 4)]
    assert steps[-1][1] == [128, 64]
    assert any(title == "50 % · demo" for _, title, _ in said)
    assert page.page.title() == "demo"
    assert page.page.is_hidden("#preview")


def test_what_was_loaded_is_kept_until_it_is_forgotten_or_another_one(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    site = serve(demo_page)
    page = visit(browser, site, may_complain=True)
    page.paint(steps=2)

    def fetched() -> set[str]:
        found = {url.removeprefix(site.url) for url in page.requests if url.endswith((".onnx", ".pb", ".wasm"))}
        page.requests.clear()
        return found

    assert {"model/unet/weights.pb", "ort/ort-wasm-simd-threaded.wasm"} <= fetched()
    page.page.reload()
    page.wait()
    assert page.page.text_content("#download").startswith("Nothing to download")
    assert page.paint(steps=2).startswith("Painted")
    assert fetched() == set()
    # What the browser has lost is fetched again.
    page.page.evaluate(
        """async () => {
          const cache = await caches.open("olivelike files /");
          const lost = (await cache.keys()).find(({ url }) => url.includes("unet/weights"));
          await cache.put(lost, new Response("lost"));
        }"""
    )
    page.page.reload()
    page.wait()
    assert page.paint(steps=2).startswith("Painted")
    assert fetched() == {"model/unet/weights.pb"}
    # Of another page at the same place, what is the same stays.
    known = json.loads((demo_page / "model/manifest.json").read_bytes())
    other = b"{}"
    known["files"]["text_encoder/config.json"] = {"size": len(other), "sha256": hashlib.sha256(other).hexdigest()}
    known["files"]["unet/weights.pb"]["sha256"] = "0" * 64
    site.changed = {"/model/manifest.json": json.dumps(known).encode()}
    page.page.reload()
    page.wait()
    assert re.match(r"Downloads \d+ MB .*; \d+ MB are here", page.page.text_content("#download"))
    site.changed = {}
    page.page.reload()
    page.wait()
    page.page.click("#fold-kept > summary")
    page.page.click("#forget-files")
    page.page.locator("#download", has_text="Downloads").wait_for()
    assert page.page.is_disabled("#forget-files")
    assert "here" not in page.page.text_content("#download")


def test_a_page_that_is_not_from_https_paints_and_keeps_nothing(
    launch: Callable[..., Any], serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    browser = launch("--host-resolver-rules=MAP olivelike.test 127.0.0.1")
    site = serve(demo_page)
    site.url = site.url.replace("127.0.0.1", "olivelike.test")
    page = visit(browser, site)
    assert not page.page.evaluate("isSecureContext")
    assert "from https and from this machine alone" in page.page.text_content("#device-note")
    assert "once" not in page.page.text_content("#download")
    assert page.paint(steps=2, num_images=2).startswith("2 pictures")
    assert psnr(page.picture(), drawn(demo, seed=2, steps=2)) >= 50
    assert "gone" in page.page.text_content("#kept-note")
    assert page.page.text_content("#download") == ""


def test_a_page_has_the_name_and_examples_that_it_was_given(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, place: Path
) -> None:
    given = {"title": "Circles & <stars>", "examples": ["a blue star", "a <b>green</b> square"]}
    page = visit(browser, serve(page_of(demo, place / "named", **given)))
    assert (page.page.title(), page.page.text_content("h1")) == (given["title"],) * 2
    assert page.page.input_value("#prompt") == given["examples"][0]
    page.page.click("#examples >> text=square")
    assert page.page.input_value("#prompt") == given["examples"][1]


def test_the_page_speaks_the_browsers_language_or_the_one_that_is_chosen(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page), locale="fr-CH")
    assert page.page.get_attribute("html", "lang") == "fr"
    assert page.page.input_value("#language") == ""
    assert [url.rpartition("words")[2] for url in page.requests if "/words." in url] == [".js", ".en.js", ".fr.js"]
    page.page.eval_on_selector("#language", "(one) => one.closest('details').open = true")
    page.page.select_option("#language", "de")
    page.page.locator("html[lang=de][data-ready]").wait_for(state="attached")
    assert page.page.input_value("#language") == "de"


def test_values_that_can_not_be_had_are_refused_by_the_form(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path
) -> None:
    page = visit(browser, serve(demo_page))
    for name, value in (
        ("seed", "99999999999999999999"),
        ("seed", "1.5"),
        ("steps", "0"),
        ("steps", "1001"),
        ("steps", "2.5"),
        ("width", "65"),
        ("height", ""),
    ):
        before = page.page.input_value(f"#{name}")
        page.page.fill(f"#{name}", value)
        page.page.click("#generate")
        assert page.page.text_content("#status") == "Ready."
        page.page.fill(f"#{name}", before)


def test_the_picture_is_saved(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo_page: Path, tmp_path: Path
) -> None:
    page = visit(browser, serve(demo_page))
    page.paint(seed=5, steps=2)
    with page.page.expect_download() as download:
        page.page.click("#picture-save")
    assert download.value.suggested_filename == "5.png"
    download.value.save_as(tmp_path / "5.png")
    assert psnr(np.asarray(Image.open(tmp_path / "5.png").convert("RGB")).astype(float), page.picture()) > 100


@pytest.mark.parametrize("family", ["sd21", "sdxl"])
def test_other_families_give_the_picture_of_generate(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], place: Path, family: Any
) -> None:
    checkpoint = make_checkpoint(place / f"{family}_checkpoint", family)
    folder = convert(str(checkpoint), place / family, place / "store")
    page = visit(browser, serve(page_of(folder, place / f"{family}_site")))
    form = {"prompt": "a (red:1.2) house", "seed": 3, "steps": 3, "width": 128, "height": 64}
    for negative in ("", "blurry"):
        status = page.paint(**form, negative_prompt=negative)
        expected = drawn(
            folder, prompts=("a (red:1.2) house",), negative_prompt=negative or None, seed=3, steps=3, size=(128, 64)
        )
        assert status.startswith("Painted"), page.problem
        assert psnr(page.picture(), expected) >= 50


PLAIN = """
source: demo
target: cpu
layout: web
components: {text_encoder: [convert], unet: [convert], vae_decoder: [convert]}
output: plain
"""


def test_webgpu_paints_right_or_not_at_all(
    launch: Callable[..., Any], serve: Callable[..., Site], visit: Callable[..., Opened], place: Path, demo_page: Path
) -> None:
    browser = launch("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
    page = visit(browser, serve(demo_page))
    if not page.page.evaluate("navigator.gpu?.requestAdapter().then((adapter) => adapter !== null)"):
        pytest.skip("this Chromium has no SwiftShader to run WebGPU on")
    page.page.check("input[value=webgpu]")
    page.paint(steps=1)
    # Attention as one operator is wrong on Vulkan, which SwiftShader is: the page finds out by itself.
    assert "Attention comes out wrong" in page.problem

    project = place / "project"  # Beside it lies another folder that is called demo.
    project.mkdir()
    (project / "plain.yaml").write_text(PLAIN)
    run(str(project / "plain.yaml"), Options(cache_dir=place / "store"))
    page = visit(browser, serve(page_of(project / "plain", place / "plain_site")))
    page.page.check("input[value=webgpu]")
    assert page.paint(300, steps=2).startswith("Painted"), page.problem
    assert psnr(page.picture(), drawn(project / "plain", steps=2)) >= 50


def test_weights_in_several_files_and_half_precision_give_the_picture_of_generate(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], place: Path, demo: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(LAYOUTS, "web", replace(LAYOUTS["web"], most_data_bytes=1 << 20))
    folder = convert("demo", place / "split", place / "store", precision="fp16")
    assert len(list((folder / "unet").glob("weights*.pb"))) > 5
    page = visit(browser, serve(page_of(folder, place / "split_site")))
    assert page.paint().startswith("Painted"), page.problem
    assert psnr(page.picture(), drawn(demo)) >= 50


def test_a_large_pipeline_opens_its_networks_one_after_the_other(
    browser: Any, serve: Callable[..., Site], visit: Callable[..., Opened], demo: Path, demo_page: Path
) -> None:
    pipeline = (demo_page / "pipeline.js").read_text(encoding="utf-8")
    assert "const MOST_KEPT = 1e9;" in pipeline
    changed = {"/pipeline.js": pipeline.replace("MOST_KEPT = 1e9", "MOST_KEPT = 1e6").encode()}
    page = visit(browser, serve(demo_page, changed=changed))
    for _ in range(2):
        assert page.paint().startswith("Painted"), page.problem
        assert psnr(page.picture(), drawn(demo)) >= 50
    assert sum(url.endswith("unet/weights.pb") for url in page.requests) == 1  # The browser keeps it.

"""Who can use the page: with keys alone, on a phone, with a screen reader, with a connection that breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from olivelike.serve import ServeSettings
from tests.serve.conftest import running
from tests.serve.page.conftest import DESKTOP, PHONE, WIDE, ZOOMED, Opened, barriers, png

pytestmark = pytest.mark.slow


def test_keys_alone_lead_from_the_beginning_to_the_picture(visit: Callable[..., Opened]) -> None:
    opened = visit()
    keyboard = opened.page.keyboard

    def focused() -> str:
        return str(opened.page.evaluate("document.activeElement.id"))

    def tab_to(name: str, most: int = 40) -> None:
        for _ in range(most):
            if focused() == name:
                return
            keyboard.press("Tab")
        raise AssertionError(f"{name} is not reached; at {focused()}")

    keyboard.press("Tab")
    assert focused() == "skip-link"
    keyboard.press("Enter")
    tab_to("prompt")
    keyboard.type("a red circle")
    tab_to("steps")
    keyboard.press("Control+a")
    keyboard.type("5")
    tab_to("model-button")
    keyboard.press("Shift+Tab")
    keyboard.press("Control+Enter")
    opened.status("^Painted")
    assert opened.job()["order"]["steps"] == 5
    for _ in range(60):
        if focused() == "stage-open":
            break
        keyboard.press("Tab")
    ring = opened.page.locator("#stage-open").evaluate("(one) => getComputedStyle(one).outlineStyle")
    assert ring != "none"
    keyboard.press("Enter")
    opened.page.locator("#viewer[open]").wait_for()
    keyboard.press("Escape")
    opened.page.locator("#viewer[open]").wait_for(state="detached")
    assert focused() == "stage-open"


def test_what_is_refused_is_told_at_its_field(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    opened.page.fill("#prompt", "a red circle")
    opened.page.fill("#steps", "0")
    opened.page.click("#generate")
    assert opened.page.text_content("#order-problem").startswith("Steps: ")
    assert opened.page.get_attribute("#steps", "aria-invalid") == "true"
    opened.page.fill("#steps", "5")
    opened.page.fill("#prompt", "a <lora:nothing:1> circle")
    opened.page.click("#generate")
    opened.page.locator("#order-problem", has_text="nothing").wait_for()
    assert opened.generate(prompt="a red circle").startswith("Painted")
    assert opened.page.is_hidden("#order-problem")


def test_what_the_server_tells_is_text(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="<img src=x onerror=alert(1)> <b>bold</b>", steps=2)
    opened.page.click("#stage-open")
    assert "<b>bold</b>" in opened.page.text_content("#viewer-recipe")
    assert opened.page.locator("#viewer-recipe b, img[src=x]").count() == 0


def test_a_lost_connection_is_told_and_comes_back(
    visit: Callable[..., Opened], base_settings: ServeSettings, tmp_path: Path
) -> None:
    settings = replace(base_settings, gallery=tmp_path / "gallery")
    with running(settings) as server:
        opened = visit(server=server, may_complain=True)
        port = int(server.url.rpartition(":")[2])
    opened.page.locator("#connection", has_text="Connection lost").wait_for()
    with running(replace(settings, port=port)):
        opened.page.locator("#connection").wait_for(state="hidden", timeout=20_000)
        assert opened.generate(prompt="a red circle", steps=2).startswith("Painted")


def test_light_and_dark_are_switched_and_kept(visit: Callable[..., Opened]) -> None:
    opened = visit(color_scheme="light")

    def paper() -> str:
        return str(opened.page.locator("body").evaluate("(body) => getComputedStyle(body).backgroundColor"))

    light = paper()
    opened.page.get_by_label("Theme: as the system").click()
    dark = paper()
    assert dark != light
    opened.open()
    assert paper() == dark
    opened.page.get_by_label("Theme: dark").click()
    assert paper() == light
    opened.page.get_by_label("Theme: light").click()
    assert paper() == light


def test_a_password_opens_pictures_and_events_too(
    visit: Callable[..., Opened], base_settings: ServeSettings, tmp_path: Path
) -> None:
    with running(replace(base_settings, gallery=tmp_path / "gallery", basic={"ann": "secret"})) as server:
        # The browser answers the first refusal by its own dialog; the console notes it.
        how = {"http_credentials": {"username": "ann", "password": "secret"}, "may_complain": True}
        opened = visit(server=server, **how)
        opened.generate(prompt="a red circle", steps=3)
        width = "(image) => image.decode().then(() => image.naturalWidth)"
        assert opened.page.locator("#stage-picture").evaluate(width) == 32
        opened.fold("loras")
        assert opened.page.is_visible("#lora-none")  # This server has none.
        # An address with both in it can be opened, too, though nothing can be asked at such a one.
        opened.page.goto(server.url.replace("://", "://ann:secret@"))
        opened.page.locator("#model-button strong").wait_for()
        opened.requests[:] = [one.replace("ann:secret@", "") for one in opened.requests]


@pytest.mark.parametrize("view", ["#paint", "#upscale", "#gallery"])
def test_nothing_is_wider_than_a_phone(visit: Callable[..., Opened], view: str) -> None:
    opened = visit(view, viewport=PHONE, has_touch=True, is_mobile=True)
    if view == "#paint":
        opened.generate(prompt="a red circle " + "x" * 200, steps=2)
        for summary in opened.page.locator("#form .folds > details > summary:visible").all():
            summary.click()
        assert opened.width() <= 390
        for button in ("#model-button", "#stage-open"):
            opened.page.click(button)
            assert opened.page.locator("dialog[open]").evaluate("(one) => one.scrollWidth <= one.clientWidth")
            opened.page.keyboard.press("Escape")
    assert opened.width() <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP, WIDE, ZOOMED], ids=["phone", "desktop", "wide", "zoomed"])
def test_axe_finds_nothing_serious(
    visit: Callable[..., Opened], axe: str, viewport: dict[str, int], scheme: str
) -> None:
    opened = visit(viewport=viewport, color_scheme=scheme)
    page = opened.page
    page.evaluate(axe)
    found: dict[str, Any] = {}

    def check(name: str) -> None:
        found.update({f"{name}: {rule}": where for rule, where in barriers(page).items()})

    check("empty")
    opened.generate(prompt="a (red:1.3) circle, <lora:wild:0.5> [a:b:0.5]", steps=3, num_images=2)
    for summary in page.locator("#form .folds > details > summary:visible").all():
        summary.click()
    page.locator("#prompt-colours mark").first.wait_for(state="attached")
    check("painted")
    page.click("#lora-button")
    check("picker")
    page.locator("#picker .card").first.click()
    page.click("#picker-close")
    check("with a LoRA")
    page.set_input_files("#init-file", {"name": "navy.png", "mimeType": "image/png", "buffer": png()})
    page.locator("#init-picture").wait_for()
    page.click("#mask-open")
    check("mask")
    for tool in ("Sketch", "Outpaint"):
        page.locator("#mask-tools label", has_text=tool).click()
        check(tool)
    page.click("#mask-close")
    page.click("#stage-open")
    check("viewer")
    page.click("#viewer-delete")
    check("question")
    page.click("#confirm-no")
    page.click("#viewer-close")
    page.click("text=Upscale")
    page.set_input_files("#upscale-file", {"name": "navy.png", "mimeType": "image/png", "buffer": png()})
    page.click("#upscale-start")
    page.locator("#upscale-open").wait_for()
    check("upscale")
    page.click("text=Gallery")
    check("gallery")
    page.click('nav a[href="#settings"]')
    page.click("#defaults-keep")
    check("settings")
    assert not found

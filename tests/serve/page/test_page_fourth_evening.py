"""What somebody from Forge and InvokeAI missed in an evening at the page, on a desk and with a phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.serve.page.conftest import PHONE, WIDE, Opened, long, png

pytestmark = pytest.mark.slow


def contrast(page: object, selector: str) -> float:
    """Return the contrast of an element's colour with the first background behind it, as WCAG 2 counts it."""
    value: float = page.locator(selector).first.evaluate(  # type: ignore[attr-defined]
        """(element) => {
          const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
            .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
            .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
          const clear = (one) => (rgb(getComputedStyle(one).backgroundColor)[3] ?? 1) === 0;
          let behind = element;
          while (clear(behind)) behind = behind.parentElement;
          const pair = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(rgb).map(light);
          return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        }"""
    )
    return value


def test_a_chosen_lora_is_readable_under_the_pointer(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("loras")
    opened.page.click("#lora-button")
    opened.page.click("#picker-list .card")
    opened.page.hover("#picker-list .card")
    assert contrast(opened.page, "#picker-list .card[aria-pressed=true] .hint") >= 4.5


def test_letters_go_to_the_filter_of_models(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.click("#model-button")
    page.locator("#picker[open]").wait_for()
    page.keyboard.type("sec")
    assert page.input_value("#picker-filter") == "sec"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#model-button", has_text="second").wait_for()


def test_what_was_painted_on_the_canvas_is_not_lost_by_a_key(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("init")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.click("#mask-all")
    page.keyboard.press("Escape")
    page.click("#confirm-no")
    assert page.locator("#mask[open]").count()
    page.click("#mask-close")
    page.click("#confirm-yes")
    page.locator("#mask:not([open])").wait_for(state="attached")
    page.click("#mask-open")
    page.locator("#mask[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("#mask:not([open])").wait_for(state="attached")
    page.click("#form-reset")
    assert page.text_content("#init-badge") == ""


def test_an_earlier_picture_can_be_looked_at_while_the_next_is_painted(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=WIDE)
    page = opened.page
    opened.generate(prompt="a red circle", steps=2)
    opened.generate(prompt="a blue circle", steps=2)
    first = page.locator("#strip button").first
    long(page)
    page.click("#generate")
    page.locator("#preview:not([hidden])").wait_for()
    first.click()
    page.wait_for_timeout(1000)
    assert page.is_hidden("#preview")
    assert first.get_attribute("aria-current") == "true"
    page.keyboard.press("ArrowRight")
    assert page.locator("#strip button").nth(1).get_attribute("aria-current") == "true"
    page.locator("#preview:not([hidden])").wait_for()
    assert page.locator("#strip button[tabindex='0']").count() == 1
    page.click("#cancel")
    opened.status("^Cancelled")


def test_a_moved_job_is_followed_as_it_is_drawn(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=WIDE)
    page = opened.page
    long(page)
    for words in ("the first", "the second", "the third"):
        page.fill("#prompt", words)
        page.click("#generate")
        opened.status("^(Step|Queued|Beginning)")
    page.get_by_label("Earlier: the third").click()
    page.locator("#queue-list li", has_text="the third").locator("text=1").wait_for()
    page.reload()
    page.click("#cancel")
    opened.status("^Step", seconds=30)
    page.locator("#queue-list li", has_text="the second").wait_for()
    page.locator("#queue-list li", has_text="the third").wait_for(state="detached")
    page.click("#queue-clear")
    page.click("#cancel")
    opened.status("^Cancelled")


def test_a_gallery_that_is_scrolled_keeps_its_rows_and_its_place(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=PHONE)
    page = opened.page
    opened.generate(prompt="a red circle", steps=1, num_images=24)
    page.evaluate("location.hash = 'gallery'")
    page.locator(".tiles li").nth(20).wait_for()
    page.evaluate("scrollTo(0, 500)")
    newest = page.locator(".tiles li").first.get_attribute("data-picture")
    with opened.server.client() as client:
        asked = {"prompt": "a late circle", "steps": 1, "model": client.get("/api/server").json()["current"]}
        client.post("/api/jobs", json=asked)
    page.wait_for_timeout(3000)
    assert page.locator(".tiles li").first.get_attribute("data-picture") == newest
    page.evaluate("location.hash = 'paint'")
    page.locator("#view-gallery[hidden]").wait_for(state="attached")
    page.evaluate("location.hash = 'gallery'")
    page.locator("#view-gallery:not([hidden])").wait_for()
    assert page.evaluate("scrollY") == 500
    page.evaluate("scrollTo(0, 0)")
    page.locator(f".tiles li:first-child:not([data-picture='{newest}'])").first.wait_for()
    page.fill("#search", "zebra")
    page.locator("#gallery-status button").click()
    page.locator(".tiles li").first.wait_for()
    assert page.input_value("#search") == ""


@pytest.mark.parametrize("language", ["de", "ja", "fr"])
def test_a_phone_has_the_gear_in_sight(visit: Callable[..., Opened], language: str) -> None:
    page = visit(viewport=PHONE, locale=language).page
    page.evaluate("document.querySelector('#workflows-link').hidden = false")
    box = page.locator("nav .icon").bounding_box()
    inside = page.locator("nav").bounding_box()
    assert box["width"] > 30
    assert box["x"] + box["width"] <= inside["x"] + inside["width"] + 1
    assert page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).matches('nav .icon')", [box["x"] + 9, box["y"] + 9]
    )
    heights = page.locator("nav a").evaluate_all("(all) => all.map((one) => one.offsetHeight)")
    assert max(heights[:-1]) < 40


def test_a_notice_covers_no_button_of_a_phone_that_starts_work(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=PHONE)
    page = opened.page
    page.evaluate("document.querySelector('#order-problem').hidden = false")
    page.evaluate("document.querySelector('#order-problem').textContent = 'long words '.repeat(30)")
    page.locator("#form-reset").scroll_into_view_if_needed()
    page.click("#form-reset")
    notice = page.locator(".notice").bounding_box()
    button = page.locator("#generate").bounding_box()
    assert notice["y"] + notice["height"] < button["y"]


def test_an_error_goes_when_what_was_wrong_is_changed(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    page = opened.page
    page.fill("#prompt", "a circle <lora:nobody:1>")
    page.click("#generate")
    page.locator("#order-problem:not([hidden])").wait_for()
    page.fill("#prompt", "a circle")
    page.locator("#order-problem[hidden]").wait_for(state="attached")
    page.click("#open-styles")
    page.locator("#notebook-name:focus").wait_for()

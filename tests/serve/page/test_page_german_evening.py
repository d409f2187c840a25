"""What somebody missed who paints in German, at 1280 pixels and with a phone, by keys and on a bad line."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.serve.page.conftest import PHONE, Opened, holds, long, png

pytestmark = pytest.mark.slow

NARROW = {"width": 640, "height": 360}
"""A laptop's at 200 %."""


def test_the_large_view_tells_nothing_that_is_not_so(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=2)
    opened.page.click("#stage-open")
    opened.page.locator("#viewer-recipe dt", has_text="Seed").wait_for()
    told = opened.page.locator("#viewer-recipe dt").all_text_contents()
    assert not {"LoRA", "Crop and resize", "Guess mode"} & {*told}
    assert all(opened.page.locator("#viewer-recipe dd").all_text_contents())


def test_a_side_that_is_typed_reaches_at_least_so_far_and_says_how_far(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.click("#fold-init > summary")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.locator("label:has([value=frame])").click()
    step = int(page.get_attribute("#frame-right", "step"))
    page.fill("#frame-right", "1")
    page.press("#frame-right", "Tab")
    holds(page, "#frame-right", str(step))
    page.fill("#frame-right", str(step + 1))
    page.press("#frame-right", "Tab")
    holds(page, "#frame-right", str(2 * step))
    page.fill("#frame-right", str(2 * step - 1))
    page.press("#frame-right", "Tab")
    holds(page, "#frame-right", str(2 * step))


def test_a_connection_that_is_back_is_noticed_though_its_stream_never_broke(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    page = opened.page
    page.route("**/api/jobs*", lambda route: route.abort())
    page.fill("#prompt", "a red circle")
    page.click("#generate")
    page.locator("#connection:not([hidden])").wait_for()
    page.unroute("**/api/jobs*")
    page.locator("#connection[hidden]").wait_for(state="attached", timeout=10000)


def test_what_is_written_while_the_page_loads_stays(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "of yesterday")
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    holds(page, "#prompt", "of yesterday")
    page.route("**/page/*/declared.js*", lambda route: page.wait_for_timeout(1500) or route.continue_())
    page.goto(opened.server.url, wait_until="commit")
    page.locator("#prompt").fill("written meanwhile")
    assert page.is_disabled("#generate")
    page.locator("html[data-ready]").wait_for(state="attached")
    assert page.is_enabled("#generate")
    holds(page, "#prompt", "written meanwhile")


def test_a_step_back_leaves_the_large_view(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=PHONE, has_touch=True)
    page = opened.page
    opened.generate(prompt="a red circle", steps=2)
    page.evaluate("location.hash = 'gallery'")
    page.locator(".tiles button").first.tap()
    page.locator("#viewer[open]").wait_for()
    page.evaluate("history.back()")
    page.locator("#viewer:not([open])").wait_for(state="attached")
    assert page.is_visible("#view-gallery")


def test_the_last_pictures_are_there_after_a_job_that_the_page_came_back_to(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a red circle", steps=2, num_images=2)
    shown = page.get_attribute("#stage-picture", "src")
    long(page)
    page.click("#generate")
    opened.status("^Step")
    page.reload()
    opened.status("^Step")
    assert page.locator("#strip button").count() == 2
    page.click("#cancel")
    opened.status("^Cancelled")
    assert page.get_attribute("#stage-picture", "src") == shown
    assert page.is_visible("#stage-picture")


def test_options_that_were_reset_can_be_had_back(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.fill("#steps", "7")
    page.click("#fold-loras > summary")
    page.click("#lora-button")
    page.click("#picker-list .card")
    page.click("#picker-done")
    page.click("#form-reset")
    assert page.input_value("#steps") != "7"
    page.locator("#notices button", has_text="Undo").click()
    holds(page, "#steps", "7")
    assert page.locator(".lora").count() == 1


def test_models_are_offered_before_the_server_says_what_they_painted(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.route("**/api/pictures?model=*", lambda route: page.wait_for_timeout(1500) or route.continue_())
    page.click("#model-button")
    page.keyboard.type("sec")
    page.locator("#picker-status", has_text="1 of 2").wait_for(timeout=1000)
    page.wait_for_timeout(3500)
    assert page.input_value("#picker-filter") == "sec"
    assert all("flagged%3Ano" in url for url in opened.requests if "/api/pictures?model=" in url)
    assert page.locator("#picker-list li:not([hidden])").count() == 1
    page.keyboard.press("Enter")
    page.locator("#model-button", has_text="second").wait_for()


@pytest.mark.parametrize("size", [NARROW, PHONE])
def test_the_head_fits_in_german(visit: Callable[..., Opened], size: dict[str, int]) -> None:
    opened = visit(viewport=size, locale="de-DE")
    page = opened.page
    page.evaluate("document.querySelector('#workflows-link').hidden = false")
    assert page.evaluate("document.querySelector('#theme').getBoundingClientRect().right") <= size["width"]
    for view in ("upscale", "gallery", "settings", "paint"):
        page.evaluate(f"location.hash = '{view}'")
        page.locator(f"nav a[href='#{view}'][aria-current]").wait_for()
        ends = page.evaluate(
            "(view) => [document.querySelector(`nav a[href='#${view}']`), document.querySelector('nav .icon')]"
            ".map((one) => one.getBoundingClientRect()).map(({ left, right }) => [left, right])",
            view,
        )
        assert view == "settings" or ends[0][1] <= ends[1][0] + 1


def test_the_prompt_is_in_sight_behind_the_link_that_skips_to_it(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_timeout(300)
    head = page.evaluate("document.querySelector('header').getBoundingClientRect().bottom")
    assert page.evaluate("document.querySelector('#prompt').getBoundingClientRect().top") >= head


def test_a_queue_of_orders_without_a_size_takes_what_their_model_takes(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    with opened.server.client() as client:
        long(page)
        page.click("#generate")
        opened.status("^Step")
        order = {"prompt": "waits", "steps": 100, "seed": 1}
        ids = [client.post("/api/jobs", json=order).json()["id"] for _ in range(3)]
        page.locator("#queue-list li", has_text="waits").nth(2).wait_for()
        left = page.locator("#queue-left", has_text=re.compile(r"\d")).text_content()
        seconds = sum(
            int(number) * {"s": 1, "min": 60}[unit] for number, unit in re.findall(r"(\d+) (s|min)", str(left))
        )
        alone = opened.status(r"^Step .* left")
        own = sum(int(number) * {"s": 1, "min": 60}[unit] for number, unit in re.findall(r"(\d+) (s|min)", alone))
        for one in ids:
            client.post(f"/api/jobs/{one}/cancel")
    page.click("#cancel")
    opened.status("^Cancelled")
    assert seconds <= own * 1.5 + 5


def test_strokes_thinner_than_their_edge_are_seen(visit: Callable[..., Opened]) -> None:
    def blur() -> float:
        return float(page.evaluate("/[0-9.]+/.exec(document.querySelector('#mask-canvas').style.filter)[0]"))

    page = visit().page
    page.click("#fold-init > summary")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.fill("#mask-feather", "4")
    blurs = []
    for pixels in ("16", "4"):
        page.fill("#mask-pixels", pixels)
        page.focus("#mask-canvas")
        page.keyboard.press("Space")
        blurs.append(blur())
        assert ("fade" in str(page.text_content("#mask-share"))) == (pixels == "4")
    assert blurs[1] < blurs[0] / 2


def test_a_button_says_that_its_picture_is_under_way(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a red circle", steps=2)
    page.route("**/files/*", lambda route: page.wait_for_timeout(800) or route.continue_())
    page.click("#picture-inpaint", no_wait_after=True)
    page.locator("#picture-inpaint[aria-busy]").wait_for(timeout=3000)
    page.locator("#mask[open]").wait_for()
    page.locator("#picture-inpaint:not([aria-busy])").wait_for()


@pytest.mark.parametrize(("language", "told"), [("de-DE", "0,0 %"), ("fr-FR", "0,0 %"), ("en-US", "0.0 %")])
def test_numbers_and_units_are_those_of_the_language(visit: Callable[..., Opened], language: str, told: str) -> None:
    page = visit(locale=language).page
    unit = "Mo" if language == "fr-FR" else "MB"
    assert re.search(rf"\d\s{unit}", str(page.text_content("#model-button")))
    page.click("#fold-init > summary")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.locator("#mask-share", has_text=told).wait_for()

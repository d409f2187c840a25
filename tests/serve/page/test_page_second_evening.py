"""What somebody from InvokeAI missed in an evening at the page, dark, in German, on a phone, each as a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.page.conftest import PHONE, Opened

pytestmark = pytest.mark.slow


def test_a_job_of_another_tab_is_ended_from_this_one(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate("^Step ", prompt="the long one", steps=500, num_images=50)
    other = opened.page.context.new_page()
    other.goto(opened.server.url)
    other.get_by_label("Cancel: the long one").click()
    opened.status("^Cancelled")


def test_of_two_jobs_that_look_alike_each_is_cancelled_by_its_own_button(visit: Callable[..., Opened]) -> None:
    opened = visit()
    for _ in range(2):
        opened.generate("^Step ", prompt="the long one", steps=500, num_images=50)
    page = opened.page.context.new_page()
    page.goto(opened.server.url)
    rows = page.locator("#queue-list li")
    with opened.server.client() as client:
        for left in (1, 0):
            rows.nth(left).wait_for()
            (drawn,) = client.get("/api/jobs?state=drawing").json()["jobs"]
            rows.filter(has_text="now").get_by_label("Cancel: the long one").click()
            rows.nth(left).wait_for(state="detached")
            assert client.get(f"/api/jobs/{drawn['id']}").json()["state"] == "cancelled"
            page.wait_for_timeout(1500 if left else 0)  # The queue is read, and the next one is drawn.


def test_a_job_is_ended_by_a_press_during_which_the_queue_is_read(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate("^Step ", prompt="the long one", steps=500, num_images=50)
    page = opened.page.context.new_page()
    page.goto(opened.server.url)
    button = page.get_by_label("Cancel: the long one")
    button.hover()
    page.wait_for_load_state("networkidle")
    page.mouse.down()
    row = page.locator("#queue-list li", has_text="for a moment")
    with opened.server.client() as client:
        other = client.post("/api/jobs", json={"prompt": "for a moment", "steps": 1}).json()["id"]
        row.wait_for()
        client.post(f"/api/jobs/{other}/cancel")
    row.wait_for(state="detached")
    page.mouse.up()
    opened.status("^Cancelled")


def test_arrows_go_from_picture_to_picture_in_the_gallery(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.server.draw(prompt="a stork", num_images=12, steps=1)
    page = opened.page
    page.click("text=Gallery")
    with page.expect_response("**/api/pictures?search=stork*"):
        page.fill("#search", "stork")
    page.locator("#gallery-status", has_text="12 pictures").wait_for()
    page.wait_for_timeout(200)
    page.locator("#gallery-days .thumbnail").nth(11).wait_for()
    tiles = "[...document.querySelectorAll('#gallery-days .thumbnail')]"
    top = "one.getBoundingClientRect().top"
    across = page.evaluate(f"{tiles}.map((one) => {top}).filter((top, _, all) => top === all[0]).length")
    page.locator("#gallery-days .thumbnail").first.focus()
    reached = []
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowLeft", "End", "Home"):
        page.keyboard.press(key)
        reached.append(page.evaluate(f"{tiles}.indexOf(document.activeElement)"))
    assert reached == [1, across + 1, 1, 0, 0, 11, 0]


def test_favourites_among_those_to_be_deleted_are_named(visit: Callable[..., Opened]) -> None:
    opened = visit()
    liked = opened.server.draw(prompt="a crane", num_images=2, steps=1)["pictures"][0]["id"]
    with opened.server.client() as client:
        client.put(f"/api/pictures/{liked}/favourite")
    page = opened.page
    page.click("text=Gallery")
    page.fill("#search", "crane")
    page.locator("#gallery-status", has_text="2 pictures").wait_for()
    page.click("#select")
    page.click("#select-all")
    page.click("#selected-delete")
    page.locator("#confirm-question", has_text="1 of them is a favourite.").wait_for()
    page.click("#confirm-no")


def test_german_has_its_own_key_and_no_word_for_two_things(visit: Callable[..., Opened]) -> None:
    opened = visit(locale="de-DE")
    assert str(opened.page.text_content("#generate")).split() == ["Generieren", "Strg", "↵"]
    opened.page.click("text=Galerie")
    assert "Beanstandet" in str(opened.page.text_content("#search-kind"))
    opened.page.click("text=Malen")
    opened.page.click("#open-styles")
    assert opened.page.text_content("#notebook-keep .primary") == "Speichern"


def test_a_phone_has_the_ends_of_dialogs_where_thumbs_look(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=PHONE, has_touch=True)
    opened.server.draw(prompt="two ducks", num_images=2, steps=1)
    page = opened.page
    page.click("#model-button")
    page.locator("#picker-close").wait_for()
    box, search = page.locator("#picker-close").bounding_box(), page.locator("#picker-filter").bounding_box()
    assert box["x"] > PHONE["width"] - 80
    assert search["y"] > box["y"]
    assert search["width"] > 250
    page.click("#picker-close")
    page.click("text=Gallery")
    page.fill("#search", "ducks")
    page.locator("#gallery-status", has_text="2 pictures").wait_for()
    page.locator("#gallery-days .thumbnail").first.click()
    page.locator("#viewer-close").wait_for()
    close = page.locator("#viewer-close").bounding_box()
    assert close["x"] > PHONE["width"] - 80
    assert close["y"] < 60
    assert page.is_disabled("#viewer-before")
    swipe = """(link) => {
      const at = (x) => new Touch({ identifier: 1, target: link, clientX: x, clientY: 300 });
      link.dispatchEvent(new TouchEvent("touchstart", { touches: [at(300)], changedTouches: [at(300)] }));
      link.dispatchEvent(new TouchEvent("touchend", { touches: [], changedTouches: [at(120)] }));
    }"""
    page.locator("#viewer-link").evaluate(swipe)
    page.locator("#viewer-after:disabled").wait_for()
    assert page.is_enabled("#viewer-before")


def test_the_page_is_not_ready_before_it_is(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.page.route("**/api/models", lambda route: None)
    opened.page.goto(f"{opened.server.url}/?again")
    opened.page.wait_for_timeout(300)
    assert opened.page.text_content("#status") == "Loading…"


def test_settings_name_the_file_of_styles(visit: Callable[..., Opened]) -> None:
    opened = visit()
    with opened.server.client() as client:
        (file,) = json.loads(client.get("/api/server").content)["folders"]["--styles"]
    assert file.endswith("/styles.csv")


def test_generating_forever_is_ended_between_two_jobs(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "again")
    page.fill("#steps", "1")
    page.check("#forever")
    # The second order is held back: the first job has ended then, and there is none to cancel.
    asked: list[Any] = []

    def hold_the_second(route: Any) -> None:
        if route.request.method == "POST":
            asked.append(route)
        if len(asked) < 2 or route.request.method != "POST":
            route.continue_()

    page.route("**/api/jobs*", hold_the_second)
    page.click("#generate")
    page.locator("#picture-bar").wait_for()
    while len(asked) < 2:
        page.wait_for_timeout(50)
    page.click("#cancel")
    assert not page.is_checked("#forever")
    opened.may_complain = True  # A job of one step may be done before its end is asked for.
    asked[1].continue_()
    opened.status("^(Cancelled|Ready|Painted)")
    page.wait_for_timeout(500)
    assert len(asked) == 2
    assert opened.unfinished() == 0


def test_bounds_of_fields_are_told_in_the_pages_language(visit: Callable[..., Opened]) -> None:
    opened = visit(locale="fr-FR")
    opened.page.fill("#steps", "0")
    opened.page.click("#generate")
    opened.page.locator("#order-problem", has_text="Étapes: au moins 1.").wait_for()

"""What somebody from Fooocus missed in an evening at the page, on a desk, in six languages, without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.page.conftest import IMPORTED, WIDE, Opened, holds, long

pytestmark = pytest.mark.slow


def test_a_long_queue_leaves_the_picture_and_generate_in_sight(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=WIDE)
    page = opened.page
    opened.generate(prompt="a red circle", steps=2)
    long(page)
    for number in range(5):
        page.fill("#prompt", f"the long one {number}")
        page.click("#generate")
        opened.status("^(Step|Queued|Waiting)")
    page.locator("#queue-list li").nth(3).wait_for()
    frame = page.locator("#frame").bounding_box()
    assert frame["height"] >= 0.38 * WIDE["height"] - 1
    page.locator("#queue-list li").last.scroll_into_view_if_needed()
    button = page.locator("#generate").bounding_box()
    assert button["y"] >= 0
    assert page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).closest('button')?.id", [button["x"] + 9, button["y"] + 9]
    )
    page.click("#queue-clear")
    page.click("#cancel")
    opened.status("^Cancelled")


def test_each_note_of_a_prompt_has_a_line(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.fill("#prompt", "a (red circle <lora:nobody:1>")
    page.locator("#prompt-notes", has_text="There is no LoRA").wait_for()
    assert len(page.locator("#prompt-notes").inner_text().splitlines()) == 2


def test_enter_takes_the_first_model_that_the_filter_leaves(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.click("#model-button")
    page.fill("#picker-filter", "second")
    page.keyboard.press("Enter")
    page.locator("#model-button", has_text="second").wait_for()
    page.wait_for_timeout(200)
    assert not page.locator("#picker[open]").count()


def test_a_recipe_is_of_one_prompt_and_of_its_own_steps(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=2)
    page = opened.page
    opened.fold("rare")
    page.check("#fast")
    page.check("#lines")
    page.click("#picture-actions >> text=Reuse all")
    page.locator(".notice", has_text="loaded").wait_for()
    assert not page.is_checked("#fast")
    assert not page.is_checked("#lines")
    holds(page, "#steps", "2")


def test_a_notice_is_seen_in_front_of_the_large_view(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=2)
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#stage-open")
    page.click("#viewer >> text=Copy as text")
    found = page.locator(".notice", has_text="Copied.")
    found.hover()  # It goes after a while, unless the pointer is on it; that finds it in front, too.
    page.keyboard.press("Escape")
    page.locator("#viewer").wait_for(state="hidden")
    in_front(page, found)


def test_a_notice_stays_in_front_of_the_large_view_when_a_question_over_it_closes(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a red circle", steps=2)
    page.evaluate("location.hash = '#gallery'")
    page.locator("#gallery-days .thumbnail").first.click()
    page.evaluate("document.querySelector('#viewer-delete').click()")
    page.locator("#confirm[open]").wait_for()
    page.evaluate(IMPORTED, "notices.js")
    page.evaluate("void imported.notice('Painted: it', [['Open', () => {}]])")
    found = page.locator(".notice", has_text="Painted: it")
    found.hover()
    page.keyboard.press("Escape")
    page.locator("#confirm").wait_for(state="hidden")
    assert page.is_visible("#viewer")
    in_front(page, found)


def in_front(page: Any, notice: Any) -> None:
    """Wait until a notice is in front of all else; a dialog tells that it is closed a moment after it is."""
    page.wait_for_function(
        """(notice) => {
          const { x, y } = notice.getBoundingClientRect();
          return document.elementFromPoint(x + 9, y + 9)?.closest('.notice') === notice;
        }""",
        arg=notice.element_handle(),
        polling=20,
    )


def test_what_a_page_without_its_server_shows_is_nobodys_choice(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    page = opened.page
    page.evaluate("localStorage.clear(); Storage.prototype.setItem = () => {}")
    page.route("**/api/**", lambda route: route.abort())
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    page.fill("#prompt", "a red circle")
    page.wait_for_timeout(500)
    page.unroute("**/api/**")
    opened.open()
    page.locator("#model-button", has_text="first").wait_for()
    assert page.input_value("#width")
    assert page.input_value("#prompt") == "a red circle"

"""The gallery's place on the page: what is chosen over several searches, kept over reloads, and read anew."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import pytest

from tests.serve.conftest import wait_until
from tests.serve.page.conftest import PHONE, WIDE, Opened, holds

pytestmark = pytest.mark.slow


def status(opened: Opened, text: str) -> None:
    opened.page.locator("#gallery-status", has_text=re.compile(f"^{text}$")).wait_for()


def test_what_is_chosen_stays_when_another_search_is_made_and_is_shown_together(visit: Callable[..., Opened]) -> None:
    opened = visit("#gallery", may_complain=True)  # Of the term that is none.
    page = opened.page
    for prompt in ("a lynx", "an ibis"):
        opened.server.draw(prompt=f"{prompt} of two searches", steps=1)
    page.click("#select")
    for word in ("lynx", "ibis"):
        page.fill("#search", f'{word} "of two searches"')
        page.locator(f"#gallery-days .thumbnail[title*={word}]").click()
    assert page.text_content("#selected-count") == "2 pictures chosen"
    page.click("#selected-show")
    status(opened, "2 pictures")
    assert page.locator("#gallery-days .chosen").count() == 2
    assert page.is_enabled("#selected-compare")
    page.fill("#search", '"of two searches" -lynx')
    status(opened, "1 picture")
    assert page.get_attribute("#selected-show", "aria-pressed") == "false"
    page.fill("#search", "nonsense:lynx")
    page.locator("#gallery-problem", has_text="nonsense: is no term of the search").wait_for()
    page.fill("#search", "")
    page.click("#select")
    page.locator("#gallery-days .chosen").first.wait_for(state="detached")


def test_search_filters_and_place_are_there_after_a_reload_and_a_step_back(visit: Callable[..., Opened]) -> None:
    opened = visit("#gallery", viewport=PHONE)
    page = opened.page
    opened.server.draw(prompt="a moose to be found again", num_images=30, steps=1)
    page.fill("#search", "moose")
    page.select_option("#search-kind", "flagged:no")
    status(opened, "30 pictures")
    # The list is told of before all of it is laid out.
    wait_until(lambda: page.evaluate("scrollTo(0, 700), scrollY") == 700)
    page.reload()
    status(opened, "30 pictures")
    assert (page.input_value("#search"), page.input_value("#search-kind")) == ("moose", "flagged:no")
    wait_until(lambda: page.evaluate("scrollY") == 700)
    page.evaluate("location.hash = '#paint'")  # As a button of a picture does; a driver's click scrolls up to the link.
    page.locator("#prompt").wait_for()
    page.go_back()
    page.locator("#gallery-days").wait_for()
    wait_until(lambda: page.evaluate("scrollY") == 700)
    opened.open()
    page.click('nav a[href="#gallery"]')
    holds(page, "#search", "moose")


def test_a_file_that_came_into_the_folder_is_found(visit: Callable[..., Opened]) -> None:
    opened = visit("#gallery")
    page = opened.page
    (picture,) = opened.server.draw(prompt="a copied badger", steps=1)["pictures"]
    page.fill("#search", "badger")
    status(opened, "1 picture")
    folder = opened.server.settings.gallery / picture["file"][:10]
    shutil.copy(opened.server.settings.gallery / picture["file"], folder / "90001-7.png")
    page.click("#gallery-refresh")
    page.locator(".notice", has_text="New files: 1; gone: 0.").wait_for()
    status(opened, "2 pictures")


@pytest.mark.parametrize("locale", ["en", "de", "es", "fr"])
def test_the_filters_stand_in_one_row_on_a_wide_screen(visit: Callable[..., Opened], locale: str) -> None:
    page = visit("#gallery", viewport=WIDE, locale=locale).page
    ends = page.locator("#view-gallery .toolbar").first.evaluate(
        "(row) => [...row.children].map((one) => one.getBoundingClientRect().bottom).filter(Boolean)"
    )
    assert max(ends) - min(ends) < 20

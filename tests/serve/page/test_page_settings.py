"""Settings of the page: language, theme, defaults, and what the operator has; sides that a model does not draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from olivelike.serve.languages import table, words
from tests.serve.page.conftest import PHONE, WIDE, Opened, barriers, holds

pytestmark = pytest.mark.slow
CODES = list(table()["languages"])
CUT_OFF = """["sampler", "schedule", "language", "theme-choice", "upscale-by"].map((id) => document.getElementById(id))
    .filter((one) => one.offsetParent)
    .filter((one) => {
      const drawn = document.createElement("canvas").getContext("2d");
      drawn.font = getComputedStyle(one).font;
      return drawn.measureText(one.selectedOptions[0].text).width + 32 > one.clientWidth;
    })
    .map((one) => one.selectedOptions[0].text)"""
"""What is chosen in lists that have no room for it: 32 pixels are padding and the arrow."""


def text(code: str, english: str) -> str:
    """Return a text of the table in a language."""
    return words(code).get(english, english)


def test_the_browsers_language_is_taken_and_another_one_is_kept(visit: Callable[..., Opened]) -> None:
    opened = visit(locale="de-AT")
    page = opened.page
    assert page.get_attribute("html", "lang") == "de"
    assert page.text_content("label[for=negative_prompt]") == text("de", "Negative prompt")
    page.fill("#prompt", "a red circle")
    page.click('nav a[href="#settings"]')
    page.select_option("#language", "fr")
    page.locator("html[data-ready][lang=fr]").wait_for(state="attached")
    assert page.text_content("#settings-heading") == text("fr", "Settings")
    assert page.input_value("#prompt") == "a red circle"
    opened.open()
    assert page.get_attribute("html", "lang") == "fr"
    page.click('nav a[href="#settings"]')
    assert page.input_value("#language") == "fr"
    page.select_option("#language", "")
    page.locator("html[data-ready][lang=de]").wait_for(state="attached")


@pytest.mark.parametrize("code", CODES)
def test_longer_words_fit_on_phones_and_wide_screens(visit: Callable[..., Opened], code: str) -> None:
    opened = visit(viewport=WIDE, locale=code)
    page = opened.page
    for viewport in (WIDE, PHONE):
        page.set_viewport_size(viewport)
        for view in ("paint", "upscale", "gallery", "settings"):
            page.click(f'nav a[href="#{view}"]')
            if view == "paint":
                page.evaluate("for (const one of document.querySelectorAll('#form details')) one.open = true")
            page.wait_for_timeout(50)
            assert opened.width() <= viewport["width"], (view, viewport)
            assert page.evaluate(CUT_OFF) == [], (view, viewport)
    # The words of no button are cut off or broken out of it.
    script = """[...document.querySelectorAll("button, .button, nav a")].filter((one) =>
        one.offsetParent && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""
    assert page.evaluate(script) == []


@pytest.mark.parametrize("code", CODES[1:])
def test_axe_finds_nothing_serious_in_another_language(visit: Callable[..., Opened], axe: str, code: str) -> None:
    opened = visit(locale=code, color_scheme="dark")
    opened.page.evaluate(axe)
    for view in ("paint", "upscale", "gallery", "settings"):
        opened.page.click(f'nav a[href="#{view}"]')
        assert barriers(opened.page) == {}


def test_keys_alone_change_settings(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page

    def tab_to(name: str) -> None:
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id || document.activeElement.hash") == name:
                return
        raise AssertionError(f"{name} is not reached")

    tab_to("#settings")
    page.keyboard.press("Enter")
    tab_to("language")
    page.keyboard.type("Deu")
    page.locator("html[data-ready][lang=de]").wait_for(state="attached")
    tab_to("theme-choice")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("html", "data-theme") == "dark"
    tab_to("defaults-keep")
    page.keyboard.press("Enter")
    page.locator(".notice").wait_for()
    tab_to("models-refresh")


def test_what_the_form_has_becomes_the_default_of_this_model_or_of_all(visit: Callable[..., Opened]) -> None:
    opened = visit("#settings")
    page = opened.page
    assert page.text_content("#defaults-list") == "None kept: each model begins with its own."
    opened.open()
    page.fill("#prompt", "a red circle")
    page.fill("#steps", "7")
    page.fill("#num_images", "2")
    page.fill("#seed", "3")
    page.click('nav a[href="#settings"]')
    page.click("#defaults-keep")
    told = page.locator("#defaults-list li").all_text_contents()
    assert sorted(told) == ["All models Batch count 2Forget", "first Steps 7Forget"]
    page.click('nav a[href="#paint"]')
    page.fill("#steps", "9")
    page.click("#form-reset")
    assert [page.input_value(f"#{name}") for name in ("steps", "num_images", "seed")] == ["7", "2", "-1"]
    page.click("#model-button")
    page.locator("#picker .card", has_text="second").click()
    holds(page, "#steps", "50")
    assert page.input_value("#num_images") == "2"
    opened.open()
    page.click('nav a[href="#settings"]')
    page.locator("#defaults-list li", has_text="All models").get_by_role("button").click()
    page.locator("#defaults-list li", has_text="first").get_by_role("button").click()
    page.click('nav a[href="#paint"]')
    assert page.input_value("#num_images") == "1"


def test_folders_bounds_and_models_are_shown(visit: Callable[..., Opened]) -> None:
    opened = visit("#settings")
    page = opened.page
    folders = page.text_content("#folders-list")
    assert "/loras --lora-dir" in folders and "none given --wildcard-dir" in folders
    assert "Largest side2048 pixels" in page.text_content("#allowed-list")
    facts = page.text_content("#models-list")
    assert "first" in facts and "cpu · fp32" in facts
    page.select_option("#theme-choice", "dark")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.click("text=Paint")
    opened.generate(prompt="a red circle", steps=2)
    page.click('nav a[href="#settings"]')
    page.click("#models-refresh")
    page.locator("#models-list dd", has_text="loaded").first.wait_for()
    page.click("#models-unload")
    page.locator("#models-unload[disabled]").wait_for()
    opened.server.draw(model="second")
    page.locator("#models-list dd", has_text="loaded").wait_for()  # Nobody has asked for it.
    page.locator("#models-unload:enabled").wait_for()


def test_a_side_that_the_model_does_not_draw_becomes_the_nearest_in_sight(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    unit = int(page.get_attribute("#width", "step"))
    page.fill("#width", str(3 * unit + 1))
    page.keyboard.press("Tab")
    assert page.input_value("#width") == str(3 * unit)
    most = int(page.get_attribute("#width", "max")) // unit * unit
    note = f"{3 * unit + 1} became {3 * unit}: sides are multiples of {unit} with this model, at most {most}."
    assert page.text_content("#size-note") == note
    page.fill("#width", str(2 * unit - 1))
    assert page.is_hidden("#size-note")
    page.fill("#prompt", "a red circle")
    page.fill("#steps", "2")
    page.keyboard.press("Control+Enter")
    opened.status("^Painted")
    assert opened.job()["order"]["width"] == 2 * unit

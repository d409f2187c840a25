"""Upscale on the page: a view of its own, from the gallery, and as Hires fix's upscaler."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.serve.page.conftest import Opened, drop, png

pytestmark = pytest.mark.slow
NAME = "R-ESRGAN 4x+"


def test_a_picture_is_enlarged_from_a_file_or_the_gallery_and_goes_there(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=3, seed=5)
    opened.page.click("text=Upscale")
    drop(opened, "#upscale-form .drop", "blue.png", png("navy", (20, 10)))
    opened.page.locator("#upscale-size", has_text="20\u00d710 becomes 40\u00d720").wait_for()
    assert opened.page.input_value("#upscale-by") == NAME
    opened.page.fill("#upscale-factor", "3")
    opened.page.click("#upscale-start")
    opened.page.locator("#upscale-status", has_text=re.compile("^60\u00d730, after .* gallery")).wait_for()
    opened.page.click("#upscale-open")
    assert NAME in opened.page.text_content("#viewer-recipe")
    opened.page.click("#viewer-close")
    opened.page.click("text=Gallery")
    opened.page.locator("#gallery-days .thumbnail").nth(1).click()
    opened.page.click("#viewer-upscale")
    opened.page.locator("#upscale-size", has_text="32\u00d732 becomes 96\u00d796").wait_for()
    opened.page.keyboard.press("Enter")
    opened.page.locator("#upscale-status", has_text=re.compile("^96\u00d796, after")).wait_for()
    opened.page.click("#upscale-open")
    opened.page.click("#viewer-use")
    opened.page.locator(".notice", has_text=f"Postprocess upscaler {NAME}").wait_for()


def test_a_picture_that_a_network_makes_too_large_is_named_before_the_click_and_keeps_no_other_from_it(
    visit: Callable[..., Opened],
) -> None:
    opened = visit()
    opened.page.click("text=Upscale")
    drop(opened, "#upscale-form .drop", "wide.png", png("navy", (2080, 2048)))
    drop(opened, "#upscale-form .drop", "blue.png", png("navy", (20, 10)))
    opened.page.locator("#upscale-pictures li").nth(1).wait_for()
    opened.page.click("#upscale-start")
    opened.page.locator("#upscale-status", has_text=re.compile("^1/2 · 40\u00d720, after")).wait_for()
    said = f"wide.png: {NAME} makes 8320\u00d78192 of it first, more than 67 million pixels."
    assert opened.page.text_content("#upscale-problem") == said
    assert opened.page.text_content("#upscale-size") == said
    assert opened.page.is_enabled("#upscale-start")
    opened.page.click("[aria-label='Remove blue.png']")
    assert opened.page.is_disabled("#upscale-start")


def test_hires_fix_enlarges_by_a_network_and_recipes_choose_it(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("hires")
    opened.page.select_option("#upscaler", NAME)
    opened.generate(prompt="a red circle", steps=3, seed=5, hires="2")
    assert opened.job()["order"]["upscaler"] == NAME
    assert opened.picture().shape == (64, 64, 3)
    opened.page.reload()
    opened.page.locator("html[data-ready]").wait_for(state="attached")
    assert opened.page.input_value("#upscaler") == NAME
    opened.fold("hires")
    opened.page.select_option("#upscaler", "")
    opened.page.click("text=Gallery")
    opened.page.locator("#gallery-days .thumbnail").first.click()
    opened.page.click("#viewer-use")
    opened.page.locator(".notice", has_text="Recipe of the picture loaded.").wait_for()
    assert opened.page.input_value("#upscaler") == NAME

"""Work goes on where the picture is: what is below it, what stays in sight, what waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.page.conftest import DESKTOP, PHONE, WIDE, ZOOMED, Opened

pytestmark = pytest.mark.slow


def test_a_picture_has_its_facts_and_its_buttons_below_it(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a red circle", steps=4, seed=21, guidance_scale=3)
    assert str(page.text_content("#picture-facts")).startswith("Seed 21 \u00b7 32\u00d732 \u00b7 ")
    page.fill("#seed", "1")
    page.click("#picture-seed")
    assert page.input_value("#seed") == "21"
    page.fill("#prompt", "another prompt")
    page.evaluate("document.querySelector('#status').textContent = ''")  # What it said before.
    page.click("#picture-vary")
    opened.status("^Painted")
    varied = opened.job()["pictures"][0]["record"]
    assert (varied["prompt"], varied["seed"], varied["steps"]) == ("a red circle", 21, 4)
    assert varied["variation_strength"] == 0.2
    titles = page.locator("#strip .thumbnail").evaluate_all("all => all.slice(-2).map(({ title }) => title)")
    assert titles == [f"a red circle · Seed 21{one}" for one in ("", f" · variation {varied['variation_seed']} at 0.2")]
    assert page.input_value("#prompt") == "another prompt"
    page.click("#picture-use")
    page.locator(".notice", has_text="Recipe of the picture loaded").wait_for()
    assert page.input_value("#prompt") == "a red circle"
    with page.expect_download() as download:
        page.click("#picture-save")
    assert download.value.suggested_filename.endswith("-21.png")
    page.click("#picture-inpaint")
    page.locator("#mask[open]").wait_for()
    page.keyboard.press("Escape")
    page.click("#picture-delete")
    page.click("#confirm-yes")
    page.locator("#strip").wait_for(state="hidden")  # One picture is left of two.
    page.click("#picture-delete")
    page.click("#confirm-yes")
    page.locator("#picture-bar").wait_for(state="hidden")
    assert page.is_visible("#stage-empty")


def test_a_canvas_closed_with_nothing_painted_leaves_the_form_as_it_was(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a red circle", steps=2, seed=21)
    page.click("#picture-inpaint")
    page.locator("#mask[open]").wait_for()
    assert page.text_content("#init-badge") == "on"
    page.keyboard.press("Escape")
    page.locator("#init-badge", has_text=re.compile("^$")).wait_for(state="attached")
    assert page.is_visible("#init-empty")
    assert page.text_content("#init-coming") == ""
    assert page.input_value("#strength") == "0.8"


def test_a_recipe_leaves_no_plot_on_and_undo_has_it_back(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a red circle", steps=2, seed=21)
    page.evaluate("document.querySelector('#x-field').closest('details').open = true")
    page.select_option("#x-field", "guidance_scale")
    page.fill("#x-values", "3, 7")
    page.click("#picture-use")
    page.locator(".notice", has_text="Recipe of the picture loaded").wait_for()
    assert (page.input_value("#x-field"), page.text_content("#plot-badge")) == ("", "")
    page.locator(".notice button", has_text="Undo").click()
    page.locator("#plot-badge", has_text="2").wait_for(state="attached")
    assert page.input_value("#x-field") == "guidance_scale"


def test_a_picture_is_enlarged_by_hires_fix_with_what_it_was_made_from(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.page.evaluate("document.querySelector('#fold-hires').open = true")
    opened.generate(prompt="a red circle", steps=4, seed=5)
    opened.page.fill("#hires_strength", "0.5")
    opened.page.click("#picture-hires")
    opened.page.locator("#picture-facts", has_text="64\u00d764").wait_for()
    record = opened.job()["pictures"][0]["record"]
    assert (record["seed"], record["hires"], record["hires_strength"]) == (5, 2, 0.5)
    assert record["prompt"] == "a red circle"
    assert opened.page.locator("#picture-hires").count() == 0  # It is enlarged already.


def test_the_last_picture_and_its_strip_are_there_after_a_reload(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate("^3 pictures", prompt="a red circle", steps=2, num_images=3, seed=5)
    opened.page.locator("#strip button").nth(1).click()
    shown = opened.page.get_attribute("#stage-picture", "src")
    opened.open()
    opened.page.locator("#stage-open:visible").wait_for()
    assert opened.page.get_attribute("#stage-picture", "src") == shown
    assert opened.page.locator("#strip button").count() == 3
    assert str(opened.page.text_content("#picture-facts")).startswith("Seed 6")


@pytest.mark.parametrize("viewport", [PHONE, ZOOMED, DESKTOP, WIDE], ids=["phone", "zoomed", "desktop", "wide"])
def test_what_starts_and_tells_of_work_stays_in_sight(visit: Callable[..., Opened], viewport: dict[str, int]) -> None:
    opened = visit(viewport=viewport)
    page = opened.page
    for summary in page.locator("#form .folds > details > summary:visible").all():
        summary.click()
    page.locator("#form-reset").scroll_into_view_if_needed()
    assert "Ctrl" in str(page.text_content("#generate"))
    page.fill("#retry_unsafe", "-1")
    page.click("#generate")
    for name in ("#generate", "#status", "#order-problem"):
        box: dict[str, Any] = page.locator(name).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= viewport["height"], name
    assert opened.width() <= viewport["width"]


def test_a_wide_page_has_its_folds_beside_the_picture(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=WIDE)
    left = {name: opened.page.locator(name).bounding_box()["x"] for name in (".options", "#stage", ".folds")}
    assert left[".options"] < left["#stage"] < left[".folds"]


def test_what_waits_is_told_moved_and_cleared(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate("^Step ", prompt="the first", steps=500, num_images=50)
    for prompt, scale in (("the second", "7.5"), ("the third", "5")):
        page.fill("#guidance_scale", scale)
        page.fill("#num_images", "1")
        page.fill("#prompt", prompt)
        page.click("#generate")
        page.locator("#queue-list li", has_text=prompt).wait_for()
    rows = page.locator("#queue-list li")
    assert [prompt in text for prompt, text in zip(("second", "third"), rows.all_text_contents(), strict=True)] == [
        True
    ] * 2
    assert "CFG scale 5" in rows.all_text_contents()[1]
    assert "CFG scale" not in rows.all_text_contents()[0]
    page.locator("#queue-left", has_text="left in all").wait_for()
    page.get_by_label("Earlier: the third").click()
    page.locator("#queue-list li:first-child", has_text="the third").wait_for()
    page.click("#queue-clear")
    page.locator("#queue").wait_for(state="hidden")
    page.keyboard.press("Escape")
    opened.status("^Cancelled")
    assert opened.unfinished() == 0


def test_one_event_has_one_notice_and_a_click_opens_what_was_painted(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "while elsewhere")
    page.fill("#steps", "500")
    page.click("#generate")
    page.click("text=Gallery")
    page.locator(".notice", has_text="Painted: while elsewhere").get_by_text("Open").click()
    page.locator("#viewer[open]").wait_for()
    assert "while elsewhere" in str(page.text_content("#viewer-recipe"))
    page.click("#viewer-use")
    page.locator(".notice", has_text="Recipe of the picture loaded").wait_for()
    page.click("#picture-seed")
    page.locator(".notice", has_text="is in the form").wait_for()
    # That of the recipe stays for its Undo.
    assert [one.partition(" ")[0] for one in page.locator(".notice p").all_text_contents()] == ["Recipe", "Seed"]
    assert (page.input_value("#num_images"), page.is_checked("#sheet")) == ("1", False)

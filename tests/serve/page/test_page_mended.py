"""What painters found at the page, and that it is mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from olivelike.serve import ServeSettings
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import running
from tests.serve.page.conftest import IMPORTED, WIDE, Opened, drop, equipped, holds, png

pytestmark = pytest.mark.slow


def test_clip_skip_is_a1111s_in_the_form_the_order_and_the_large_view(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    page = opened.page
    opened.fold("rare")
    assert page.input_value("#clip_layer") == "1"
    opened.generate(prompt="a fish", steps="2", clip_layer="2")
    assert opened.job()["order"]["clip_layer"] == 2
    page.click("#stage-open")
    assert page.locator("#viewer-recipe div", has_text="Clip skip").locator("dd").text_content() == "2"
    page.click("#viewer-close")
    page.fill("#clip_layer", "50")
    page.click("#generate")
    page.locator("#order-problem", has_text="“Clip skip” leaves no layer").wait_for()


def test_what_can_be_undone_stays_behind_a_newer_notice(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "a ship")
    page.locator("#prompt").evaluate(
        """(prompt) => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", "a fish\\nSteps: 3, Sampler: Euler, CFG scale: 4, Seed: 5, Size: 64x64");
          prompt.dispatchEvent(new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData }));
        }"""
    )
    page.locator(".notice", has_text="Recipe of").wait_for()
    opened.fold("rare")
    page.click("#form-reset")
    page.locator(".notice").nth(1).wait_for()
    page.locator(".notice", has_text="Recipe of").locator("button", has_text="Undo").click()
    holds(page, "#prompt", "a ship")


def test_arrows_go_back_from_the_last_picture_and_buttons_are_named_by_the_order(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a fish", steps="1", num_images="2")
    page.click("#stage-open")
    first = page.get_attribute("#viewer-link", "href")
    page.focus("#viewer-before")
    for _ in range(60):
        if page.is_disabled("#viewer-before"):
            break
        page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#viewer-link", "href") != first
    page.keyboard.press("ArrowRight")
    assert page.is_enabled("#viewer-before")


def test_an_outpainting_that_is_taken_back_leaves_no_mask(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("init")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.check("#tool-frame", force=True)
    for left in ("64", "0"):
        page.fill("#frame-left", left)
        page.keyboard.press("Tab")
    assert page.text_content("#mask-share").startswith("0.0 % covered")
    page.fill("#frame-right", "64")
    page.keyboard.press("Tab")
    share = page.text_content("#mask-share")
    page.click("#mask-undo")
    page.click("#mask-redo")
    assert page.text_content("#mask-share") == share


def test_vary_of_an_older_picture_is_shown(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a fish", steps="1", num_images="3")
    page.click("#strip li:nth-last-child(3) button")
    old = page.get_attribute("#stage-picture", "src")
    page.locator("#picture-actions button", has_text="Vary").click()
    opened.status("^Painted in")
    assert page.get_attribute("#stage-picture", "src") != old
    assert "variation" in page.text_content("#picture-facts")


def test_the_strip_is_there_after_a_reload(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a fish", steps="1", num_images="2")
    opened.generate(prompt="a bird", steps="1", num_images="1")
    before = opened.page.locator("#strip li").count()
    opened.open()
    opened.page.locator("#strip li").nth(before - 1).wait_for()
    assert before >= 3


def test_a_preset_without_a_prompt_leaves_the_one_that_is_there(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "")
    page.fill("#steps", "7")
    page.click("#open-presets")
    page.fill("#notebook-name", "seven steps")
    page.keyboard.press("Enter")
    page.locator("#notebook:not([open])").wait_for(state="attached")
    page.fill("#prompt", "a ship")
    page.fill("#steps", "3")
    page.click("#open-presets")
    page.locator("#notebook-list button", has_text="seven steps").click()
    holds(page, "#steps", "7")
    holds(page, "#prompt", "a ship")


def test_a_lora_for_another_model_is_told_before_anything_is_drawn(
    visit: Callable[..., Opened], little: Path, base_settings: ServeSettings, tmp_path: Path
) -> None:
    settings = equipped(base_settings, tmp_path, little)
    make_lora(tmp_path / "loras/other.safetensors", "kohya", base=little_checkpoint("xl"), alpha=64.0)
    with running(replace(settings)) as server:
        page = visit(server=server, may_complain=True).page
        page.click("#fold-loras > summary")
        page.click("#lora-button")
        page.locator("#picker-list .card", has_text="other").locator(":scope", has_text="not for this model").click()
        page.locator("#picker-list .card", has_text="wild").click()
        page.keyboard.press("Escape")
        rows = page.locator("#lora-list li")
        assert "not for this model" in rows.nth(0).text_content()
        assert "not for this model" not in rows.nth(1).text_content()
        assert [page.locator("#lora-list [type=number]").nth(place).input_value() for place in (0, 1)] == ["1", "1"]


def test_factors_of_upscaling_and_strengths_are_typed(visit: Callable[..., Opened]) -> None:
    opened = visit("#upscale")
    page = opened.page
    drop(opened, "#upscale-form .drop", "blue.png", png("navy", (100, 100)))
    page.locator("#upscale-size", has_text="becomes").wait_for()
    page.fill("#upscale-factor", "1.37")
    page.click("#upscale-start")
    page.locator("#upscale-status", has_text="137\u00d7137, after").wait_for()
    page.click("[href='#paint']")
    page.click("#fold-init > summary")
    page.fill("#strength-shown", "0.55")
    assert page.input_value("#strength") == "0.55"


def test_what_is_refused_most_often_is_said_in_the_pages_language(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True, locale="de-DE")
    page = opened.page
    page.fill("#prompt", "a <lora:none such:1>")
    page.click("#generate")
    page.locator("#order-problem", has_text="Eine LoRA „none such“ gibt es hier nicht.").wait_for()
    assert page.get_attribute("#order-problem", "lang") is None
    page.fill("#prompt", "a fish")
    page.click("#fold-plot > summary")
    page.select_option("#x-field", "prompt_sr")
    page.fill("#x-values", "green, red")
    page.click("#generate")
    page.locator("#plot-problem", has_text="Prompt S/R: „green“ steht nicht im Prompt.").wait_for()
    page.select_option("#x-field", "")
    assert page.is_disabled("#x-values")


def test_a_grid_says_what_changes_along_its_axes(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.click("#fold-plot > summary")
    page.select_option("#x-field", "seed")
    page.fill("#x-values", "3, 4")
    opened.generate(prompt="a fish", steps="2")
    page.click("#stage-open")
    page.locator("#viewer-recipe dt", has_text="X: Seed").wait_for()
    facts = page.text_content("#viewer-recipe")
    assert "3, 4" in facts and "Steps" in facts


def test_strokes_that_are_not_used_yet_are_asked_about(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("init")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.click("#mask-all")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    assert asked == ["beforeunload"]


def test_a_step_back_from_the_canvas_asks_and_stays_there(visit: Callable[..., Opened]) -> None:
    opened = visit("#gallery")
    page = opened.page
    page.click("[href='#paint']")
    opened.fold("init")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.click("#mask-all")
    page.evaluate("history.back()")
    page.locator("dialog[open]", has_text="Leave without what you painted?").wait_for()
    assert page.evaluate("location.hash") == "#paint" and page.locator("#view-gallery").is_hidden()
    page.click("dialog[open] button:has-text('Leave')")
    page.locator("#mask").wait_for(state="hidden")
    page.evaluate("history.back()")
    page.locator("#view-gallery").wait_for()


def test_a_mask_of_thin_strokes_says_that_they_fade(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("init")
    page.set_input_files("#init-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.click("#mask-open")
    page.fill("#mask-feather", "4")
    page.fill("#mask-pixels", "4")
    page.focus("#mask-canvas")
    page.keyboard.press("Space")
    share = page.locator("#mask-share")
    share.filter(has_text="fade").wait_for()
    soft = page.locator("#mask-canvas").evaluate("(canvas) => canvas.style.filter")
    page.fill("#mask-pixels", "30")
    page.keyboard.press("Tab")
    assert page.locator("#mask-canvas").evaluate("(canvas) => canvas.style.filter") == soft != "none"
    page.fill("#mask-feather", "0")
    assert "fade" not in str(share.text_content())


def test_ctrl_and_an_arrow_weigh_a_lora_in_its_tag(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.fill("#prompt", "a <lora:wild:0.7> fish")
    page.locator("#prompt").evaluate("(prompt) => prompt.setSelectionRange(10, 10)")
    page.keyboard.press("Control+ArrowUp")
    page.keyboard.press("Control+ArrowUp")
    holds(page, "#prompt", "a <lora:wild:0.8> fish")


def test_a_recipe_leaves_what_the_model_has_not(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    record = '{"prompt": "a fish", "seed": 3, "steps": 2, "prompt_weights": false, "cache_interval": 3}'
    page.evaluate(IMPORTED, "recipe.js")
    page.evaluate("(record) => imported.applyRecipe(JSON.parse(record), 'it', '')", record)
    page.locator(".notice", has_text="Recipe of it loaded").wait_for()
    assert not page.is_checked("#prompt_weights")
    assert page.input_value("#cache_interval") == "1"


def test_a_filled_form_has_no_field_marked_that_was_refused_before(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    page = opened.page
    page.fill("#prompt", "a fish")
    page.locator("#scheduler").evaluate("(scheduler) => (scheduler.value = 'DPM adaptive')")
    page.click("#generate")
    page.locator("#sampler[aria-invalid]").wait_for()
    page.click("#form-reset")
    page.locator("#sampler:not([aria-invalid])").wait_for()


def test_the_gallerys_filters_stand_in_a_row_beside_long_names(visit: Callable[..., Opened]) -> None:
    page = visit("#gallery", viewport=WIDE).page
    for select in ("search-model", "search-lora"):
        page.locator(f"#{select}").evaluate("(select) => select.append(new Option('a very long name of a file'))")
    tops = "['select', 'recipe-file'].map((id) => document.getElementById(id).closest('.button, button').offsetTop)"
    select, recipe = page.evaluate(tops)
    assert select == recipe

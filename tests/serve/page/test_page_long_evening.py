"""What a painter of many years at A1111 missed in a whole hour at the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from olivelike.serve import ServeSettings
from tests.serve.conftest import running
from tests.serve.page.conftest import WIDE, Opened, holds, long

pytestmark = pytest.mark.slow


def test_what_is_automatic_stays_so_when_another_model_is_chosen(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.select_option("#sampler", "DPM++ 2M")
    for name in ("second", "first"):
        page.click("#model-button")
        page.click(f"#picker-list button:has-text('{name}')")
        page.locator("#model-button", has_text=name).wait_for()
        page.wait_for_load_state("networkidle")
        assert page.input_value("#schedule") == "Automatic"
    page.select_option("#schedule", "Karras")
    opened.open()
    assert [page.input_value(f"#{name}") for name in ("sampler", "schedule")] == ["DPM++ 2M", "Karras"]


def test_closed_folds_say_what_is_set_in_them(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    assert page.text_content("#rare-badge") == ""
    opened.fold("rare")
    page.fill("#clip_layer", "2")
    page.check("#tiled_vae")
    assert page.text_content("#rare-badge") == "2"
    opened.fold("hires")
    page.fill("#hires", "1.5")
    assert page.text_content("#hires-badge") == "\u00d71.5 · 48\u00d748"
    page.fill("#width", "64")
    assert page.text_content("#hires-badge") == "\u00d71.5 · 96\u00d748"
    page.click("#form-reset")
    assert [page.text_content(f"#{name}-badge") for name in ("rare", "hires")] == ["", ""]


def test_grids_are_not_among_the_gallery_s_pictures_while_it_is_open(visit: Callable[..., Opened]) -> None:
    opened = visit("#gallery")
    page = opened.page
    page.locator("#gallery-status", has_text=re.compile(r"\w")).wait_for()
    before = page.locator("#gallery-days li").count()
    opened.open()
    page.check("#sheet")
    opened.generate(prompt="a red circle", steps=2, num_images=2)
    page.click("header >> text=Gallery")
    page.locator("#gallery-days li").nth(before + 1).wait_for()
    assert page.locator("#gallery-days .of-picture", has_text="Grid").count() == 0


def test_the_gallery_s_search_says_all_of_what_it_takes(visit: Callable[..., Opened]) -> None:
    page = visit("#gallery", viewport=WIDE).page
    page.evaluate(
        "document.querySelector('#search-lora').append(new Option('a_name_of_a_lora_that_is_very_long_v1.5_fp16'))"
    )
    tops = {round(page.locator(f"#{name}").bounding_box()["y"]) for name in ("search", "search-lora", "search-day")}
    assert len(tops) == 1
    assert page.locator("#search-lora").bounding_box()["width"] < 200


def test_a_queue_that_was_cleared_can_be_had_back(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    long(page)
    for prompt in ("a red circle", "a green star"):
        page.fill("#prompt", prompt)
        page.click("#generate")
        page.wait_for_timeout(100)
    page.locator("#queue-list li", has_text="a green star").wait_for()
    page.click("#queue-clear")
    page.locator("#queue-list li", has_text="a green star").wait_for(state="detached")
    page.click(".notice button:has-text('Undo')")
    page.locator("#queue-list li", has_text="a green star").wait_for()
    page.click("#queue-clear")
    page.click("#cancel")
    opened.status("Cancelled")


def test_nothing_is_claimed_of_a_job_while_the_connection_is_lost(
    visit: Callable[..., Opened], base_settings: ServeSettings, tmp_path: Path
) -> None:
    settings = replace(base_settings, gallery=tmp_path / "gallery")
    with running(settings) as server:
        opened = visit(server=server, may_complain=True)
        long(opened.page)
        opened.page.click("#generate")
        opened.status("^Step")
    opened.status("^Connection lost")


def test_a_preset_that_was_taken_can_be_undone(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.fill("#prompt", "a red circle")
    page.click("#open-presets")
    page.fill("#notebook-name", "circles")
    page.keyboard.press("Enter")
    page.locator("#notebook:not([open])").wait_for(state="attached")
    page.fill("#prompt", "a green star")
    page.click("#open-presets")
    page.click("#notebook li button:has-text('circles')")
    holds(page, "#prompt", "a red circle")
    page.click(".notice button:has-text('Undo')")
    holds(page, "#prompt", "a green star")


def test_the_bar_stays_where_it_is_while_loras_are_changed_within_a_plot(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("plot")
    page.select_option("#x-field", label="LoRA:weight")
    page.fill("#x-values", "wild:0.5, wild:1")
    page.evaluate("""() => {
      window.bars = [];
      const [status, bar] = ["#status", "#step-bar"].map((one) => document.querySelector(one));
      const note = () => bars.push([status.textContent, bar.value]);
      new MutationObserver(note).observe(status, { childList: true });
    }""")
    opened.generate(prompt="a red circle", steps=6)
    told = page.evaluate("bars")
    opening = [value for text, value in told if text.startswith("Loading model")]
    assert opening[-1] >= 0.4


def test_a_lora_that_is_chosen_twice_is_told(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "a red circle <lora:wild:0.5>")
    opened.fold("loras")
    page.click("#lora-button")
    page.click("#picker-list .card:has-text('wild')")
    page.click("#picker-done")
    page.locator("#prompt-notes", has_text="both strengths count").wait_for()
    page.click("#lora-list button[aria-label='Remove wild']")
    page.locator("#prompt-notes", has_text="both strengths count").wait_for(state="hidden")

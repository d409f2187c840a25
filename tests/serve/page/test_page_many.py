"""Many pictures at once on the page: batches of img2img and Upscale, prompt matrices and plots."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.serve.page.conftest import UPSCALER, Opened, png

pytestmark = pytest.mark.slow


def files(*colours: str, size: tuple[int, int] = (40, 20)) -> list[dict[str, object]]:
    return [{"name": f"{one}.png", "mimeType": "image/png", "buffer": png(one, size)} for one in colours]


def test_a_batch_of_initial_pictures_is_one_job_and_there_after_a_reload(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("init")
    opened.fold("batch")
    opened.page.set_input_files("#batch-file", files("navy", "teal", "olive"))
    opened.page.locator("#batch-badge", has_text="3").wait_for()
    opened.page.wait_for_timeout(400)
    opened.page.reload()
    opened.page.locator("html[data-ready]").wait_for(state="attached")
    assert opened.page.text_content("#batch-badge") == "3"
    opened.generate(prompt="a red circle", steps=3, seed=5)
    job = opened.job()
    assert (len(job["order"]["init_images"]), job["order"]["init_image"], len(job["pictures"])) == (3, None, 3)
    assert {(one["width"], one["height"], one["seed"]) for one in job["pictures"]} == {(32, 32, 5)}
    assert len({one["record"]["init_image"]["hash"] for one in job["pictures"]}) == 3


def test_a_bad_file_keeps_no_other_out_of_a_batch_and_one_picture_takes_its_place(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    page = opened.page
    opened.fold("init")
    opened.fold("batch")
    bad = {"name": "bad.png", "mimeType": "image/png", "buffer": b"no picture"}
    navy, teal = files("navy", "teal")
    page.set_input_files("#batch-file", [navy, bad, teal])
    page.locator("#init-batch-badge", has_text="2").wait_for()
    page.locator("#batch-problem", has_text="bad.png: ").wait_for()
    page.set_input_files("#batch-file", [bad])
    said = "bad.png: This is no picture that can be read; save it as PNG, JPEG or WebP."
    page.locator("#batch-problem", has_text=said).wait_for()
    page.set_input_files("#init-file", [bad])
    page.locator("#init-problem", has_text=said).wait_for()
    page.set_input_files("#init-file", navy)
    page.locator(".notice", has_text="The batch is emptied").wait_for()
    assert (page.text_content("#init-batch-badge"), page.text_content("#init-badge")) == ("", "on")
    page.click(".notice >> text=Undo")
    page.locator("#init-batch-badge", has_text="2").wait_for()


def test_a_picture_that_is_removed_gives_the_size_back_unless_it_was_changed(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("init")

    def size() -> tuple[str, str]:
        return page.input_value("#width"), page.input_value("#height")

    before = size()
    for sizes, height, after in (((48, 32), (64, 32)), None, before), (((64, 32),), "48", ("64", "48")):
        for one in sizes:
            page.set_input_files("#init-file", files("navy", size=one))
            page.wait_for_function(
                "one => document.querySelector('#width').value === one", arg=str(one[0]), timeout=5000
            )
        if height:
            page.fill("#height", height)
            page.press("#height", "Tab")
        page.click("#init-remove")
        assert size() == after


def test_a_batch_has_no_mask_and_the_badge_says_so(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("init")
    opened.fold("batch")
    page.set_input_files("#init-file", files("navy"))
    page.locator("#init-badge", has_text="on").wait_for()
    page.set_input_files("#mask-file", files("white"))
    page.locator("#init-badge", has_text="with mask").wait_for()
    assert page.input_value("#strength") == "1"
    page.set_input_files("#batch-file", files("teal", "olive"))
    page.locator("#init-batch-badge", has_text="2").wait_for()
    page.locator("#init-badge", has_text=re.compile("^$")).wait_for(state="attached")
    assert page.input_value("#strength") == "0.8"
    page.set_input_files("#mask-file", files("white"))
    page.locator("#init-badge", has_text="with mask").wait_for()
    assert page.text_content("#init-batch-badge") == ""


def test_pictures_of_the_gallery_go_to_the_batch_and_to_upscale(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=3, seed=5, num_images=2)
    page = opened.page
    ways = ("#selected-batch", "#batch-badge", "#paint"), ("#selected-upscale", "#upscale-badge", "#upscale")
    for button, badge, left in ways:
        page.click("text=Gallery")
        page.click("#select")
        for place in (0, 1):
            page.locator("#gallery-days .thumbnail").nth(place).click()
        page.click(button)
        page.locator(badge, has_text="2").wait_for(state="attached")
        assert page.evaluate("location.hash") == left
        page.click("text=Gallery")
        page.click("#select")


def test_upscale_takes_many_to_a_size_shows_how_far_it_is_and_comes_back(visit: Callable[..., Opened]) -> None:
    opened = visit("#upscale")
    page = opened.page
    page.set_input_files("#upscale-file", files("navy", "teal"))
    page.locator("#upscale-size", has_text="40\u00d720 becomes 80\u00d740").wait_for()
    page.select_option("#upscale-how", "to")
    assert (page.is_visible("#upscale-factor"), page.is_visible("#upscale-crop")) == (False, True)
    page.fill("#upscale-width", "60")
    page.fill("#upscale-height", "90")
    page.locator("#upscale-size", has_text="becomes 60\u00d790").wait_for()
    page.uncheck("#upscale-crop")
    page.locator("#upscale-size", has_text="becomes 180\u00d790").wait_for()
    page.fill("#upscale-width", "60000")
    page.locator("#upscale-size", has_text="too large: at most 8192 pixels a side").wait_for()
    assert page.is_disabled("#upscale-start")
    page.fill("#upscale-width", "60")
    page.click("#upscale-start")
    page.locator("#upscale-status", has_text=re.compile("^2/2 · 180\u00d790, after")).wait_for()
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    page.locator("#upscale-badge", has_text="2").wait_for()
    page.locator("#upscale-open").wait_for()
    # Files that come behind an enlargement that is done take the place of its pictures.
    page.set_input_files("#upscale-file", files("olive", size=(1700, 1600)))
    page.locator("#upscale-badge", has_text="1").wait_for()
    page.select_option("#upscale-by", UPSCALER)
    page.select_option("#upscale-how", "factor")
    page.click("#upscale-start")
    page.locator("#upscale-status", has_text=re.compile("^Upscaling… [1-9]")).wait_for()
    page.reload()
    page.locator("#upscale-status", has_text=re.compile("^Upscaling… .* left$")).wait_for()
    page.click("#upscale-cancel")
    page.locator("#upscale-status", has_text="Cancelled.").wait_for()
    assert page.is_enabled("#upscale-start")


def test_a_prompt_matrix_and_a_plot_say_how_many_they_are_and_grids_are_read_back(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("plot")
    page.select_option("#x-field", "prompt_matrix")
    page.fill("#prompt", "a circle|red|big")
    page.locator("#plot-badge", has_text=re.compile("^4$")).wait_for()
    assert page.is_disabled("#x-values")
    assert page.is_disabled("#y-field")
    opened.generate(steps=2, seed=5)
    job = opened.job()
    assert page.get_attribute("#stage-picture", "src") == job["sheet"]["url"]
    assert [one["record"]["prompt"] for one in job["pictures"]][1::2] == ["a circle, red", "a circle, red, big"]
    page.select_option("#x-field", "seed")
    page.fill("#x-values", "1-60")
    page.select_option("#y-field", "steps")
    page.fill("#y-values", "1, 2")
    page.locator("#plot-problem", has_text="120 pictures; a job here has at most 100.").wait_for()
    page.fill("#x-values", "1-2")
    assert page.is_hidden("#plot-problem")
    opened.generate()
    text = opened.job()["sheet"]["parameters"]
    page.select_option("#x-field", "")
    paste = """(text) => {
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", text);
      document.body.dispatchEvent(new ClipboardEvent("paste", { bubbles: true, clipboardData }));
    }"""
    page.evaluate("document.activeElement.blur()")
    page.evaluate(paste, text)
    page.locator(".notice", has_text="Recipe of the pasted text loaded.").wait_for()
    assert [page.input_value(f"#{side}-field") for side in "xy"] == ["seed", "steps"]
    assert [page.input_value(f"#{side}-values") for side in "xy"] == ["1, 2", "1, 2"]
    page.evaluate(paste, job["sheet"]["parameters"])
    page.locator("#plot-badge", has_text=re.compile("^4$")).wait_for()
    assert page.input_value("#x-field") == "prompt_matrix"
    assert page.input_value("#prompt") == "a circle|red|big"


def test_hires_fix_offers_what_enlarges_for_it_and_says_what_it_is_not_for(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("hires")
    named = "[...document.getElementById('upscaler').options].filter((one) => !one.hidden).map((one) => one.text)"
    assert page.evaluate(named) == ["None", UPSCALER]
    page.fill("#hires", "2")
    assert page.evaluate(named) == ["Latent", "Lanczos", "Nearest", UPSCALER]
    page.select_option("#upscaler", "Lanczos")
    opened.generate(prompt="a red circle", steps=3, seed=5)
    assert opened.job()["pictures"][0]["record"]["upscaler"]["name"] == "Lanczos"
    assert not page.locator("#job-notes li").count()
    page.click("#picture-img2img")
    page.locator("#init-badge", has_text="on").wait_for()
    page.locator("#hires-badge", has_text=re.compile("^$")).wait_for(state="attached")
    page.click("#generate")
    page.locator("#order-problem", has_text="Hires fix is for pictures from a prompt alone").wait_for()
    page.fill("#hires", "")
    assert page.input_value("#upscaler") == ""

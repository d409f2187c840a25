"""What somebody from A1111 missed in a first evening at the page, each as a test."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from PIL import Image

from tests.serve.page.conftest import IMPORTED, WIDE, Opened, holds, png
from tests.serve.page.test_page_canvas import drag, on_canvas

pytestmark = pytest.mark.slow


def test_the_third_axis_is_drawn(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("plot")
    for side, field, values in (("x", "steps", "1, 2"), ("z", "guidance_scale", "1, 3")):
        opened.page.select_option(f"#{side}-field", field)
        opened.page.fill(f"#{side}-values", values)
    opened.generate("^4 pictures", prompt="a red circle")
    job = opened.job()
    assert [(one["record"]["steps"], one["record"]["guidance_scale"]) for one in job["pictures"]] == [
        (1, 1), (2, 1), (1, 3), (2, 3),
    ]  # fmt: skip
    assert opened.page.get_attribute("#stage-picture", "src") == job["sheet"]["url"]  # A plot is its sheet.


def test_the_large_view_says_what_a_record_leaves_out(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=2)
    opened.page.click("#picture-hires")
    opened.page.locator("#picture-facts", has_text="64\u00d764").wait_for()
    opened.page.click("#stage-open")
    recipe = str(opened.page.text_content("#viewer-recipe"))
    assert "upscale by 2, denoising strength 0.7" in recipe


def test_what_was_painted_before_stays_in_the_strip_with_its_own_facts(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=WIDE)
    page = opened.page
    opened.generate("^2 pictures", prompt="the first", steps=2, num_images=2, seed=5)
    page.fill("#num_images", "1")
    page.click("#picture-vary")
    page.locator("#strip li").nth(2).wait_for()
    box = page.locator("#frame").bounding_box()
    opened.generate("^Step ", prompt="{one|one} that is ended", steps=500, num_images=50)
    assert page.locator("#frame").bounding_box() == box  # Nothing moves while it is painted.
    page.click("#cancel")
    opened.status("^Cancelled")
    page.locator("#strip button").first.click()
    assert str(page.text_content("#picture-facts")).startswith("Seed 5 ")
    page.click("#stage-open")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.locator("#viewer-recipe", has_text="Variation strength").wait_for()


def test_a_long_queue_leaves_the_picture_its_room(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=WIDE)
    page = opened.page
    opened.generate("^Step ", prompt="one of many", steps=500, num_images=50)
    for _ in range(8):
        page.click("#generate")
    page.locator("#queue-list li").nth(7).wait_for()
    assert page.locator("#frame").bounding_box()["height"] > WIDE["height"] / 3
    page.click("#queue-clear")
    page.locator("#queue").wait_for(state="hidden")
    page.click("#cancel")
    opened.status("^Cancelled")


def test_what_wildcards_came_to_is_said_below_the_picture(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a {red|red} circle", steps=1)
    opened.page.locator("#picture-facts", has_text="a red circle").wait_for()


def test_a_fault_is_gone_once_it_is_mended(visit: Callable[..., Opened]) -> None:
    opened = visit(viewport=WIDE)
    page = opened.page
    place = page.locator("#generate").bounding_box()
    page.fill("#steps", "9999")
    page.click("#generate")
    assert "500" in str(page.text_content("#order-problem"))
    assert page.locator("#generate").bounding_box() == place
    page.fill("#steps", "5")
    page.locator("#order-problem").wait_for(state="hidden")
    assert page.get_attribute("#steps", "aria-invalid") is None


def test_an_empty_sheet_that_is_left_is_no_initial_picture(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("init")
    opened.page.click("#init-draw")
    opened.page.locator("#mask[open]").wait_for()
    opened.page.keyboard.press("Escape")
    opened.page.locator("#mask:not([open])").wait_for(state="attached")
    opened.page.locator("#init-picture").wait_for(state="hidden")
    opened.page.locator("#init-badge", has_text=re.compile("^$")).wait_for(state="attached")


def test_reset_takes_plot_control_and_lines_back_too(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("plot")
    opened.fold("rare")
    page.select_option("#x-field", "steps")
    page.fill("#x-values", "1, 2")
    page.check("#lines")
    page.click("#form-reset")
    assert (page.input_value("#x-field"), page.input_value("#x-values"), page.is_checked("#lines")) == ("", "", False)
    assert page.text_content("#plot-badge") == ""


def test_an_upscaler_that_is_chosen_says_so_on_its_fold(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("hires")
    assert opened.page.get_by_label("Upscale by").get_attribute("id") == "hires"
    opened.page.select_option("#upscaler", "R-ESRGAN 4x+")
    assert opened.page.text_content("#hires-badge") == "R-ESRGAN 4x+"


def test_a_pressed_button_stays_readable_under_the_pointer(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=1)
    opened.page.click("#picture-like")
    opened.page.locator("#picture-like[aria-pressed=true]").wait_for()
    colours = opened.page.locator("#picture-like").evaluate(
        "(one) => [getComputedStyle(one).backgroundColor, getComputedStyle(one).color]"
    )
    assert colours == ["rgb(45, 106, 62)", "rgb(255, 255, 255)"]


def photo(opened: Opened, fold: str, size: tuple[int, int]) -> None:
    opened.page.set_input_files(
        f"#{fold}-file", {"name": "photo.png", "mimeType": "image/png", "buffer": png("teal", size)}
    )
    opened.page.locator(f"#{fold}-picture").wait_for()


def test_a_photo_lends_its_shape_where_it_is_much_larger_than_what_the_model_draws(
    visit: Callable[..., Opened],
) -> None:
    opened = visit()
    page = opened.page
    opened.fold("init")
    photo(opened, "init", (400, 200))
    assert page.get_attribute("#width", "step") == "4"
    assert (page.input_value("#width"), page.input_value("#height")) == ("48", "24")
    assert "400\u00d7200 is 78 times the area" in str(page.text_content("#size-note"))
    page.click("#init-remove")
    assert page.is_hidden("#size-note")
    photo(opened, "init", (400, 200))
    photo(opened, "init", (64, 64))  # Four times is what is asked for on purpose.
    holds(page, "#width", "64")
    assert page.is_hidden("#size-note")


def test_the_server_speaks_of_fields_by_their_labels(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    opened.page.evaluate(IMPORTED, "form.js")
    words = opened.page.evaluate(
        "imported.inWordsOfThePage('crop it (--fit, fit=True takes its middle); --fast, --wildcard-dir and --mask')"
    )
    assert words == (
        "crop it (\u201cCrop and resize\u201d takes its middle); \u201cFew steps (LCM, Turbo, Lightning)\u201d, "
        "--wildcard-dir and --mask"
    )


def test_a_mask_is_seen_on_a_picture_of_its_own_colour(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit, "#e8352e")
    opened.page.fill("#mask-pixels", "16")
    drag(opened, (0.25, 0.5), (0.75, 0.5))
    seen = Image.open(io.BytesIO(opened.page.locator("#mask-canvas").screenshot())).convert("RGB")
    middle = seen.crop((seen.width // 2 - 60, seen.height // 2 - 20, seen.width // 2 - 20, seen.height // 2 + 20))
    colours = len(middle.getcolors(1600) or ())
    assert colours > 1


def test_the_strength_that_a_mask_raised_goes_back_with_it(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    usual = page.input_value("#strength")
    drag(opened, (0.25, 0.5), (0.75, 0.5))
    page.click("#mask-done")
    holds(page, "#strength", "1")
    page.click("#mask-remove")
    holds(page, "#strength", usual)


def test_work_goes_on_at_an_upscaled_picture(visit: Callable[..., Opened]) -> None:
    opened = visit("#upscale")
    page = opened.page
    page.set_input_files("#upscale-file", {"name": "one.png", "mimeType": "image/png", "buffer": png()})
    page.click("#upscale-start")
    page.click("#upscaled-img2img")
    page.locator("#init-picture").wait_for()
    holds(page, "#width", "128")

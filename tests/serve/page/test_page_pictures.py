"""Pictures on the page: the gallery, recipes that are dragged in, picture to picture, masks."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.serve.conftest import wait_until
from tests.serve.page.conftest import Opened, drop, holds, png

pytestmark = pytest.mark.slow


def test_the_gallery_is_searched_by_recipe_and_pictures_are_deleted(visit: Callable[..., Opened]) -> None:
    opened = visit()
    for prompt, seed in (("a heron at dawn", 77), ("a heron at night", 78), ("an owl", 79)):
        opened.generate(prompt=prompt, seed=seed, steps=4, negative_prompt="blurry")
        opened.status("^Painted")
    opened.page.click("text=Gallery")
    tiles = opened.page.locator("#gallery-days .thumbnail")
    opened.page.locator("h2", has_text="Today").wait_for()
    opened.page.fill("#search", "heron")
    opened.page.locator("#gallery-status", has_text=re.compile("^2 pictures$")).wait_for()
    opened.page.fill("#search", "heron seed:78")
    opened.page.locator("#gallery-status", has_text=re.compile("^1 picture$")).wait_for()
    tiles.first.click()
    assert "a heron at night" in opened.page.text_content("#viewer-recipe")
    with opened.page.expect_download() as download:
        opened.page.click("#viewer-save")
    assert download.value.suggested_filename.endswith("-78.png")
    opened.page.click("#viewer-use")
    opened.page.locator(".notice", has_text="Recipe of the picture loaded").wait_for()
    assert opened.page.input_value("#prompt") == "a heron at night"
    assert opened.page.input_value("#seed") == "78"
    assert opened.page.input_value("#negative_prompt") == "blurry"
    assert opened.page.is_visible("#view-paint")
    opened.page.click("text=Gallery")
    tiles.first.click()
    opened.page.click("#viewer-delete")
    opened.page.click("#confirm-no")
    opened.page.click("#viewer-delete")
    opened.page.click("#confirm-yes")
    opened.page.locator("#gallery-status", has_text="No picture matches").wait_for()
    with opened.server.client() as client:
        assert client.get("/api/pictures?search=heron").json()["pictures"][0]["seed"] == 77


def test_chosen_pictures_are_liked_compared_saved_and_deleted(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.server.draw(prompt="a walrus", num_images=3, steps=1)
    page = opened.page
    page.click("text=Gallery")
    with page.expect_response("**/api/pictures?search=walrus*"):
        page.fill("#search", "walrus")
    page.locator("#gallery-status", has_text=re.compile("^3 pictures$")).wait_for()
    tiles = page.locator("#gallery-days .thumbnail")
    page.click("#select")
    assert page.is_disabled("#selected-compare")
    tiles.nth(0).click()
    tiles.nth(2).click(modifiers=["Shift"])
    page.locator("#selected-count", has_text="3 pictures chosen").wait_for()
    tiles.nth(1).click()
    page.click("#selected-compare")
    assert page.locator("#compare-rows tr").all_inner_texts() == ["Seed\t9\t7"]
    page.focus("#compare-slider")
    page.keyboard.press("Home")
    assert "0%" in str(page.get_attribute("#compare-over", "style"))
    page.click("#compare-close")
    page.click("#selected-like")
    page.locator("#gallery-days .liked").nth(1).wait_for()
    for button in ("#selected-zip", "#selected-sheet"):
        with page.expect_download() as download:
            page.click(button)
        assert download.value.suggested_filename in ("pictures.zip", "sheet.png")
    page.select_option("#search-kind", "favourite:yes")
    page.locator("#gallery-status", has_text=re.compile("^2 pictures$")).wait_for()
    assert page.text_content("#selected-count") == "2 pictures chosen"
    page.click("#selected-delete")
    page.click("#confirm-yes")
    page.locator("#gallery-status", has_text="No picture matches").wait_for()
    page.select_option("#search-kind", "")
    page.locator("#gallery-status", has_text=re.compile("^1 picture$")).wait_for()


def test_a_late_answer_does_not_replace_a_newer_one(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.server.draw(prompt="an early recipe", steps=1, model="second")
    opened.server.draw(prompt="a later recipe", steps=1, model="first")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    opened.page.route("**/api/pictures?search=early*", hold)
    opened.page.route("**/api/options?model=second", hold)
    for words in ("an early recipe", "a later recipe"):
        opened.page.click("text=Gallery")
        with opened.page.expect_request("**/api/pictures?search=early*"):
            opened.page.fill("#search", "early")
        opened.page.fill("#search", words)
        opened.page.click(f"#gallery-days .thumbnail[title^='{words}']")
        opened.page.click("#viewer-use")
        opened.page.locator("#view-paint").wait_for()
    opened.page.locator(".notice", has_text="Recipe of the picture loaded").wait_for()
    assert len(held) == 3
    for route in held:
        route.fulfill(json={"fields": {"steps": {"default": 7}}, "controlnets": ["late"], "pictures": [], "next": None})
    opened.page.wait_for_timeout(300)
    assert opened.page.input_value("#prompt") == "a later recipe"
    assert opened.page.input_value("#steps") == "1"
    assert opened.page.locator("#control-1-net option").count() == 0
    assert opened.page.locator(".notice", has_text="Recipe of").count() == 1
    opened.page.click("text=Gallery")
    assert "a later recipe" in str(opened.page.locator("#gallery-days .thumbnail").get_attribute("title"))


def test_older_pictures_come_as_one_goes_down(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.server.draw(prompt="a page of many", steps=1, num_images=70, batch_size=10)
    opened.page.click("text=Gallery")
    opened.page.fill("#search", "a page of many")
    status = opened.page.locator("#gallery-status")
    status.filter(has_text=re.compile("^70 pictures$")).wait_for()
    tiles = opened.page.locator("#gallery-days .thumbnail")
    opened.page.locator("#gallery-more").scroll_into_view_if_needed()
    tiles.nth(69).wait_for()


def test_all_that_match_are_chosen_not_those_that_are_loaded_alone(visit: Callable[..., Opened]) -> None:
    opened = visit()
    for seed in (10, 40, 70):
        opened.server.draw(prompt="one of a herd", steps=1, num_images=30, batch_size=10, seed=seed)
    page = opened.page
    page.click("text=Gallery")
    page.fill("#search", "herd")
    page.locator("#gallery-status", has_text=re.compile("^90 pictures$")).wait_for()
    page.click("#select")
    page.click("#select-all")
    counted = page.locator("#selected-count")
    counted.filter(has_text="90 pictures chosen").wait_for()
    tile = page.locator("#gallery-days .thumbnail").first
    width = tile.bounding_box()["width"]
    tile.click()
    counted.filter(has_text="89 pictures chosen").wait_for()
    assert tile.bounding_box()["width"] == width
    page.click("#selected-like")
    with opened.server.client() as client:
        asked = {"search": "herd favourite:yes", "limit": 1}
        wait_until(lambda: client.get("/api/pictures", params=asked).json()["total"] == 89)
    with page.expect_download() as download:
        page.click("#selected-zip")
    with zipfile.ZipFile(download.value.path()) as archive:
        assert len(archive.namelist()) == 89
    page.click("#selected-delete")
    assert "Delete 89 pictures?" in str(page.text_content("#confirm-question"))
    page.click("#confirm-yes")
    page.locator("#gallery-status", has_text=re.compile("^1 picture$")).wait_for()


def test_a_picture_is_seen_pixel_by_pixel(visit: Callable[..., Opened]) -> None:
    opened = visit()
    with opened.server.client() as client:
        data = png("navy", (300, 400))
        client.post("/api/upscale?upscaler=Lanczos&factor=4", content=data).raise_for_status()
    page = opened.page
    page.click("text=Gallery")
    page.locator("#gallery-days .thumbnail").first.click()
    shown = page.locator("#viewer-picture")
    shown.evaluate("(image) => image.decode()")
    assert shown.bounding_box()["height"] < 860
    page.keyboard.press("z")
    assert page.get_attribute("#viewer-actual", "aria-pressed") == "true"
    assert [shown.bounding_box()[side] for side in ("width", "height")] == [1200, 1600]
    left = shown.bounding_box()["x"]
    box = page.locator("#viewer-link").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 300, steps=5)
    page.mouse.up()
    assert left - shown.bounding_box()["x"] == pytest.approx(100, abs=30)
    assert len(page.context.pages) == 1  # It was drawn along, not opened.
    page.click("#viewer-actual")
    assert shown.bounding_box()["height"] < 860


def test_a_picture_that_is_dragged_in_brings_its_recipe(visit: Callable[..., Opened]) -> None:
    opened = visit()
    recipe = {"prompt": "a (drawn:1.2) lighthouse", "steps": 6, "guidance_scale": 4.5, "seed": 99}
    made = opened.server.draw(**recipe, scheduler="Euler a")
    data = content(opened, made["pictures"][0])
    drop(opened, "body", "lighthouse.png", data)
    opened.page.locator(".notice", has_text="Recipe of lighthouse.png loaded").wait_for()
    assert {name: opened.page.input_value(f"#{name}") for name in recipe} == {key: str(recipe[key]) for key in recipe}
    assert opened.page.input_value("#scheduler") == "Euler a"
    opened.generate()
    again = content(opened, opened.job()["pictures"][0])
    assert np.array_equal(*(np.asarray(Image.open(io.BytesIO(each))) for each in (data, again)))


def content(opened: Opened, picture: dict[str, Any]) -> bytes:
    with opened.server.client() as client:
        return client.get(picture["url"]).content


def test_a_picture_without_a_recipe_is_offered_for_picture_to_picture(visit: Callable[..., Opened]) -> None:
    opened = visit()
    drop(opened, "body", "plain.png", png())
    opened.page.locator(".notice", has_text="plain.png has no recipe").get_by_text("Use as initial picture").click()
    opened.page.locator("#init-picture").wait_for()
    drop(opened, "body", "pasted.png", png("teal"), kinds=("paste",))
    opened.page.locator(".notice", has_text="pasted.png has no recipe").wait_for()
    drop(opened, "body", "notes.png", b"no picture")
    opened.may_complain = True  # The browser notes the refusal.
    opened.page.locator(".notice", has_text="notes.png is no picture that can be read").wait_for()


def test_a_mask_is_painted_by_hand_and_only_that_is_drawn(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("init")
    drop(opened, "#init-drop", "navy.png", png())
    opened.page.locator("#init-picture").wait_for()
    opened.page.click("#mask-open")
    canvas = opened.page.locator("#mask-canvas")
    box = canvas.bounding_box()
    opened.page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.25 * box["height"])
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.25 * box["height"], steps=8)
    opened.page.mouse.up()
    covered = opened.page.locator("#mask-share")
    once = share(covered.text_content())
    assert 0 < once < 30
    opened.page.click("#mask-invert")
    assert share(covered.text_content()) == pytest.approx(100 - once, abs=2)
    opened.page.click("#mask-undo")
    opened.page.click("#mask-undo")
    assert share(covered.text_content()) == 0
    # The same with the keyboard alone: a rectangle by numbers, and a dab of the brush.
    opened.page.click("#mask summary")
    for side, value in (("left", 0), ("top", 0), ("width", 64), ("height", 32)):
        opened.page.fill(f"#rect-{side}", str(value))
    opened.page.click("#rect-add")
    assert share(covered.text_content()) == 50
    canvas.focus()
    for key in (*["]"] * 6, *["ArrowDown"] * 12, "Space"):
        opened.page.keyboard.press(key)
    assert share(covered.text_content()) > 50
    opened.page.keyboard.press("Control+z")
    opened.page.click("#mask-done")
    opened.page.locator("#init-badge", has_text="with mask").wait_for()
    opened.generate(prompt="a red circle", steps=8, seed=3, mask_blur=0)
    job = opened.job()
    assert job["order"]["mask"] and job["order"]["init_image"] and job["order"]["strength"] == 1
    assert job["pictures"][0]["record"]["mask"]
    upper, lower = np.split(opened.picture(), 2)
    assert np.abs(upper - [0, 0, 128]).mean() > 10
    assert np.abs(lower - [0, 0, 128]).max() <= 1


def share(text: str) -> float:
    return float(text.split(maxsplit=1)[0])


def test_picture_to_picture_starts_from_one_of_the_gallery(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=3, seed=11)
    opened.page.click("#stage-open")
    opened.page.click("#viewer-img2img")
    opened.page.locator("#init-picture").wait_for()
    opened.page.fill("#strength", "0.5")
    opened.generate(prompt="a blue circle", steps=4)
    order = opened.job()["order"]
    assert order["strength"] == 0.5
    assert order["init_image"] and not order["mask"]


HIRES = (
    "a blue star\nNegative prompt: red\nSteps: 3, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 6, "
    "Seed: 18446744073709551615, Size: 64x64, Denoising strength: 0.5, Hires upscale: 2, Hires upscaler: 4x-UltraSharp"
)
LEFT_OUT = (
    "Not taken over, so that the picture may be another: Hires upscaler 4x-UltraSharp; no file of the server's "
    "--upscaler-dir is that upscaler, so the latents are enlarged."
)


def paste(opened: Opened, text: str) -> None:
    opened.page.focus("#prompt")
    opened.page.evaluate(
        """(text) => {
          const data = new DataTransfer();
          data.setData("text/plain", text);
          const options = { clipboardData: data, bubbles: true, cancelable: true };
          document.activeElement.dispatchEvent(new ClipboardEvent("paste", options));
        }""",
        text,
    )


def test_what_the_form_can_not_take_of_a_recipe_is_named(visit: Callable[..., Opened]) -> None:
    opened = visit()
    chunks = PngInfo()
    chunks.add_text("parameters", HIRES)
    sent = io.BytesIO()
    Image.new("RGB", (64, 64)).save(sent, "PNG", pnginfo=chunks)
    drop(opened, "body", "x.png", sent.getvalue())
    opened.page.locator(".notice", has_text=f"Recipe of x.png loaded. {LEFT_OUT}").wait_for()
    assert opened.page.input_value("#seed") == str(2**64 - 1)
    assert opened.page.input_value("#scheduler") == "DPM++ 2M Karras"
    assert (opened.page.input_value("#hires"), opened.page.input_value("#hires_strength")) == ("2", "0.5")


def test_a_pasted_recipe_fills_the_form_and_one_that_is_not_read_changes_nothing(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.page.fill("#prompt", "my own words")
    opened.page.fill("#steps", "9")
    paste(opened, HIRES)
    notice = opened.page.locator(".notice", has_text=f"Recipe of the pasted text loaded. {LEFT_OUT}")
    notice.wait_for()
    assert (opened.page.input_value("#prompt"), opened.page.input_value("#steps")) == ("a blue star", "3")
    assert opened.page.input_value("#hires_steps") == "3"  # As many as the first pass, where A1111 says nothing.
    notice.get_by_text("Undo").click()
    holds(opened.page, "#prompt", "my own words")
    assert (opened.page.input_value("#steps"), opened.page.input_value("#hires")) == ("9", "")
    paste(opened, HIRES)
    holds(opened.page, "#prompt", "a blue star")
    paste(opened, HIRES.replace("4x-UltraSharp", "RealESRGAN_x4plus"))
    holds(opened.page, "#upscaler", "R-ESRGAN 4x+")
    assert (opened.page.input_value("#hires"), opened.page.input_value("#hires_strength")) == ("2", "0.5")
    opened.may_complain = True  # The browser notes the refusal.
    paste(opened, f"a cat\nSampler: Euler\n{HIRES}")
    opened.page.locator(".notice", has_text="can't be read as a recipe: line 2 looks like settings").wait_for()
    assert opened.page.input_value("#prompt") == "a blue star"

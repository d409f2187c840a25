"""Inpainting on the page: masks of files, masked content, a pen, what the canvas shows, and steps back out of it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.serve.page.conftest import Opened, drop, holds, long, png
from tests.serve.page.test_page_canvas import covered, drag, on_canvas, sent, use

pytestmark = pytest.mark.slow


def alpha_mask(size: tuple[int, int] = (32, 32)) -> bytes:
    """Return a mask as other programs export it: opaque in its left half, transparent in the other."""
    mask = Image.new("RGBA", size)
    mask.paste((0, 0, 0, 255), (0, 0, size[0] // 2, size[1]))
    buffer = io.BytesIO()
    mask.save(buffer, "PNG")
    return buffer.getvalue()


def with_initial(opened: Opened, color: str = "navy", size: tuple[int, int] = (64, 64)) -> Any:
    opened.fold("init")
    file = {"name": "one.png", "mimeType": "image/png", "buffer": png(color, size)}
    opened.page.set_input_files("#init-file", file)
    opened.page.locator("#init-picture").wait_for()
    return opened.page


def test_a_mask_comes_from_a_file_and_stays(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("init")
    assert not opened.page.is_visible("#mask-drop")
    opened.fold("init")
    page = with_initial(opened)
    drop(opened, "#mask-drop", "half.png", alpha_mask())
    page.locator("#init-badge", has_text="with mask").wait_for()
    page.locator(".notice", has_text="The mask is brought from 32").wait_for()
    assert page.input_value("#strength") == "1"
    page.select_option("#masked_content", "latent nothing")
    opened.generate(prompt="a red circle", steps=2, mask_blur=0)
    mask = sent(opened, "mask", "L")
    assert (mask[:, :30] == 255).all() and (mask[:, 34:] == 0).all()
    assert opened.job()["order"]["masked_content"] == "latent nothing"
    page.click("#stage-open")
    assert "latent nothing" in str(page.text_content("#viewer-recipe"))
    page.keyboard.press("Escape")
    opened.open()  # It is there again after a reload, and is painted further.
    page.locator("#init-badge", has_text="with mask").wait_for(state="attached")
    page.locator("#mask-open").evaluate("(one) => one.click()")
    page.locator("#mask[open]").wait_for()
    half = covered(opened)
    assert half == pytest.approx(50, abs=1)
    drag(opened, (0.7, 0.5), (0.9, 0.5))
    assert covered(opened) > half
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    assert covered(opened) == 0
    page.click("#mask-done")
    page.locator("#init-badge", has_text=re.compile("^on$")).wait_for(state="attached")
    page.click("#picture-use")  # And after its recipe was used.
    page.locator("#init-badge", has_text="with mask").wait_for(state="attached")
    holds(page, "#masked_content", "latent nothing")
    opened.fold("init")
    page.set_input_files("#mask-file", {"name": "black.png", "mimeType": "image/png", "buffer": png("black")})
    page.locator("#init-problem", has_text="black.png has nothing white").wait_for()
    assert page.text_content("#init-badge") == "with mask"
    drop(opened, "#mask-file", "white.png", png("white"), ("paste",))
    page.locator("#mask-file").focus()
    drop(opened, "#mask-file", "white.png", png("white"), ("paste",))
    page.select_option("#mask_mode", "not masked")
    page.select_option("#masked_content", "original")
    page.locator("#mask-open").click()
    assert page.text_content("#mask-hint") == "What is not masked is drawn anew."
    page.locator("#mask-share", has_text="100 %").wait_for()


def test_the_canvas_tells_what_is_drawn_by_the_mask_mode(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit, locale="de-DE")
    page = opened.page
    hint = page.locator("#mask-hint")
    for mode, told in (("masked", "Das Maskierte"), ("not masked", "Das nicht Maskierte")):
        hint.get_by_text(f"{told} wird neu gezeichnet.").wait_for()
        drag(opened, (0.2, 0.5), (0.6, 0.5))
        page.click("#mask-done")
        page.locator(".notice", has_text=f"Denoising-Stärke ist 1. {told} wird neu gezeichnet.").wait_for()
        assert page.input_value("#mask_mode") == mode
        page.select_option("#mask_mode", "not masked")
        page.set_input_files("#init-file", {"name": "two.png", "mimeType": "image/png", "buffer": png("teal")})
        page.locator("#init-badge", has_text="mit Maske").wait_for(state="detached")
        page.fill("#strength", "0.8")
        page.click("#mask-open")


def pen(opened: Opened, y: float, *pressures: float) -> None:
    """Draw a line by a pen from left to right across the picture, with these pressures."""
    page = opened.page
    box = page.locator("#mask-canvas").bounding_box()
    cdp = page.context.new_cdp_session(page)
    for place, force in enumerate(pressures):
        kind = "mousePressed" if place == 0 else "mouseMoved"
        at = {
            "x": box["x"] + box["width"] * (0.2 + 0.6 * place / (len(pressures) - 1)),
            "y": box["y"] + box["height"] * y,
        }
        held = {"button": "left", "buttons": 1, "pointerType": "pen", "force": force, "clickCount": 1}
        cdp.send("Input.dispatchMouseEvent", {"type": kind, **at, **held})
    done = {"button": "left", "buttons": 0, "pointerType": "pen", "clickCount": 1}
    cdp.send("Input.dispatchMouseEvent", {"type": "mouseReleased", **at, **done})


def heights(opened: Opened) -> list[int]:
    """Return how much of each column of the mask is painted."""
    found: list[int] = opened.page.evaluate(
        """() => {
          const canvas = document.getElementById("mask-canvas");
          const copy = Object.assign(document.createElement("canvas"), { width: 64, height: 64 });
          const context = copy.getContext("2d", { willReadFrequently: true });
          context.drawImage(canvas, 0, 0);
          const { data } = context.getImageData(0, 0, 64, 64);
          const columns = Array(64).fill(0);
          for (let place = 3; place < data.length; place += 4) columns[(place >> 2) % 64] += data[place] > 127;
          return columns;
        }"""
    )
    return found


def test_a_pen_paints_as_wide_as_it_is_pressed(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    page.fill("#mask-pixels", "24")
    pen(opened, 0.5, 0.2, 0.4, 0.6, 0.8, 1.0)
    light, heavy = heights(opened)[16], heights(opened)[48]
    assert 4 <= light <= 10
    assert 19 <= heavy <= 25
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+y")
    assert (heights(opened)[16], heights(opened)[48]) == (light, heavy)
    page.keyboard.press("Control+z")
    drag(opened, (0.2, 0.5), (0.8, 0.5))
    assert max(heights(opened)) - heights(opened)[16] <= 1


def test_the_masks_squares_have_one_size_on_the_screen(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    page.click("#mask-all")
    sizes = set()
    for _ in range(2):
        seen = np.asarray(Image.open(io.BytesIO(page.locator("#mask-board").screenshot())).convert("RGB")).astype(int)
        line = seen[seen.shape[0] // 4 + 3, seen.shape[1] // 2 - 60 : seen.shape[1] // 2 + 60, 1]
        turns = np.flatnonzero(np.abs(np.diff((line > line.mean()).astype(int))))
        sizes |= set(np.diff(turns).tolist())
        page.click("#zoom-in")
    assert sizes == {8}


def test_a_number_that_was_typed_is_taken_back_at_once(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    use(opened, "Outpaint")
    page.fill("#frame-left", "10")
    page.press("#frame-left", "Tab")
    assert page.input_value("#frame-left") != "0"
    page.keyboard.press("Control+z")
    assert page.input_value("#frame-left") == "0"
    page.keyboard.type("3")  # What is typed now is the browser's to take back.
    page.keyboard.press("Control+z")
    assert page.input_value("#frame-top") == "0"
    assert page.is_disabled("#mask-undo")


def test_the_frame_goes_with_the_hand_and_says_what_it_comes_to(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    use(opened, "Outpaint")
    handle, stack = page.locator("[data-sides='right']").bounding_box(), page.locator("#mask-stack").bounding_box()
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    unit = int(page.get_attribute("#width", "step"))
    page.mouse.move(x, y)
    page.mouse.down()
    little = stack["width"] / 64 * unit * 0.4
    page.mouse.move(x + little, y, steps=3)
    hand = page.locator("#frame-hand")
    assert re.split(r"\D", hand.text_content()) == ["64", "64"]
    box = hand.bounding_box()
    assert box["x"] + box["width"] == pytest.approx(x + little, abs=2)
    page.mouse.move(x + 2 * little, y, steps=3)
    assert re.split(r"\D", hand.text_content()) == [str(64 + unit), "64"]
    page.mouse.up()
    hand.wait_for(state="hidden")
    assert page.input_value("#frame-right") == str(unit)


def test_a_step_back_closes_what_is_open_and_asks_where_it_is_painted(visit: Callable[..., Opened]) -> None:
    opened = visit("#gallery")
    page = opened.page
    page.click("nav a[href='#paint']")
    page.click("#model-button")
    page.locator("#picker[open]").wait_for()
    page.evaluate("history.back()")
    page.locator("#picker").wait_for(state="hidden")
    assert page.url.endswith("#paint")
    with_initial(opened)
    page.click("#mask-open")
    drag(opened, (0.2, 0.5), (0.8, 0.5))
    page.evaluate("history.back()")
    page.locator("#confirm[open]").wait_for()
    page.click("#confirm-no")
    assert page.is_visible("#mask")
    page.evaluate("history.back()")
    page.click("#confirm-yes")
    page.locator("#mask").wait_for(state="hidden")
    assert page.url.endswith("#paint")
    page.evaluate("history.back()")
    page.locator("#view-gallery").wait_for()


def test_a_picture_gets_the_nearest_shape_that_the_model_has(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.evaluate("for (const id of ['width', 'height']) document.getElementById(id).step = 32")
    with_initial(opened, size=(500, 300))
    assert [page.input_value(f"#{side}") for side in ("width", "height")] == ["64", "32"]
    tall = {"name": "two.png", "mimeType": "image/png", "buffer": png("teal", (32, 64))}
    page.set_input_files("#init-file", tall)
    holds(page, "#height", "64")
    assert page.input_value("#width") == "32"


def test_who_looks_at_an_earlier_picture_has_a_way_back_to_the_one_that_is_drawn(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate("^2 pictures", prompt="a red circle", steps=2, num_images=2, seed=5)
    page.fill("#num_images", "1")
    long(page)
    page.click("#generate")
    page.locator("#preview").wait_for()
    assert page.locator("#picture-bar").get_attribute("inert") is not None
    assert page.locator("#strip-now").count() == 0
    page.locator("#strip button").first.click()
    page.locator("#preview").wait_for(state="hidden")
    assert page.locator("#picture-bar").get_attribute("inert") is None
    page.locator("#strip-now button", has_text="Now").click()
    page.locator("#preview").wait_for()
    assert page.locator("#strip-now").count() == 0
    page.locator("#strip button").first.click()
    page.click("#cancel")
    opened.status("^Cancelled")
    assert page.locator("#strip-now").count() == 0

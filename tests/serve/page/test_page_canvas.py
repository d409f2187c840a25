"""The canvas of the page: zoom, pan, undo, a mask by keys alone, colours, and more room around a picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.serve.page.conftest import PHONE, Opened, png
from tests.serve.page.test_page_pictures import share

pytestmark = pytest.mark.slow

Place = tuple[float, float]


def on_canvas(visit: Callable[..., Opened], color: str = "navy", **how: Any) -> Opened:
    """Return the page with a picture of 64 by 64 pixels on the canvas."""
    opened = visit(**how)
    opened.fold("init")
    opened.page.set_input_files("#init-file", {"name": "one.png", "mimeType": "image/png", "buffer": png(color)})
    opened.page.locator("#init-picture").wait_for()
    opened.page.click("#mask-open")
    return opened


def covered(opened: Opened) -> float:
    return share(str(opened.page.text_content("#mask-share")))


def drag(opened: Opened, start: Place, end: Place, button: str = "left") -> None:
    """Drag from one place of the picture to another; places are shares of it."""
    box = opened.page.locator("#mask-canvas").bounding_box()
    first, last = ((box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end))
    opened.page.mouse.move(*first)
    opened.page.mouse.down(button=button)
    opened.page.mouse.move(*last, steps=5)
    opened.page.mouse.up(button=button)


def use(opened: Opened, tool: str) -> None:
    opened.page.locator("#mask-tools label", has_text=tool).click()


def test_the_canvas_zooms_pans_undoes_and_redoes(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    canvas = page.locator("#mask-canvas")
    page.fill("#mask-pixels", "16")
    drag(opened, (0.25, 0.5), (0.75, 0.5))
    once = covered(opened)
    assert once == pytest.approx(100 * (16 * 32 + np.pi * 8**2) / 64**2, abs=1.5)
    before = canvas.bounding_box()
    page.mouse.move(before["x"] + 0.25 * before["width"], before["y"] + 0.25 * before["height"])
    page.mouse.wheel(0, -300)
    page.locator("#zoom-shown", has_text=re.compile(r"\d{4} %")).wait_for()
    after = canvas.bounding_box()
    grown = after["width"] / before["width"]
    assert grown > 1.5
    assert after["x"] + 0.25 * after["width"] == pytest.approx(before["x"] + 0.25 * before["width"], abs=1)
    drag(opened, (0.5, 0.5), (0.6, 0.55), button="middle")
    moved = canvas.bounding_box()
    assert moved["x"] - after["x"] == pytest.approx(0.1 * after["width"], abs=1)
    assert covered(opened) == once
    page.mouse.move(400, 400)
    page.mouse.down()
    page.mouse.up()
    assert covered(opened) != once
    page.keyboard.press("Control+z")
    assert covered(opened) == pytest.approx(once, abs=1)  # A line that is drawn at once has smoother edges.
    page.keyboard.press("Control+z")
    assert covered(opened) == 0
    assert page.is_disabled("#mask-undo")
    page.keyboard.press("Control+y")
    assert covered(opened) == pytest.approx(once, abs=1)
    page.keyboard.press("0")
    assert canvas.bounding_box() == pytest.approx(before, abs=1)
    page.get_by_label("Mask blur").and_(page.locator("#mask-feather")).fill("7")
    page.click("#mask-done")
    assert page.input_value("#mask_blur") == "7"
    page.locator(".notice", has_text="Denoising strength is 1").wait_for()
    page.fill("#mask_blur", "5")
    page.click("#mask-open")
    assert page.input_value("#mask-feather") == "5"
    page.click("#mask-undo")
    assert covered(opened) == 0


def test_keys_alone_paint_a_mask_and_draw_it(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    keyboard = page.keyboard

    def tab_to(name: str) -> None:
        for _ in range(60):
            if page.evaluate("document.activeElement.id") == name:
                return
            keyboard.press("Tab")
        raise AssertionError(f"{name} is not reached")

    opened.generate(prompt="a red circle", steps=2, seed=1)
    page.evaluate("document.activeElement.blur()")
    tab_to("picture-inpaint")
    keyboard.press("Enter")
    page.locator("#mask[open]").wait_for()
    assert page.evaluate("document.activeElement.id") == "mask-canvas"
    keyboard.down("Space")
    for _ in range(6):
        keyboard.press("ArrowRight")
    keyboard.up("Space")
    assert covered(opened) > 1  # A dot of this brush has 0.3 % of the picture.
    tab_to("mask-done")
    keyboard.press("Enter")
    page.locator("#mask[open]").wait_for(state="detached")
    with page.expect_response("**/api/jobs"):
        keyboard.press("Control+Enter")
    opened.status("^Painted")
    assert opened.job()["order"]["mask"]


def sent(opened: Opened, name: str, mode: str = "RGB") -> np.ndarray[Any, Any]:
    """Return a picture of the last order as the server has it."""
    [file] = opened.server.settings.gallery.rglob(f"{opened.job()['order'][name]}.png")
    return np.asarray(Image.open(file).convert(mode)).astype(int)


def test_colours_are_sketched_over_the_picture_and_alone_drawn_anew(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    use(opened, "Sketch")
    page.fill("#mask-colour", "#ff0000")
    page.fill("#mask-pixels", "10")
    page.check("#mask-coloured")
    drag(opened, (0.2, 0.25), (0.8, 0.25))
    use(opened, "Pick")
    page.locator("#mask-canvas").click(position={"x": 5, "y": 5})
    assert page.input_value("#mask-colour") == "#000080"
    page.click("#mask-done")
    assert page.input_value("#strength") == "0.8"
    opened.generate(prompt="a red circle", steps=3, mask_blur=0)
    picture, mask = sent(opened, "init_image"), sent(opened, "mask", "L")
    assert picture[16, 32].tolist() == [255, 0, 0]
    assert picture[48, 32].tolist() == [0, 0, 128]
    assert (mask[16, 32], mask[48, 32]) == (255, 0)
    # At 1 nothing of the colours would be left.
    page.fill("#strength", "1")
    page.click("#mask-open")
    page.click("#mask-done")
    page.locator(".notice", has_text="Denoising strength is 0.8").wait_for()
    # A sheet of the form's size is sketched on as well.
    page.click("#init-draw")
    page.locator("#mask[open]").wait_for()
    assert page.is_checked("#mask-tools [value='colour']")
    page.uncheck("#mask-coloured")
    drag(opened, (0.2, 0.25), (0.8, 0.25))
    page.click("#mask-done")
    page.locator("#init-badge", has_text=re.compile("^on$")).wait_for()
    opened.generate()
    picture = sent(opened, "init_image")
    assert picture[48, 32].tolist() == [255, 255, 255]
    assert picture[16, 32].tolist() == [0, 0, 128]
    assert not opened.job()["order"]["mask"]


def test_the_frame_is_dragged_and_what_is_new_is_drawn(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit)
    page = opened.page
    use(opened, "Outpaint")
    unit = 4 * int(page.get_attribute("#width", "step"))
    handle = page.locator("[data-sides='right']").bounding_box()
    scale = page.locator("#mask-stack").bounding_box()["width"] / 64
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + (unit + 1) * scale, y, steps=4)
    page.mouse.up()
    assert page.input_value("#frame-right") == str(unit)
    page.fill("#frame-top", str(unit - 1))
    page.press("#frame-top", "Tab")
    assert page.input_value("#frame-top") == str(unit)
    page.click("#mask-undo")
    assert page.input_value("#frame-top") == "0"
    page.click("#mask-done")
    page.locator("#init-badge", has_text="with mask").wait_for()
    assert [page.input_value(f"#{side}") for side in ("width", "height")] == [str(64 + unit), "64"]
    opened.generate(prompt="a red circle", steps=3, mask_blur=0)
    picture, mask = sent(opened, "init_image"), sent(opened, "mask", "L")
    assert picture.shape == (64, 64 + unit, 3)
    assert np.abs(picture - [0, 0, 128]).max() <= 1
    assert (mask[:, 64 - 7 :] == 255).all()
    assert (mask[:, : 64 - 9] == 0).all()
    kept = opened.picture()[:, : 64 - 9]
    assert np.abs(kept - [0, 0, 128]).max() <= 1


def test_two_fingers_zoom_and_one_paints(visit: Callable[..., Opened]) -> None:
    opened = on_canvas(visit, viewport=PHONE, has_touch=True, is_mobile=True)
    page = opened.page
    box = page.locator("#mask-board").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    touch = page.context.new_cdp_session(page)

    def fingers(kind: str, *apart: float) -> None:
        points = [{"x": middle[0] + one, "y": middle[1], "id": place} for place, one in enumerate(apart)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    width = page.locator("#mask-canvas").bounding_box()["width"]
    fingers("touchStart", -30)
    fingers("touchStart", -30, 30)
    for by in (40, 50, 60):
        fingers("touchMove", -by, by)
    fingers("touchEnd")
    assert page.locator("#mask-canvas").bounding_box()["width"] == pytest.approx(2 * width, rel=0.05)
    assert covered(opened) == 0  # The first finger was no stroke.
    fingers("touchStart", -30)
    fingers("touchMove", 30)
    fingers("touchEnd")
    assert covered(opened) > 0
    assert page.locator("#mask").evaluate("(one) => one.scrollWidth <= one.clientWidth")

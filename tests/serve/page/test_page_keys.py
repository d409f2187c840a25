"""Keys and their list, sizes by ratio, recipes that are only looked at, several styles, and the tone at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.serve.page.conftest import IMPORTED, Opened, holds

pytestmark = pytest.mark.slow

OPTIONS = """(side) => {
  const one = { default: side, min: 8, max: 2048, step: 8 };
  imported.takeOptions({ model: "large", fields: { width: one, height: one } });
  return [...document.querySelectorAll("#shape option")].slice(1).map((one) => one.value.replace("\u00d7", "x"));
}"""
SILENT = """() => (window.AudioContext = class {
  constructor() { window.tones = (window.tones ?? 0) + 1; }
  createGain() { return { gain: {}, connect() {} }; }
  createOscillator() { return { connect: (next) => next, start() {}, stop() {} }; }
})"""


def test_keys_are_listed_and_do_what_the_list_says(visit: Callable[..., Opened]) -> None:
    opened = visit("#gallery")
    page = opened.page
    opened.server.draw(prompt="two keys", num_images=2, steps=1)
    page.fill("#search", "two keys")
    page.keyboard.press("?")
    assert page.input_value("#search").endswith("?"), "in a text it is a letter"
    page.fill("#search", "two keys")
    tiles = page.locator("#gallery-days .thumbnail[title*='two keys']")
    tiles.nth(1).focus()
    page.keyboard.press("?")
    assert page.locator("#keys dt").all_text_contents() == [
        "Ctrl ↵", "Esc", "Ctrl ↑ ↓", "← → ↑ ↓ Home End", "Delete F Z", "Canvas", "?"
    ]  # fmt: skip
    assert "Space paints" in str(page.text_content("#keys-canvas"))
    page.keyboard.press("Escape")
    page.locator("#keys").wait_for(state="hidden")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.title").endswith("Seed 7")
    page.keyboard.press("Enter")
    page.keyboard.press("f")
    page.locator("#viewer-like[aria-pressed=true]").wait_for()
    page.keyboard.press("z")
    assert page.get_attribute("#viewer-actual", "aria-pressed") == "true"
    page.keyboard.press("Delete")
    page.click("#confirm-yes")
    page.locator(".notice", has_text="Picture deleted.").wait_for()
    page.keyboard.press("Escape")
    page.click("#keys-open")
    page.click("#keys-close")


def test_sizes_of_the_trained_area_are_chosen_by_their_ratio(visit: Callable[..., Opened]) -> None:
    page = visit().page
    assert page.is_hidden("#shape"), "32x32 has no other shape"
    page.evaluate(IMPORTED, "form.js")
    assert page.evaluate(OPTIONS, 1024) == [
        "1024x1024", "1152x896", "1216x832", "1344x768", "1536x640", "896x1152", "832x1216", "768x1344"
    ]  # fmt: skip
    page.select_option("#shape", "1216\u00d7832")
    holds(page, "#width", "1216")
    holds(page, "#height", "832")
    assert page.input_value("#shape") == ""


def test_a_file_read_in_the_gallery_is_shown_and_leaves_the_form(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "what I am at")
    (picture,) = opened.server.draw(prompt="a recipe to look at", steps=1)["pictures"]
    with opened.server.client() as client:
        file = {"name": "mine.png", "mimeType": "image/png", "buffer": client.get(picture["url"]).content}
    page.click('nav a[href="#gallery"]')
    page.set_input_files("#recipe-file", file)
    page.locator("#viewer-recipe", has_text="a recipe to look at").wait_for()
    assert page.text_content("#viewer-heading") == "mine.png"
    assert page.locator("#viewer-delete, #viewer-save, #viewer-like").count() == 0
    assert page.input_value("#prompt") == "what I am at"
    page.click("#viewer-use")
    holds(page, "#prompt", "a recipe to look at")


def test_several_styles_are_added_in_one_dialog(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    names = {"ink": "in ink", "oil": "in oil"}
    with opened.server.client() as client:
        for name, prompt in names.items():
            client.put(f"/api/styles/{name}", json={"prompt": prompt, "negative_prompt": ""})
        page.fill("#prompt", "a fox")
        page.click("#open-styles")
        for name in names:
            page.get_by_label(f"Add {name} and stay here").click()
        page.click("#notebook-close")
        assert page.input_value("#prompt") == "a fox, in ink, in oil"
        for name in names:
            client.delete(f"/api/styles/{name}")


def test_a_tone_tells_of_the_end_where_it_is_wanted(visit: Callable[..., Opened]) -> None:
    opened = visit("#settings")
    page = opened.page
    page.check("#sound")
    opened.open()
    page.evaluate(SILENT)
    opened.generate(prompt="a bell", steps=1)
    assert page.evaluate("tones") == 1
    assert page.is_checked("#sound")

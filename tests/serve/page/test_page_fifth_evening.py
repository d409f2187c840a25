"""The page in the hands of a painter who comes from A1111 and Forge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.page.conftest import IMPORTED, Opened, holds, png

pytestmark = pytest.mark.slow


def sides(page: Any) -> tuple[str, str]:
    return page.input_value("#width"), page.input_value("#height")


def weighed(page: Any, text: str, start: int, end: int, key: str = "ArrowUp") -> str:
    page.fill("#prompt", text)
    page.locator("#prompt").evaluate("(prompt, place) => prompt.setSelectionRange(...place)", [start, end])
    page.keyboard.press(f"Control+{key}")
    return str(page.input_value("#prompt"))


def test_one_side_follows_the_other_while_their_ratio_is_kept(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#width", "96")
    page.fill("#height", "64")
    page.check("#keep-ratio", force=True)
    page.fill("#width", "192")
    assert sides(page) == ("192", "128")
    page.fill("#height", "64")
    assert sides(page) == ("96", "64")
    page.fill("#width", "81")
    page.press("#width", "Tab")
    width, height = map(int, sides(page))
    unit = int(page.get_attribute("#width", "step"))
    assert (width % unit, height % unit) == (0, 0) and abs(width / height - 1.5) < 0.15
    page.fill("#width", "192")
    assert sides(page) == ("192", "128"), "what was rounded on the way is forgotten"
    page.click("#swap")
    assert sides(page) == ("128", "192")
    page.fill("#height", "96")
    assert sides(page) == ("64", "96")
    opened.open()
    page.fill("#height", "192")
    assert sides(page) == ("128", "192"), "a reload keeps it"
    page.uncheck("#keep-ratio", force=True)
    page.fill("#height", "64")
    assert sides(page) == ("128", "64")


def test_the_models_own_sampler_is_listed_once(visit: Callable[..., Opened]) -> None:
    page = visit().page
    names = page.locator("#sampler option").all_text_contents()
    assert [name for name in names if name.startswith("PLMS")] == ["PLMS (default)"]
    assert (page.input_value("#sampler"), page.input_value("#scheduler")) == ("PLMS", "")
    page.select_option("#sampler", "Euler")
    page.select_option("#sampler", "PLMS")
    holds(page, "#scheduler", "")
    page.evaluate(IMPORTED, "samplers.js")
    kinds = ["Uniform", "Karras", "Beta"]
    sampler = {"name": "DPM++ 2M", "schedules": kinds, "automatic": "Karras", "aliases": []}
    page.evaluate(
        "(given) => imported.takeSamplers(given, true)", {"own": "DPM++ 2M Karras", "class": "X", "list": [sampler]}
    )
    shown = page.locator("#schedule option")
    assert page.locator("#sampler option").all_text_contents() == ["DPM++ 2M (default)"]
    assert shown.all_text_contents() == ["Karras", "Uniform", "Beta"]
    page.select_option("#schedule", "Beta")
    holds(page, "#scheduler", "DPM++ 2M Beta")
    page.select_option("#schedule", "")
    holds(page, "#scheduler", "")


def test_weights_are_changed_where_the_cursor_is_in_their_brackets(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.focus("#prompt")
    assert weighed(page, "a (red circle:1.2), blue", 5, 5) == "a (red circle:1.3), blue"
    assert weighed(page, "a (red circle:1.1), blue", 15, 15, "ArrowDown") == "a red circle, blue"
    assert weighed(page, "a ((red:1.2) circle:1.3)", 5, 5) == "a ((red:1.3) circle:1.3)"
    assert weighed(page, r"a (red \(deep\):1.2), blue", 5, 5) == r"a (red \(deep\):1.3), blue"
    assert weighed(page, "a (red circle) star", 5, 5) == "a ((red:1.1) circle) star"
    assert weighed(page, "a red circle", 2, 6) == "a (red:1.1) circle", "the space that a double click takes along"


def test_a_server_without_loras_says_where_they_would_be(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.evaluate("document.getElementById('fold-loras').open = true")
    assert page.is_hidden("#lora-none")
    page.route("**/api/loras", lambda route: route.fulfill(json=[]))
    page.click("#lora-button")
    page.locator("#picker-status", has_text="There is none.").wait_for()
    page.click("#picker-close")
    assert page.is_visible("#lora-button")
    assert "--lora-dir" in page.text_content("#lora-none")
    assert page.is_visible("#lora-none")


@pytest.mark.parametrize(
    ("fields", "axis", "said"),
    [
        ({"width": ""}, None, "Breite und Höhe angeben, oder keine von beiden."),
        ({"hires": "8", "width": "2048", "height": "2048"}, None, "Eine Seite von 16384 Pixeln ist mehr als die 2048"),
        ({"num_images": "100", "batch_size": "16"}, None, "1600 Bilder"),
        ({"guidance_interval": "abc"}, None, "Guidance-Intervall: zwei Anteile der Schritte"),
        ({"guidance_interval": "0.6:0.2"}, None, "Guidance-Intervall: zwei Anteile der Schritte"),
        ({"prompt": "a fish " * 2500}, None, "Prompt: 67 Blöcke zu 75 Tokens; höchstens 64"),
        ({"prompt": " AND ".join(["fish"] * 12)}, None, "12 Teile mit AND; höchstens 8"),
        ({"prompt": "(" * 300 + "fish"}, None, "Prompt: mehr als 200 offene Klammern."),
        ({"hires": "2", "hires_steps": "1000"}, None, "1000 Schritte sind mehr als die 500"),
        ({}, ("steps", "0, 5"), "Schritte: 0: mindestens 1."),
        ({}, ("steps", "9999"), "9999 Schritte sind mehr als die 500"),
        ({}, ("size", "32x32, 33x33"), "33x33: Seiten sind bei diesem Modell Vielfache von"),
        ({}, ("scheduler", "Nope"), "Sampler: „Nope“ gibt es hier nicht."),
        ({}, ("scheduler", "Eular"), "Sampler: „Eular“ gibt es hier nicht, aber „Euler“."),
        ({}, ("schedule", "Nope"), "Schedule-Typ: „Nope“ gibt es hier nicht."),
        ({}, ("upscaler", "Nope"), "„Nope“ gibt es hier nicht."),
        ({}, ("model", "Nope"), "„Nope“ gibt es hier nicht."),
        ({}, ("lora", "Nope:1"), "„Nope“ gibt es hier nicht."),
        ({}, ("strength", "0.5, 0.7"), "Denoising-Stärke braucht ein Ausgangsbild."),
        ({}, ("mask_blur", "3, 5"), "Maskenunschärfe braucht eine Maske."),
        ({}, ("prompt_matrix", None), "Eine Prompt-Matrix braucht Teile des Prompts"),
    ],
)
def test_what_one_field_can_not_have_is_said_in_the_pages_language(
    visit: Callable[..., Opened], fields: dict[str, str], axis: tuple[str, str | None] | None, said: str
) -> None:
    page = visit(may_complain=True, locale="de-DE").page
    page.evaluate("document.querySelectorAll('#form details').forEach((fold) => (fold.open = true))")
    for name, value in {"prompt": "a fish", "steps": "2", **fields}.items():
        page.fill(f"#{name}", value)
    if axis:
        page.select_option("#x-field", axis[0])
        if axis[1]:
            page.fill("#x-values", axis[1])
    page.click("#generate")
    told = page.locator(".problem:visible", has_text=said)
    told.wait_for()
    assert told.get_attribute("lang") is None, "it is not read out as English"


@pytest.mark.parametrize("size", [(64, 64), (96, 48)])
def test_a_small_picture_of_a_list_keeps_its_shape(visit: Callable[..., Opened], size: tuple[int, int]) -> None:
    page = visit("#upscale").page
    page.set_input_files("#upscale-file", {"name": "a.png", "mimeType": "image/png", "buffer": png("teal", size)})
    shown = page.locator("#upscale-pictures img")
    shown.wait_for()
    box = shown.bounding_box()
    assert abs(box["width"] / box["height"] / (size[0] / size[1]) - 1) < 0.03

"""The page in the hands of a painter who comes from A1111 and Forge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.page.conftest import IMPORTED, Opened, holds

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

"""How the page comes: what a browser keeps of it, and what it asks for together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.serve.page.conftest import Opened

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.slow

SENT = """() => performance.getEntriesByType("resource").filter((one) => one.transferSize)
  .map((one) => new URL(one.name).pathname)"""
ASKED = """() => Object.fromEntries(performance.getEntriesByType("resource")
  .map((one) => [new URL(one.name).pathname, one.startTime]))"""


def test_a_second_visit_is_sent_none_of_the_pages_files(visit: Callable[..., Opened]) -> None:
    page = visit().page
    modules = [path for path in page.evaluate(SENT) if path.startswith("/page/")]
    assert len(modules) > 30
    assert all(path.count("/") == 3 for path in modules), "each is of a version"
    page.goto(page.url.partition("#")[0])
    page.locator("html[data-ready]").wait_for(state="attached")
    assert not [path for path in page.evaluate(SENT) if path.startswith("/page/")]


def test_another_language_is_sent_anew_and_stays(visit: Callable[..., Opened]) -> None:
    page = visit().page
    for language, word in (("de", "Galerie"), ("en", "Gallery")):
        page.context.add_cookies([{"name": "olivelike_language", "value": language, "url": page.url}])
        page.reload()
        page.locator("html[data-ready]").wait_for(state="attached")
        assert page.text_content('nav a[href="#gallery"]') == word
        assert page.evaluate("document.documentElement.lang") == language


def test_lists_are_asked_for_together(visit: Callable[..., Opened]) -> None:
    page = visit().page
    page.route("**/api/server", lambda route: page.wait_for_timeout(400) or route.continue_())
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    began = page.evaluate(ASKED)
    lists = [began[f"/api/{name}"] for name in ("loras", "upscalers", "models")]
    assert max(lists) - began["/api/server"] < 300, "none waits for the answer before it"


def test_a_list_of_loras_that_takes_long_is_waited_for_by_nobody(visit: Callable[..., Opened]) -> None:
    page = visit().page
    held: list[Route] = []
    is_held = True

    def hold(route: Route) -> None:
        held.append(route) if is_held else route.continue_()

    page.route("**/api/loras", hold)
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    page.fill("#prompt", "a cat <lora:nobody:1>")
    unknown = page.get_by_text("There is no LoRA “nobody” here.")
    page.locator("#prompt-count:has-text('tokens')").wait_for()
    page.wait_for_timeout(600)
    assert unknown.count() == 0, "nobody knows yet"
    is_held = False
    for route in held:
        route.continue_()
    unknown.wait_for()

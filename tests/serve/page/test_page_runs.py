"""Conversions that are started from the page: plan, events, report, and the model that they leave."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from olivelike.serve import ServeSettings
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import Running, running
from tests.serve.page.conftest import DESKTOP, PHONE, Opened, barriers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workshop(base_settings: ServeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return a server that may convert one checkpoint."""
    place = tmp_path_factory.mktemp("workshop")
    shutil.copytree(little_checkpoint(), place / "checkpoints" / "little")
    for name in ("models", "workflows"):
        (place / name).mkdir()
    settings = replace(
        base_settings, gallery=place / "gallery", models_dirs=(place / "models",), cache_dir=place / "cache",
        checkpoints_dir=place / "checkpoints", workflows_dir=place / "workflows",
    )  # fmt: skip
    with running(settings) as server:
        yield server


def test_a_checkpoint_is_converted_and_paints(visit: Callable[..., Opened], workshop: Running) -> None:
    opened = visit("#workflows", server=workshop)
    page = opened.page
    page.locator("#run-kind option", has_text="Convert a checkpoint").wait_for(state="attached")
    page.get_by_label("Target").select_option("cpu")
    page.click("#run-plan")
    page.locator("#run-plan-lines", has_text="unet").wait_for(timeout=60_000)
    page.click("#run-start")
    run = page.locator(".run")
    run.locator("pre", has_text="materialize").wait_for(timeout=120_000)
    run.locator(".state", has_text="done").wait_for(timeout=120_000)
    assert re.search(r"unet\.convert.*\n", run.locator("pre").text_content())
    with page.context.expect_page() as other:
        run.get_by_text("Report").click()
    assert other.value.locator("h1").count() > 0
    page.click("text=Paint")
    page.click("#model-button")
    page.locator("#picker .card", has_text="little-cpu").click()
    opened.generate(prompt="a red circle", steps=2)
    assert opened.job()["order"]["model"] == "little-cpu"


def test_a_run_that_is_cancelled_says_so(visit: Callable[..., Opened], workshop: Running) -> None:
    opened = visit("#workflows", server=workshop)
    opened.page.get_by_label("Precision").select_option("fp16")
    opened.page.click("#run-start")
    run = opened.page.locator(".run").first
    run.get_by_role("button", name=re.compile("^Cancel")).click()
    run.locator(".state", has_text="cancelled").wait_for(timeout=60_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_axe_finds_nothing_serious_in_runs(
    visit: Callable[..., Opened], workshop: Running, axe: str, viewport: dict[str, int], scheme: str
) -> None:
    opened = visit("#workflows", server=workshop, viewport=viewport, color_scheme=scheme)
    page = opened.page
    page.evaluate(axe)
    page.click("#run-plan")
    page.locator("#run-plan-lines", has_text="unet").wait_for(timeout=60_000)
    for summary in page.locator(".run summary").all():
        summary.click()
    assert opened.width() <= viewport["width"]
    assert not barriers(page)


def test_a_server_without_runs_offers_none(visit: Callable[..., Opened]) -> None:
    opened = visit("#workflows")
    assert opened.page.is_visible("#view-paint")
    assert opened.page.is_hidden("#workflows-link")

"""Pictures as prompts, on the page: chosen, weighed, drawn, and gone where a model has no IP-Adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from olivelike.serve import ServeSettings
from tests.fixtures.little_ip_adapters import little_prompted
from tests.serve.conftest import Running, running
from tests.serve.page.conftest import Opened, png

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prompted(base_settings: ServeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    gallery = tmp_path_factory.mktemp("prompted") / "gallery"
    with running(replace(base_settings, folders=(little_prompted(),), gallery=gallery)) as server:
        yield server


def test_pictures_are_prompts_by_the_models_ip_adapter(
    visit: Callable[..., Opened], prompted: Running, tmp_path: Path
) -> None:
    assert visit().page.is_hidden("#fold-image-prompt")
    opened = visit(server=prompted)
    opened.fold("image-prompt")
    files = [tmp_path / "cat.png", tmp_path / "dog.png"]
    for file, colour in zip(files, ("white", "navy"), strict=True):
        file.write_bytes(png(colour, (40, 30)))
    opened.page.set_input_files("#image-prompt-file", [str(file) for file in files])
    opened.page.locator("#image-prompt-pictures img").nth(1).wait_for()
    assert opened.page.text_content("#image-prompt-badge") == "2"
    opened.page.fill("#image-prompt-scale", "0.5")
    opened.generate(prompt="a red circle", steps=4, seed=3)
    (picture,) = opened.job()["pictures"]
    assert len(picture["record"]["ip_adapter_images"]) == 2
    assert picture["record"]["ip_adapter_scale"] == 0.5
    opened.page.click("#image-prompt-remove")
    opened.generate(prompt="a red circle", steps=4, seed=4)
    assert "ip_adapter_images" not in opened.job()["pictures"][0]["record"]

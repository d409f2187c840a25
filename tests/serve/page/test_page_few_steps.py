"""*Few steps* on the page: fields show what will be drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from olivelike.serve import ServeSettings
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import running
from tests.serve.page.conftest import Opened, equipped, holds

pytestmark = pytest.mark.slow


def test_fields_show_what_a_lora_of_few_steps_is_drawn_with(
    visit: Callable[..., Opened], little: Path, base_settings: ServeSettings, tmp_path: Path
) -> None:
    settings = equipped(base_settings, tmp_path, little)
    told = {"modelspec.title": "LCM of 3 steps"}
    make_lora(
        tmp_path / "loras/quick.safetensors", "kohya", base=little_checkpoint(), components=("unet",), metadata=told
    )
    with running(settings) as server:
        opened = visit(server=server, may_complain=True)
        page = opened.page
        opened.fold("rare")
        steps, guidance = page.input_value("#steps"), page.input_value("#guidance_scale")
        page.fill("#prompt", "a fish <lora:quick:1>")
        page.check("#fast")
        holds(page, "#steps", "3")
        holds(page, "#guidance_scale", "1")
        holds(page, "#sampler", "LCM")
        page.uncheck("#fast")
        holds(page, "#steps", steps)
        holds(page, "#guidance_scale", guidance)
        holds(page, "#scheduler", "")
        page.fill("#steps", "2")
        page.check("#fast")
        holds(page, "#guidance_scale", "1")
        holds(page, "#steps", "2")
        opened.generate()
        order = opened.job()["order"]
        assert (order["steps"], order["fast"]) == (2, True)
        record = page.evaluate("async () => (await (await fetch('/api/pictures')).json()).pictures[0].record")
        assert (record["steps"], record["guidance_scale"], record["sampler"]) == (2, 1, "LCM")
        page.fill("#prompt", "a fish")
        holds(page, "#guidance_scale", guidance)
        holds(page, "#steps", "2")

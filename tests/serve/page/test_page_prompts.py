"""What the page says of prompts while they are typed: LoRAs that are not here, or for another kind of model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from olivelike.serve import ServeSettings
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint
from tests.serve.conftest import running
from tests.serve.page.conftest import Opened, equipped

pytestmark = pytest.mark.slow


def test_a_lora_that_came_is_found_before_it_is_said_to_be_absent(
    visit: Callable[..., Opened], little: Path, base_settings: ServeSettings, tmp_path: Path
) -> None:
    settings = equipped(base_settings, tmp_path, little)
    with running(settings) as server:
        opened = visit(server=server, may_complain=True)
        page = opened.page
        make_lora(tmp_path / "loras/newone.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
        page.fill("#prompt", "a fish <lora:newone:1>")
        page.locator("#prompt-colours .of-lora").wait_for()
        assert page.text_content("#prompt-notes") == ""
        page.fill("#prompt", "a fish <lora:later:1>")
        page.locator("#prompt-notes", has_text="There is no LoRA “later” here.").wait_for()
        make_lora(tmp_path / "loras/later.safetensors", "kohya", base=little_checkpoint(), alpha=64.0)
        page.click("#fold-loras > summary")
        page.click("#lora-button")
        page.click("#picker-refresh")
        page.locator("#picker-list .card", has_text="later").wait_for()
        page.keyboard.press("Escape")
        page.locator("#prompt-notes", has_text="There is no LoRA").wait_for(state="hidden")


def test_a_lora_that_does_not_tell_its_family_is_told_by_its_layers(
    visit: Callable[..., Opened], little: Path, base_settings: ServeSettings, tmp_path: Path
) -> None:
    settings = equipped(base_settings, tmp_path, little)
    rows = {"lora_down.weight": np.ones((1, 8), "f4"), "lora_up.weight": np.ones((8, 1), "f4")}
    layer = "lora_unet_double_blocks_0_img_attn_qkv"  # FLUX.1's and FLUX.2's.
    save_file({f"{layer}.{name}": row for name, row in rows.items()}, tmp_path / "loras/flow.safetensors")
    with running(settings) as server:
        opened = visit(server=server, may_complain=True)
        page = opened.page
        page.fill("#prompt", "a fish <lora:flow:1>")
        page.locator("#prompt-colours .of-unread").wait_for()
        page.click("#generate")
        page.locator("#order-problem", has_text="The LoRA “flow” is for another kind of model than").wait_for()


def test_an_axis_says_at_its_field_what_it_has_no_sampler_for(visit: Callable[..., Opened]) -> None:
    opened = visit(may_complain=True)
    page = opened.page
    page.click("#fold-plot > summary")
    page.select_option("#y-field", "scheduler")
    page.fill("#y-values", "Euler, Eulr")
    page.click("#generate")
    page.locator("#plot-problem", has_text="Sampler: there is no").wait_for()
    assert page.get_attribute("#y-values", "aria-invalid") == "true"
    page.fill("#y-values", "Euler")
    assert page.get_attribute("#y-values", "aria-invalid") is None

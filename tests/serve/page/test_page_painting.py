"""What is painted from the page: previews, cancelling, the queue, sheets, plots, LoRAs, models."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.serve.conftest import wait_until
from tests.serve.page.conftest import Opened, drop

pytestmark = pytest.mark.slow

WIDTH = "(image) => image.decode().then(() => image.naturalWidth)"


WATCH = """() => {
  window.seen = { status: [], previews: [], announced: [] };
  const watch = (id, kept, read) => {
    const element = document.getElementById(id);
    const note = () => window.seen[kept].push(read(element));
    new MutationObserver(note).observe(element, { attributes: true, childList: true });
  };
  watch("status", "status", (one) => one.textContent);
  watch("announce", "announced", (one) => one.textContent);
  watch("preview", "previews", (one) => one.hidden ? null : one.src);
}"""


def test_a_picture_is_painted_and_seen_growing(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.page.evaluate(WATCH)
    opened.generate(prompt="a red circle", steps=300)
    # It is announced a moment after it is seen.
    opened.page.wait_for_function("() => window.seen.announced.some((text) => text.startsWith('Painted'))")
    seen = opened.page.evaluate("() => window.seen")
    previews = {one for one in seen["previews"] if one}
    assert len(previews) > 1
    assert all(one.startswith("data:image/") for one in previews)
    steps = [int(found[1]) for text in seen["status"] if (found := re.match(r"Step (\d+) of 30[01]", text))]
    assert steps == sorted(steps)
    assert steps[0] < 100
    assert any(re.search(r" s left$", text) for text in seen["status"])
    # A screen reader hears of the beginning, the middle and the end, not of each step.
    assert [text.partition(" ")[0] for text in seen["announced"] if text] == ["Painting", "Half", "Painted"]
    job = opened.job()
    assert opened.page.get_attribute("#stage-picture", "src") == job["pictures"][0]["url"]
    assert opened.page.locator("#stage-picture").evaluate(WIDTH) == 32
    assert opened.page.is_hidden("#preview")


def test_a_job_is_cancelled_by_button_and_by_escape(visit: Callable[..., Opened]) -> None:
    opened = visit()
    for end in (lambda: opened.page.click("#cancel"), lambda: opened.page.keyboard.press("Escape")):
        opened.generate("^Step ", prompt="a red circle", steps=500, num_images=50)
        end()
        opened.status("^Cancelled")
        wait_until(lambda: opened.unfinished() == 0)
        assert opened.page.is_disabled("#cancel")
    assert opened.generate(steps=3, num_images=1).startswith("Painted")


def test_a_page_that_is_loaded_anew_finds_its_job(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate("^Step ", prompt="a red circle", steps=500, num_images=50)
    opened.open()
    opened.status("^Step ")
    assert opened.page.input_value("#steps") == "500"
    opened.page.click("#cancel")
    opened.status("^Cancelled")


def test_a_batch_is_skipped(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate("batch 1 of 2", prompt="a red circle", steps=500, width=128, height=128, num_images=2)
    opened.page.click("#skip")
    opened.status("^(Painted|[0-9]+ pictures painted)")
    assert len(opened.job()["pictures"]) == 1


def test_the_place_in_the_queue_is_told(visit: Callable[..., Opened]) -> None:
    first, second = visit(), visit()
    first.generate("^Step ", prompt="a red circle", steps=500, num_images=50)
    second.page.fill("#prompt", "a blue square")
    second.page.fill("#steps", "3")
    second.page.click("#generate")
    second.status("^Queued: ")
    first.page.locator("#queue-list li").filter(has_text="a blue square").wait_for()
    first.page.click("#cancel")
    second.status("^Painted")


def test_each_line_may_be_a_prompt(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("rare")
    opened.page.check("#lines")
    opened.page.fill("#prompt", "the first of two\n# no prompt\n\nthe second of two")
    opened.page.fill("#steps", "2")
    opened.page.click("#generate")
    opened.page.locator("#stage-picture[alt='the second of two']").wait_for()
    with opened.server.client() as client:
        jobs = client.get("/api/jobs?limit=2").json()["jobs"]
    assert [job["order"]["prompt"] for job in jobs] == ["the second of two", "the first of two"]


def test_several_pictures_come_with_their_sheet(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.page.check("#sheet")
    opened.generate("^3 pictures", prompt="a red circle", steps=3, num_images=3, seed=5)
    job = opened.job()
    assert [picture["seed"] for picture in job["pictures"]] == [5, 6, 7]
    assert opened.page.locator("#strip button").count() == 4
    assert opened.page.get_attribute("#stage-picture", "src") == job["pictures"][-1]["url"]
    opened.page.locator("#strip button").first.click()
    assert opened.page.get_attribute("#stage-picture", "src") == job["pictures"][0]["url"]


def test_a_plot_of_two_axes_has_labels_and_all_pictures(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("plot")
    opened.page.select_option("#x-field", "steps")
    opened.page.fill("#x-values", "2-4")
    opened.page.select_option("#y-field", "scheduler")
    opened.page.fill("#y-values", "Euler a, DDIM")
    assert opened.page.text_content("#plot-badge") == "3 \u00d7 2"
    opened.generate("^6 pictures", prompt="a red circle", seed=1)
    job = opened.job()
    assert {(one["record"]["steps"], one["record"]["sampler"]) for one in job["pictures"]} == {
        (steps, sampler) for steps in (2, 3, 4) for sampler in ("Euler a", "DDIM")
    }
    assert opened.page.get_attribute("#stage-picture", "src") == job["sheet"]["url"]
    height, width = opened.picture().shape[:2]
    assert width > 3 * 32  # The labels need room of their own.
    assert height > 2 * 32
    opened.page.fill("#x-values", "two")
    opened.page.click("#generate")
    assert "“two” is no number" in opened.page.text_content("#plot-problem")
    opened.page.select_option("#x-field", "schedule")
    opened.page.select_option("#y-field", "")
    opened.page.select_option("#sampler", "DPM++ 2M")
    opened.page.click("#x-all")
    types = "Uniform, Karras, Exponential, Beta, SGM Uniform, Normal, Simple, DDIM, KL Optimal, Align Your Steps"
    assert opened.page.input_value("#x-values") == types
    opened.page.fill("#x-values", "Uniform, Karras")
    opened.generate("^2 pictures", steps=2)
    assert [one["record"].get("schedule") for one in opened.job()["pictures"]] == [None, "Karras"]


def test_a_lora_is_added_with_a_strength_and_changes_the_picture(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=3, seed=21)
    plain = opened.picture()
    opened.fold("loras")
    opened.page.click("#lora-button")
    card = opened.page.locator("#picker .card", has_text="wild")
    assert card.locator("img").evaluate(WIDTH) > 0
    card.click()
    opened.page.click("#picker-done")
    opened.page.get_by_label("Strength of wild", exact=True).fill("1.5")
    opened.generate()
    job = opened.job()
    assert job["order"]["loras"][0] | {"text_weight": None} == {"name": "wild", "weight": 1.5, "text_weight": None}
    assert np.abs(opened.picture() - plain).mean() > 1
    opened.page.get_by_label("Remove wild").click()
    opened.generate()
    assert np.array_equal(opened.picture(), plain)
    opened.generate(prompt="a red circle <lora:wild:1.5>")
    assert np.abs(opened.picture() - plain).mean() > 1
    opened.page.locator("#prompt-colours .of-lora", has_text="<lora:wild:1.5>").wait_for(state="attached")


def test_a_lora_of_a_subfolder_shows_it_and_is_found_by_it(visit: Callable[..., Opened]) -> None:
    opened = visit()
    (folder,) = opened.server.settings.lora_dirs
    (folder / "styles").mkdir()
    shutil.copy(folder / "wild.safetensors", folder / "styles" / "neon.safetensors")
    try:
        opened.fold("loras")
        opened.page.click("#lora-button")
        opened.page.fill("#picker-filter", "styles/")
        opened.page.locator("#picker-status", has_text="1 of 2").wait_for()
        assert "neon" in opened.page.locator("#picker .card:visible").text_content()
    finally:
        shutil.rmtree(folder / "styles")


def test_another_model_is_chosen_from_the_picker(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.generate(prompt="a red circle", steps=3)
    assert opened.job()["order"]["model"] == "first"
    opened.page.click("#model-button")
    opened.page.fill("#picker-filter", "sec")
    opened.page.locator("#picker .card:visible").click()
    opened.page.locator("#model-button", has_text="second").wait_for()
    opened.generate()
    assert opened.job()["order"]["model"] == "second"
    opened.open()
    assert "second" in opened.page.text_content("#model-button")
    assert opened.page.input_value("#prompt") == "a red circle"
    index = opened.server.settings.folders[1] / "model_index.json"
    opened.page.goto("about:blank")  # A page that is there may still ask for tokens of the model.
    index.rename(aside := index.with_name("aside"))
    try:
        opened.open()
        opened.page.locator(".notice", has_text="The model “second” is no longer served; “first").wait_for()
    finally:
        aside.rename(index)


def test_ctrl_z_takes_back_a_weight_and_the_words_of_a_recipe(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.page.fill("#prompt", "")
    opened.page.click("#prompt")
    keyboard = opened.page.keyboard
    keyboard.type("a green star on a white background")
    keyboard.press("Control+Shift+ArrowLeft")
    keyboard.press("Control+ArrowUp")
    assert opened.page.input_value("#prompt") == "a green star on a white (background:1.1)"
    keyboard.press("Control+z")
    assert opened.page.input_value("#prompt") == "a green star on a white background"

    recipe = PngInfo()
    recipe.add_text("parameters", "a red circle\nSteps: 4, Sampler: DDIM, CFG scale: 2, Seed: 3, Size: 64x64")
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "navy").save(buffer, "PNG", pnginfo=recipe)
    drop(opened, "body", "old.png", buffer.getvalue())
    opened.page.locator("#notices").get_by_text("Recipe of old.png loaded").wait_for()
    assert opened.page.input_value("#prompt") == "a red circle"
    opened.page.click("#prompt")
    keyboard.press("Control+z")
    assert opened.page.input_value("#prompt") == "a green star on a white background"


def test_two_shares_are_typed_as_on_the_command_line_and_come_back_from_a_recipe(visit: Callable[..., Opened]) -> None:
    opened = visit()
    opened.fold("rare")
    opened.generate(prompt="a red circle", steps=4, guidance_interval="0:0.5")
    assert opened.job()["order"]["guidance_interval"] == [0, 0.5]
    opened.page.fill("#guidance_interval", "half")
    opened.page.click("#generate")
    opened.page.locator("#order-problem", has_text="Guidance interval").wait_for()
    opened.page.click("#stage-open")
    opened.page.click("#viewer-use")
    opened.page.locator(".notice", has_text="Recipe of the picture loaded").wait_for()
    assert opened.page.input_value("#guidance_interval") == "0:0.5"


def test_a_seed_of_64_bits_is_drawn_shown_and_taken_over(visit: Callable[..., Opened]) -> None:
    opened = visit()
    seed = str(2**64 - 1)
    opened.generate(prompt="a long seed", steps="2", seed=seed)
    assert opened.job()["order"]["seed"] == int(seed)
    opened.page.fill("#seed", "1")
    opened.page.click("#seed-last")
    assert opened.page.input_value("#seed") == seed
    opened.page.click("#stage-open")
    assert seed in str(opened.page.text_content("#viewer-recipe"))


def test_names_are_offered_and_unknown_ones_are_told(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.click("#prompt")
    page.fill("#prompt", "a cat ")
    page.press("#prompt", "End")
    page.keyboard.type("<")
    page.locator("#prompt-offers [role=option]", has_text="wild").wait_for()
    page.keyboard.press("Enter")
    assert page.input_value("#prompt") == "a cat <lora:wild:1>"
    page.locator("#prompt-colours .of-lora").wait_for()
    page.keyboard.type(" <lora:wilder:1>")
    page.locator("#prompt-notes", has_text="There is no LoRA “wilder” here.").wait_for()
    assert page.locator("#prompt-colours .of-unread").inner_text() == "<lora:wilder:1>"
    page.keyboard.type(" <lo")
    page.keyboard.press("Escape")
    assert page.is_hidden("#prompt-offers")


def test_styles_presets_and_last_prompts_fill_the_form_in(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.generate(prompt="a last prompt", negative_prompt="grey", steps=1)
    page.fill("#prompt", "{prompt}, oil")
    page.click("#open-styles")
    page.fill("#notebook-name", "Oil")
    page.click("#notebook-keep button")
    page.locator(".notice", has_text="“Oil” is kept").wait_for()
    page.fill("#steps", "3")
    page.click("#open-presets")
    page.fill("#notebook-name", "Quick")
    page.click("#notebook-keep button")
    page.locator(".notice", has_text="“Quick” is kept").wait_for()
    page.fill("#steps", "9")
    page.click("#open-history")
    page.click("#notebook-list .kept:has-text('a last prompt')")
    page.click("#open-styles")
    page.click("#notebook-list .kept:has-text('Oil')")
    assert page.input_value("#prompt") == "a last prompt, oil"
    assert page.input_value("#negative_prompt") == "grey, grey"
    page.click("#open-presets")
    page.click("#notebook-list .kept:has-text('Quick')")
    page.wait_for_function("() => document.getElementById('steps').value === '3'")
    assert page.input_value("#prompt") == "{prompt}, oil"


def test_pictures_are_painted_until_one_is_cancelled(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    page.fill("#prompt", "a circle for ever")
    page.fill("#steps", "1")
    page.check("#forever")
    page.click("#generate")
    with opened.server.client() as client:
        for _ in range(200):
            found = client.get("/api/pictures?search=ever&limit=5").json()["pictures"]
            if len(found) >= 3:
                break
            page.wait_for_timeout(100)
    assert len(found) >= 3
    page.uncheck("#forever")
    opened.status("^(Painted|Cancelled)")


def test_several_loras_are_chosen_in_one_go(visit: Callable[..., Opened]) -> None:
    opened = visit()
    page = opened.page
    opened.fold("loras")
    page.click("#lora-button")
    page.click("#picker-list .card:has-text('wild')")
    assert page.get_attribute("#picker-list .card", "aria-pressed") == "true"
    page.click("#picker-refresh")
    page.click("#picker-done")
    assert page.locator("#lora-list li").count() == 1

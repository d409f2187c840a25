"""An evening of a painter: tasks in words of A1111, done on the page, with their clicks counted beside Forge's.

    pytest -s -m slow tests/serve/page/test_page_evening.py      # prints the table

A click is a press of the mouse. A field that one types into costs one, a choice from a list two, a drag one; keys cost
none. Forge's clicks are read off the sources of its interface (`modules/ui.py`, `modules/ui_toprow.py`,
`modules/infotext_utils.py`, `scripts/`) and of Gradio's elements, the way that needs fewest; nobody counted them at a
running Forge. `?` marks those that are less sure: what an extension does there, or a page of settings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from olivelike.serve import ServeSettings
from tests.fixtures.little_guides import little_guided
from tests.fixtures.little_pipeline import little_pipeline
from tests.serve.conftest import Running, running
from tests.serve.page.conftest import UPSCALER, Opened, drop, equipped, holds, png
from tests.serve.page.test_page_canvas import drag, use
from tests.serve.page.test_page_pictures import paste

pytestmark = pytest.mark.slow

MOST_MORE = 3


@pytest.fixture(scope="module")
def home(base_settings: ServeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Return a server of two models, one with guides, a LoRA and an upscaler."""
    place = tmp_path_factory.mktemp("home")
    with running(equipped(base_settings, place, little_guided(), little_pipeline())) as server:
        yield server


@dataclass
class Painter:
    """Hands that count their clicks."""

    opened: Opened
    clicks: int = 0

    @property
    def page(self) -> Any:
        return self.opened.page

    def click(self, target: str, **how: Any) -> None:
        self.page.click(target, **how)
        self.clicks += 1

    def type(self, field: str, value: object) -> None:
        self.page.fill(f"#{field}", str(value))
        self.clicks += 1

    def choose(self, field: str, value: str) -> None:
        self.page.select_option(f"#{field}", value)
        self.clicks += 2

    def unfold(self, name: str) -> None:
        if self.page.get_attribute(f"#fold-{name}", "open") is None:
            self.click(f"#fold-{name} > summary")

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        drag(self.opened, start, end)
        self.clicks += 1

    def generate(self, wait: str = "^(Painted|[0-9]+ pictures painted)") -> dict[str, Any]:
        """Press Ctrl+Enter, as there; return the job when it is done."""
        self.page.evaluate("document.querySelector('#status').textContent = ''")
        self.page.focus("#prompt")
        self.page.keyboard.press("Control+Enter")
        return self.job(wait)

    def job(self, wait: str = "^(Painted|[0-9]+ pictures painted)") -> dict[str, Any]:
        self.opened.status(wait)
        return self.opened.job()

    def made(self, target: str) -> dict[str, Any]:
        """Press a button that draws, and return the record of what it drew."""
        self.page.evaluate("document.querySelector('#status').textContent = ''")
        self.click(target)
        record: dict[str, Any] = self.job()["pictures"][-1]["record"]
        return record

    def close_canvas(self) -> None:
        self.click("#mask-done")
        self.page.locator("#mask[open]").wait_for(state="detached")
        self.page.locator("#init-badge", has_text="with mask").wait_for()

    def notice(self, text: str) -> None:
        self.page.locator(".notice", has_text=text).wait_for()


@dataclass(frozen=True)
class Task:
    """One of an evening."""

    words: str
    forge: int
    do: Callable[[Painter], None]
    sure: bool = True


TASKS: list[Task] = []


def task(words: str, forge: int, *, sure: bool = True) -> Callable[[Callable[[Painter], None]], None]:
    def keep(do: Callable[[Painter], None]) -> None:
        TASKS.append(Task(words, forge, do, sure))

    return keep


@task("txt2img: type a prompt, Generate", 2)
def _(her: Painter) -> None:
    her.type("prompt", "a red circle")
    her.page.fill("#steps", "4")  # The little network needs no more.
    assert her.made("#generate")["prompt"] == "a red circle"


@task("Negative prompt", 1)
def _(her: Painter) -> None:
    her.type("negative_prompt", "blurry")
    assert her.generate()["order"]["negative_prompt"] == "blurry"


@task("Sampling steps", 1)
def _(her: Painter) -> None:
    her.type("steps", 3)
    assert her.generate()["pictures"][0]["record"]["steps"] == 3


@task("CFG Scale", 1)
def _(her: Painter) -> None:
    her.type("guidance_scale", 5)
    assert her.generate()["pictures"][0]["record"]["guidance_scale"] == 5


@task("Sampling method Euler a", 2)
def _(her: Painter) -> None:
    her.choose("sampler", "Euler a")
    assert her.generate()["pictures"][0]["record"]["sampler"] == "Euler a"


@task("Schedule type Karras", 2)
def _(her: Painter) -> None:
    her.choose("sampler", "DPM++ 2M")
    her.clicks = 0
    her.choose("schedule", "Karras")
    assert her.generate()["order"]["scheduler"] == "DPM++ 2M Karras"


@task("Width and Height", 2)
def _(her: Painter) -> None:
    her.type("width", 32)
    her.type("height", 64)
    assert her.generate()["pictures"][0]["height"] == 64


@task("Switch width and height", 1)
def _(her: Painter) -> None:
    her.click("#swap")
    assert her.generate()["pictures"][0]["width"] == 64
    her.page.fill("#width", "32")


@task("Seed: a number", 1)
def _(her: Painter) -> None:
    her.type("seed", 1234)
    assert her.generate()["pictures"][0]["seed"] == 1234


@task("Random seed (the die)", 1)
def _(her: Painter) -> None:
    her.click("#seed-random")
    assert her.page.input_value("#seed") == "-1"


@task("Reuse the seed of the last picture", 1)
def _(her: Painter) -> None:
    her.click("#seed-last")
    assert her.page.input_value("#seed") == "1234"


@task("Batch count 2, batch size 2", 2)
def _(her: Painter) -> None:
    her.type("num_images", 2)
    her.type("batch_size", 2)
    assert [one["seed"] for one in her.generate()["pictures"]] == [1234, 1235, 1236, 1237]


@task("Grid of the batch", 0)
def _(her: Painter) -> None:
    her.click("#sheet")
    assert her.generate()["sheet"]
    her.page.uncheck("#sheet")


@task("Look at one of the batch, large", 2)
def _(her: Painter) -> None:
    her.click("#strip button >> nth=1")
    her.click("#stage-open")
    her.page.locator("#viewer[open]").wait_for()
    her.page.keyboard.press("Escape")


@task("Interrupt", 1)
def _(her: Painter) -> None:
    her.page.fill("#steps", "500")
    her.page.fill("#num_images", "2")
    her.page.fill("#batch_size", "1")
    her.generate("^Step ")
    her.click("#cancel")
    her.opened.status("^Cancelled")


@task("Skip", 1)
def _(her: Painter) -> None:
    her.generate("^Step .*batch 1 of 2")
    her.click("#skip")
    assert len(her.job()["pictures"]) == 1
    her.page.fill("#steps", "3")
    her.page.fill("#num_images", "1")


@task("Generate forever, and its end", 4)
def _(her: Painter) -> None:
    her.click("#forever")
    her.generate()
    first = her.opened.job()["id"]
    her.page.wait_for_function(
        "async (first) => (await (await fetch('/api/jobs?limit=1')).json()).jobs[0].id !== first", arg=first
    )
    her.click("#forever")
    her.opened.status("^Painted")


@task("Hires. fix with R-ESRGAN 4x+", 4)
def _(her: Painter) -> None:
    her.unfold("hires")
    her.type("hires", 2)
    her.choose("upscaler", UPSCALER)
    job = her.generate()
    assert (job["order"]["upscaler"], job["pictures"][0]["width"]) == (UPSCALER, 64)
    her.page.fill("#hires", "")
    her.page.select_option("#upscaler", "")


@task("Hires. fix of the picture that is there (✨)", 1)
def _(her: Painter) -> None:
    her.generate()
    assert her.made("#picture-hires")["hires"] == 2


@task("Variation of a seed (Extra, Variation strength)", 3)
def _(her: Painter) -> None:
    her.generate()
    assert her.made("#picture-vary")["variation_strength"] == 0.2


@task("Save the picture", 1)
def _(her: Painter) -> None:
    with her.page.expect_download():
        her.click("#picture-save")


@task("Send to img2img, Denoising strength 0.5, Generate", 3)
def _(her: Painter) -> None:
    her.click("#picture-img2img")
    her.page.locator("#init-picture").wait_for()
    her.type("strength", "0.5")
    her.made("#generate")
    assert her.opened.job()["order"]["strength"] == 0.5


@task("Send to inpaint, paint a mask, Generate", 3)
def _(her: Painter) -> None:
    her.click("#picture-inpaint")
    her.page.locator("#mask[open]").wait_for()
    her.drag((0.3, 0.3), (0.7, 0.3))
    her.close_canvas()
    her.made("#generate")
    assert her.opened.job()["order"]["mask"]


@task("Inpaint area: Only masked", 1)
def _(her: Painter) -> None:
    her.choose("inpaint_area", "masked")
    assert her.generate()["order"]["inpaint_area"] == "masked"
    her.page.select_option("#inpaint_area", "whole")


@task("Mask blur", 1)
def _(her: Painter) -> None:
    her.type("mask_blur", 2)
    assert her.generate()["order"]["mask_blur"] == 2


@task("Sketch: paint in colour over the picture, Generate", 4)
def _(her: Painter) -> None:
    her.click("#mask-open")
    use(her.opened, "Sketch")
    her.clicks += 1
    her.page.fill("#mask-colour", "#ff0000")
    her.clicks += 2
    her.drag((0.2, 0.5), (0.8, 0.5))
    her.close_canvas()
    her.generate()


@task("Outpaint to the right (Poor man's outpainting)", 5)
def _(her: Painter) -> None:
    her.click("#picture-outpaint")
    her.page.locator("#mask[open]").wait_for()
    her.type("frame-right", 32)
    her.page.press("#frame-right", "Tab")
    her.close_canvas()
    her.generate()
    assert her.opened.job()["pictures"][0]["width"] == 64
    her.page.click("#init-remove")
    her.page.fill("#width", "32")
    her.page.fill("#height", "32")


@task("LoRA from its card, weight 0.5", 5)
def _(her: Painter) -> None:
    her.unfold("loras")
    her.click("#lora-button")
    her.page.locator("#picker .card", has_text="wild").click()
    her.clicks += 1
    her.click("#picker-done")
    her.page.get_by_label("Strength of wild", exact=True).fill("0.5")
    her.clicks += 1
    assert her.generate()["order"]["loras"][0]["weight"] == 0.5
    her.page.get_by_label("Remove wild").click()


@task("LoRA by typing, offered while one types", 2, sure=False)
def _(her: Painter) -> None:
    her.page.fill("#prompt", "")
    her.click("#prompt")
    her.page.keyboard.type("a red circle <lora:wi")
    her.page.locator("#prompt-offers [role=option]").first.wait_for()
    her.page.keyboard.press("Enter")
    assert "<lora:wild" in her.page.input_value("#prompt")
    her.page.fill("#prompt", "a red circle")


@task("Attention by Ctrl+Up, taken back by Ctrl+Z", 1)
def _(her: Painter) -> None:
    her.click("#prompt")
    her.page.keyboard.press("End")
    her.page.keyboard.press("Control+Shift+ArrowLeft")
    her.page.keyboard.press("Control+ArrowUp")
    assert her.page.input_value("#prompt") == "a red (circle:1.1)"
    her.page.keyboard.press("Control+z")
    assert her.page.input_value("#prompt") == "a red circle"


@task("Save a style", 4)
def _(her: Painter) -> None:
    her.page.fill("#prompt", "oil on canvas")
    her.click("#open-styles")
    her.type("notebook-name", "oil")
    her.click("#notebook-keep button")
    her.notice("is kept")


@task("Use a style", 3)
def _(her: Painter) -> None:
    her.page.fill("#prompt", "a red circle")
    her.click("#open-styles")
    her.page.locator("#notebook-list .kept", has_text="oil").click()
    her.clicks += 1
    assert her.page.input_value("#prompt") == "a red circle, oil on canvas"


@task("A prompt of before", 2, sure=False)
def _(her: Painter) -> None:
    her.click("#open-history")
    her.page.locator("#notebook-list .kept", has_text="a red circle").first.click()
    her.clicks += 1
    assert her.page.input_value("#prompt") == "a red circle"


@task("Paste generation parameters (↙)", 2)
def _(her: Painter) -> None:
    her.clicks += 1
    paste(her.opened, "a blue star\nSteps: 4, Sampler: DDIM, CFG scale: 6, Seed: 42, Size: 32x32")
    her.notice("Recipe of the pasted text loaded")
    assert (her.page.input_value("#seed"), her.page.input_value("#sampler")) == ("42", "DDIM")


@task("PNG Info: drop a picture, send to txt2img", 2)
def _(her: Painter) -> None:
    made = her.opened.server.draw(prompt="a drawn lighthouse", seed=99)
    with her.opened.server.client() as client:
        data = client.get(made["pictures"][0]["url"]).content
    drop(her.opened, "body", "lighthouse.png", data)
    her.clicks += 1
    her.notice("Recipe of lighthouse.png loaded")
    her.click("[aria-label='Close this notice']")
    holds(her.page, "#prompt", "a drawn lighthouse")


@task("X/Y/Z plot of steps and CFG", 9)
def _(her: Painter) -> None:
    her.unfold("plot")
    for side, field, values in (("x", "steps", "2,3"), ("y", "guidance_scale", "3,5")):
        her.choose(f"{side}-field", field)
        her.type(f"{side}-values", values)
    job = her.generate()
    assert len(job["pictures"]) == 4 and job["sheet"]
    for side in "xy":
        her.page.select_option(f"#{side}-field", "")


@task("Prompts from lines", 4)
def _(her: Painter) -> None:
    her.unfold("rare")
    her.click("#lines")
    her.type("prompt", "the first line\nthe second line")
    her.page.focus("#prompt")
    her.page.keyboard.press("Control+Enter")
    her.page.locator("#stage-picture[alt='the second line']").wait_for()
    her.page.uncheck("#lines")
    her.page.fill("#prompt", "a red circle")


@task("Clip skip 2", 3, sure=False)
def _(her: Painter) -> None:
    her.unfold("rare")
    her.type("clip_layer", 2)
    assert her.generate()["order"]["clip_layer"] == 2
    her.page.fill("#clip_layer", "1")


@task("ControlNet Canny from a file, weight 0.6", 5)
def _(her: Painter) -> None:
    her.unfold("control")
    her.page.set_input_files(
        "#control-1-file", {"name": "edges.png", "mimeType": "image/png", "buffer": png("white", (32, 32))}
    )
    her.clicks += 2
    her.page.locator("#control-1-picture").wait_for()
    her.choose("control-1-preprocessor", "canny")
    her.type("control-1-strength", 0.6)
    control = her.generate()["order"]["controls"][0]
    assert (control["strength"], control["preprocessor"]) == (0.6, "canny")
    her.page.click("#control-1-remove")


@task("Extras: upscale a picture by 2 with R-ESRGAN 4x+", 5)
def _(her: Painter) -> None:
    her.click("#picture-upscale")
    her.choose("upscale-by", UPSCALER)
    her.type("upscale-factor", 2)
    her.click("#upscale-start")
    her.page.locator("#upscale-status", has_text=re.compile("^64.64, after")).wait_for()
    her.page.click("text=Paint")


@task("Queue another while one is drawn, and take it first", 1, sure=False)
def _(her: Painter) -> None:
    her.page.fill("#steps", "500")
    her.generate("^Step ")
    her.page.fill("#steps", "3")
    for prompt in ("a second one", "a third one"):
        her.page.fill("#prompt", prompt)
        her.page.keyboard.press("Control+Enter")
        her.page.locator("#queue-list li", has_text=prompt).wait_for()
    while (notices := her.page.get_by_label("Close this notice")).count():  # They stand in front of the queue.
        notices.first.click()
        her.clicks += 1
    her.page.get_by_label("Earlier: a third one").click()
    her.clicks += 1
    her.page.locator("#queue-list li:first-child", has_text="a third one").wait_for()
    her.page.click("#queue-clear")
    her.page.locator("#queue").wait_for(state="hidden")
    her.page.keyboard.press("Escape")
    her.opened.status("^Cancelled")


@task("Find an older picture by its words", 3, sure=False)
def _(her: Painter) -> None:
    her.click("text=Gallery")
    her.type("search", "lighthouse")
    her.page.locator("#gallery-days .thumbnail[title*=lighthouse]").first.wait_for()


@task("All of an older picture into the form", 3, sure=False)
def _(her: Painter) -> None:
    her.click("#gallery-days .thumbnail[title*=lighthouse] >> nth=-1")
    her.click("#viewer-use")
    holds(her.page, "#prompt", "a drawn lighthouse")
    assert her.page.is_visible("#view-paint")


@task("Save several pictures as a ZIP", 2, sure=False)
def _(her: Painter) -> None:
    her.page.click("text=Gallery")
    with her.page.expect_response("**/api/pictures?search=circle*"):
        her.page.fill("#search", "circle")
    her.page.locator("#gallery-days .thumbnail[title*=circle]").nth(2).wait_for()
    her.click("#select")
    her.click("#gallery-days .thumbnail >> nth=0")
    her.click("#gallery-days .thumbnail >> nth=1")
    her.page.locator("#selected-count", has_text="2 pictures chosen").wait_for()
    with her.page.expect_download():
        her.click("#selected-zip")


@task("Compare two pictures", 3, sure=False)
def _(her: Painter) -> None:
    her.click("#selected-compare")
    her.page.locator("#compare[open]").wait_for()
    her.page.keyboard.press("Escape")


@task("Delete pictures", 3, sure=False)
def _(her: Painter) -> None:
    her.click("#selected-delete")
    her.click("#confirm-yes")
    her.notice("deleted")
    her.page.click("#select")
    her.page.click("text=Paint")


@task("Another checkpoint", 2)
def _(her: Painter) -> None:
    before = her.page.text_content("#model-button")
    her.click("#model-button")
    her.click("#picker .card:not([aria-current=true])")
    her.page.wait_for_function("(before) => document.querySelector('#model-button').textContent !== before", arg=before)


@task("Unload the models", 4, sure=False)
def _(her: Painter) -> None:
    her.click("a[href='#settings']")
    her.click("#models-unload")


@task("The page in German", 6, sure=False)
def _(her: Painter) -> None:
    her.choose("language", "de")
    her.page.locator("html[lang=de][data-ready]").wait_for(state="attached")
    her.page.select_option("#language", "en")
    her.page.locator("html[lang=en][data-ready]").wait_for(state="attached")
    her.page.click("text=Paint")


@task("Defaults again", 2, sure=False)
def _(her: Painter) -> None:
    her.click("#form-reset")
    assert her.page.input_value("#seed") == "-1"


def test_each_task_of_an_evening_is_done_in_about_forges_clicks(
    visit: Callable[..., Opened], home: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = visit(server=home)
    rows, failed, many = [], [], []
    for one in TASKS:
        her = Painter(opened)
        try:
            one.do(her)
        except Exception as error:  # What else is done is told as well.
            failed.append(f"{one.words}: {type(error).__name__}: {str(error)[:1500]}")
            opened.open()
        rows.append(f"| {one.words} | {her.clicks} | {one.forge}{'' if one.sure else '?'} |")
        if her.clicks > one.forge + MOST_MORE:
            many.append(rows[-1])
    with capsys.disabled():
        sys.stdout.write("\n".join(["", "| task | clicks here | in Forge |", "| --- | --- | --- |", *rows, ""]))
    assert len(TASKS) >= 40
    assert not failed, "\n".join(failed)
    assert not many

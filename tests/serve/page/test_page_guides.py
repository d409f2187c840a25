"""Pictures that lead on the page: by guides, as prompts, as references; chosen, weighed, drawn, gone again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.serve import ServeSettings
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_guides import CONTROL_NAMES, little_guided
from tests.fixtures.little_transformers import little_transformer
from tests.serve.conftest import Running, running
from tests.serve.page.conftest import PHONE, WIDE, ZOOMED, Opened, barriers, drop, png

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guided(base_settings: ServeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    gallery = tmp_path_factory.mktemp("guided") / "gallery"
    with running(replace(base_settings, folders=(little_guided(),), gallery=gallery)) as server:
        yield server


def test_a_picture_leads_by_the_models_network(visit: Callable[..., Opened], guided: Running, tmp_path: Path) -> None:
    without = visit().page
    without.click("#fold-control > summary")
    assert "--controlnet" in str(without.text_content("#control-none:visible"))
    assert without.is_hidden("#control-1-net")
    opened = visit(server=guided)
    opened.fold("control")
    assert opened.page.locator("#control-1-net option").all_text_contents() == list(CONTROL_NAMES.values())
    drawing = tmp_path / "edges.png"
    drawing.write_bytes(png("white", (32, 48)))
    opened.page.set_input_files("#control-1-file", str(drawing))
    opened.page.locator("#control-1-picture").wait_for()
    assert [opened.page.input_value(f"#{side}") for side in ("width", "height")] == ["32", "48"]
    opened.page.select_option("#control-1-net", "depth")
    opened.page.fill("#control-1-strength", "0.6")
    opened.page.fill("#control-1-end", "0.8")
    opened.page.check("#control_guess")
    opened.generate(prompt="a red circle", steps=4, seed=3)
    (picture,) = opened.job()["pictures"]
    (control,) = picture["record"]["controls"]
    assert (control["net"], control["strength"], control["end"]) == ("depth", 0.6, 0.8)
    assert picture["record"]["control_guess"] is True
    assert not picture["record"]["fit"]
    opened.generate(prompt="a red circle", steps=1, height=32)  # Of another shape it is cropped, as in A1111.
    assert opened.job()["pictures"][0]["record"]["fit"] is True
    opened.page.click("#control-1-remove")
    opened.generate(prompt="a red circle", steps=4, seed=4)
    assert "controls" not in opened.job()["pictures"][0]["record"]


def test_a_control_picture_is_drawn_by_hand_and_made_of_another(visit: Callable[..., Opened], guided: Running) -> None:
    opened = visit(server=guided)
    page = opened.page
    opened.fold("control")
    page.click("#control-1-draw")
    page.locator("#mask[open]").wait_for()
    assert page.is_hidden("#tool-mask")
    page.fill("#mask-pixels", "8")
    page.focus("#mask-canvas")
    page.keyboard.press("Space")
    page.click("#mask-done")
    page.locator("#control-1-picture").wait_for()
    seen = """(image) => image.decode().then(() => {
      const sheet = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
      const canvas = sheet.getContext("2d", { willReadFrequently: true });
      canvas.drawImage(image, 0, 0);
      return [image.naturalWidth / 2, 0].map((at) => canvas.getImageData(at, at, 1, 1).data[0]);
    })"""
    assert page.locator("#control-1-picture").evaluate(seen) == [255, 0]
    page.select_option("#control-1-preprocessor", "invert")
    page.locator("#control-1-picture[src*=preprocessed]").wait_for()
    assert page.locator("#control-1-picture").evaluate(seen) == [0, 255]
    opened.generate(prompt="a red circle", steps=2, seed=3)
    assert opened.job()["order"]["controls"][0]["preprocessor"] == "invert"
    page.click("#stage-open")
    assert "Invert (black lines on white)" in str(page.text_content("#viewer-recipe"))
    page.keyboard.press("Escape")
    drop(opened, "#control-1-picture", "other.png", png("white", (48, 32)))
    page.locator("#announce", has_text="other.png, 48 by 32 pixels").wait_for(state="attached")
    assert page.input_value("#width") == "48"


def test_edges_are_found_by_thresholds_of_ones_own(visit: Callable[..., Opened], guided: Running) -> None:
    opened = visit(server=guided)
    page = opened.page
    opened.fold("control")
    drop(opened, "#fold-control .drop", "plain.png", png("white", (32, 32)))
    page.locator("#control-1-picture").wait_for()
    assert page.is_hidden("#control-1-a")
    page.select_option("#control-1-preprocessor", "threshold")
    assert page.get_by_label("Threshold", exact=True).input_value() == "127"
    assert page.is_hidden("#control-1-b")
    page.select_option("#control-1-preprocessor", "canny")
    assert [page.get_by_label(f"{one} threshold").input_value() for one in ("Low", "High")] == ["100", "200"]
    opened.generate(prompt="a red circle", steps=2)
    (sent,) = opened.job()["order"]["controls"]
    assert sent["preprocessor"] == "canny"
    page.fill("#control-1-a", "20")
    page.press("#control-1-a", "Tab")
    assert "threshold_a=20" in str(page.get_attribute("#control-1-picture", "src"))
    opened.generate(prompt="a red circle", steps=2)
    (made,) = opened.job()["order"]["controls"]
    assert (made["preprocessor"], made["image"] != sent["image"]) == ("none", True)


UNIT = """(box) => {
  const inputs = [...box.querySelectorAll("select, input:not([type=file])")].filter((one) => !one.disabled);
  return inputs.map((one) => (one.type === "checkbox" ? one.checked : one.value));
}"""


def units(opened: Opened) -> list[list[object]]:
    """Return what the units hold that have a picture: whether they lead, network, preprocessor, weight, start, end."""
    boxes = opened.page.locator(".unit").all()
    return [box.evaluate(UNIT) for box in boxes if box.locator("img[src]").count()]


def chosen(opened: Opened, unit: int, *colours: str) -> None:
    files = [{"name": f"{one}.png", "mimeType": "image/png", "buffer": png(one, (32, 32))} for one in colours]
    opened.page.set_input_files(f"#control-{unit}-file", files)
    opened.page.locator(f"#control-{unit}-picture[src]").wait_for()


def test_two_pictures_lead_and_are_there_again(visit: Callable[..., Opened], guided: Running) -> None:
    opened = visit(server=guided)
    page = opened.page
    opened.fold("control")
    chosen(opened, 1, "white")
    page.fill("#control-1-strength", "0.4")
    page.focus("#control-add")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "control-2-file"
    assert page.input_value("#control-2-net") == "depth"  # The first that no other unit has.
    chosen(opened, 2, "navy")
    page.select_option("#control-2-preprocessor", "invert")
    page.fill("#control-2-end", "0.7")
    assert page.text_content("#control-badge") == "2"
    assert page.text_content("#control-1-badge") == "edges · 0.4"
    opened.generate(prompt="a red circle", steps=2)
    asked = opened.job()["order"]["controls"]
    both = [[True, "edges", "none", "0.4", "0", "1"], [True, "depth", "invert", "1", "0", "0.7"]]
    told = [(one["net"], one["preprocessor"], one["strength"], one["start"], one["end"]) for one in asked]
    assert told == [("edges", "none", 0.4, 0, 1), ("depth", "invert", 1, 0, 0.7)]
    assert asked[0]["image"] != asked[1]["image"]
    page.click("#control-1-box > summary")
    page.uncheck("#control-1-enabled")
    opened.generate()
    assert [one["net"] for one in opened.job()["order"]["controls"]] == ["depth"]
    opened.open()
    page.locator(".unit img[src]").nth(1).wait_for(state="attached")
    assert units(opened) == [[False, *both[0][1:]], both[1]]
    page.click("#form-reset")
    assert (units(opened), page.text_content("#control-badge")) == ([], "")
    page.locator("#strip button").first.click()
    page.click("#picture-use")
    page.locator("#notices", has_text="Recipe of the picture loaded.").wait_for()
    assert units(opened) == both
    page.locator("#notices button", has_text="Undo").last.click()
    page.wait_for_function("() => document.querySelectorAll('.unit').length === 1")
    assert units(opened) == []
    page.click("#picture-control")
    page.locator("#control-1-picture[src^='/files/']").wait_for()
    opened.generate(steps=1)
    (sent,) = opened.job()["order"]["controls"]
    assert sent["image"] not in {one["image"] for one in asked}


def test_a_weight_of_one_of_two_is_a_side_of_a_plot(visit: Callable[..., Opened], guided: Running) -> None:
    opened = visit(server=guided)
    page = opened.page
    opened.fold("control")
    side = page.locator("#x-field option:not([disabled])", has_text="ControlNet weight")
    assert side.all_text_contents() == ["ControlNet weight"]
    chosen(opened, 1, "white", "navy")  # Two files are two units.
    page.locator("#control-2-picture[src]").wait_for()
    assert side.all_text_contents() == ["ControlNet weight", "ControlNet weight (1)", "ControlNet weight (2)"]
    opened.fold("plot")
    page.select_option("#x-field", "control_strength_2")
    page.fill("#x-values", "0-0.5 (+0.5)")
    page.uncheck("#control-1-enabled")  # The second is the first in the order.
    opened.generate(prompt="a red circle", steps=1)
    assert opened.job()["order"]["x"] == {"field": "control_strength_1", "values": [0, 0.5]}
    page.click("#control-2-remove")
    page.click("#generate")
    page.locator("#plot-problem", has_text="ControlNet 2 has no picture").wait_for()


def test_units_of_a_pasted_text_wait_for_their_pictures(visit: Callable[..., Opened], guided: Running) -> None:
    opened = visit(server=guided)
    told = [
        f'ControlNet {number}: "Module: {module}, Model: {model}, Weight: 0.5, Guidance Start: 0, Guidance End: 0.8"'
        for number, (module, model) in enumerate([("invert", "control_sd15_depth [12345678]"), ("none", "openpose")])
    ]
    text = f"a star\nSteps: 3, Sampler: Euler, CFG scale: 5, Seed: 7, {', '.join(told)}"
    opened.page.locator("#prompt").focus()
    opened.page.evaluate(
        """(text) => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", text);
          const pasted = new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData });
          document.activeElement.dispatchEvent(pasted);
        }""",
        text,
    )
    notice = opened.page.locator("#notices", has_text="the ControlNet openpose is not in this model")
    assert "a picture that led, which you have to choose" in str(notice.text_content())
    held = [box.evaluate(UNIT) for box in opened.page.locator(".unit").all()]
    assert [one[1:4] for one in held] == [["depth", "invert", "0.5"], ["edges", "none", "0.5"]]


def test_initial_picture_and_mask_are_there_again(visit: Callable[..., Opened], guided: Running) -> None:
    opened = visit(server=guided)
    page = opened.page
    opened.generate(prompt="a red circle", steps=1)
    page.click("#picture-inpaint")
    page.locator("#mask[open]").wait_for()
    page.focus("#mask-canvas")
    page.keyboard.press("Space")
    page.click("#mask-done")
    page.locator("#init-badge", has_text="with mask").wait_for()
    opened.open()
    page.locator("#init-badge", has_text="with mask").wait_for()
    assert page.input_value("#strength") == "1"
    opened.fold("init")
    page.click("#mask-remove")
    assert page.input_value("#strength") == "0.8"  # It was 1 for the mask alone.
    page.click("#mask-open")
    page.locator("#mask[open]").wait_for()
    page.keyboard.press("Control+z")
    page.click("#mask-done")
    page.locator("#init-badge", has_text="with mask").wait_for()
    opened.generate(steps=1)
    first = opened.job()["order"]
    uploads = guided.settings.gallery / ".uploads"
    (uploads / f"{first['init_image']}.png").unlink()  # As after days: the gallery has the picture.
    page.click("#form-reset")
    assert page.text_content("#init-badge") == ""
    page.click("#picture-use")
    page.locator("#init-badge", has_text="with mask").wait_for()
    opened.generate(steps=1)
    again = opened.job()["order"]
    assert again["init_image"] == first["init_image"]
    masks = [np.asarray(Image.open(uploads / f"{one['mask']}.png").convert("L")) for one in (first, again)]
    assert masks[0].any()
    assert np.array_equal(*masks)


def test_pictures_are_prompts_by_the_models_adapter(
    visit: Callable[..., Opened], guided: Running, tmp_path: Path
) -> None:
    without = visit().page
    without.click("#fold-image-prompt > summary")
    assert "ip_adapter:" in str(without.text_content("#image-prompt-none:visible"))
    assert without.is_hidden("#image-prompt-remove")
    opened = visit(server=guided)
    opened.fold("image-prompt")
    files = [tmp_path / "cat.png", tmp_path / "dog.png"]
    for file, colour in zip(files, ("white", "navy"), strict=True):
        file.write_bytes(png(colour, (40, 30)))
    opened.page.set_input_files("#image-prompt-file", [str(file) for file in files])
    opened.page.locator("#image-prompt-pictures img").nth(1).wait_for()
    assert opened.page.text_content("#image-prompt-badge") == "2"
    opened.page.fill("#ip_adapter_scale", "0.5")
    opened.generate(prompt="a red circle", steps=4, seed=3)
    (picture,) = opened.job()["pictures"]
    assert len(picture["record"]["ip_adapter_images"]) == 2
    assert picture["record"]["ip_adapter_scale"] == 0.5
    opened.page.click("#image-prompt-remove")
    opened.generate(prompt="a red circle", steps=4, seed=4)
    assert "ip_adapter_images" not in opened.job()["pictures"][0]["record"]


@pytest.fixture(scope="module")
def shown_references(base_settings: ServeSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("klein")
    place, options = draft(
        ConvertRequest(str(little_transformer("flux2")), "cpu", root / "klein"), Options(cache_dir=root / "cache")
    )
    run(place, options, executor=InlineExecutor)
    with running(replace(base_settings, folders=(root / "klein",), gallery=root / "gallery")) as server:
        yield server


def test_pictures_are_worked_after(visit: Callable[..., Opened], shown_references: Running, tmp_path: Path) -> None:
    assert visit().page.is_hidden("#fold-references")
    opened = visit(server=shown_references)
    opened.page.locator("#fold-references[open]").wait_for()  # What the model is for is not folded away.
    opened.page.locator("#prompt-count", has_text=re.compile("^0 / (?!75)")).wait_for()  # Its own bound.
    files = [tmp_path / f"{name}.png" for name in ("cat", "sofa", "lamp")]
    for file, colour in zip(files, ("white", "navy", "red"), strict=True):
        file.write_bytes(png(colour, (64, 64)))
    opened.page.set_input_files("#references-file", [str(file) for file in files[:2]])
    opened.page.locator("#references-pictures img").nth(1).wait_for()
    opened.page.set_input_files("#references-file", str(files[2]))
    opened.page.locator("#references-pictures img").nth(2).wait_for()
    opened.page.get_by_label("Remove sofa.png").click()
    assert opened.page.text_content("#references-badge") == "2"
    opened.open()
    opened.page.locator("#references-pictures img").nth(1).wait_for()
    assert opened.page.locator("#references-pictures .of-picture").all_text_contents() == ["1", "2"]
    opened.generate(prompt="the cat of image 1 beside the lamp of image 2", steps=2, seed=3)
    (picture,) = opened.job()["pictures"]
    assert len(picture["record"]["references"]) == 2
    opened.page.click("#references-remove")
    opened.generate(prompt="a red circle", steps=2, seed=4)
    assert "references" not in opened.job()["pictures"][0]["record"]
    opened.page.click("#stage-open")
    opened.page.click("#viewer-refer")
    opened.page.locator("#references-pictures img").wait_for()
    opened.page.set_input_files("#references-file", [str(files[0])] * 10)
    opened.page.locator("#references-problem", has_text="At most 10").wait_for()
    assert opened.page.text_content("#references-badge") == "10"


def test_the_forms_of_guides_have_no_barriers(visit: Callable[..., Opened], guided: Running, axe: str) -> None:
    opened = visit(server=guided, viewport=PHONE)
    opened.page.evaluate(axe)
    for summary in opened.page.locator("#form .folds > details > summary:visible").all():
        summary.click()
    opened.page.set_input_files("#control-1-file", {"name": "a.png", "mimeType": "image/png", "buffer": png()})
    opened.page.locator("#control-1-picture").wait_for()
    opened.page.click("#control-add")
    for viewport in (PHONE, ZOOMED, WIDE):
        opened.page.set_viewport_size(viewport)
        for scheme in ("light", "dark"):
            opened.page.emulate_media(color_scheme=scheme)
            assert not barriers(opened.page)
        assert opened.width() <= viewport["width"]

"""What `--fast` takes for what it finds, beside what is asked for, and the word that it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from olivelike.engine.output.swap import LiveLoras
from olivelike.model.few_steps import FewSteps
from olivelike.model.records.origin import LoraRecord, Origin
from olivelike.model.records.output import OutputRecord
from olivelike.runtime.jobs import PromptLine, plan_jobs
from olivelike.serve.drawing.planning import Files, plan_order
from olivelike.serve.orders import Order
from olivelike.testing.lora_files import make_lora
from tests.fixtures.little_pipeline import little_checkpoint, little_pipeline

A = [PromptLine("a")]


@pytest.fixture(scope="module")
def little(one_torch_thread):
    return little_pipeline()


@pytest.fixture(scope="module")
def loras(tmp_path_factory):
    """Return LoRAs for the UNet alone: one that a title calls TCD, and names that say something, or nothing."""
    folder = tmp_path_factory.mktemp("loras")
    for name, components, title in (
        ("tcd", ("unet",), "Sketches with TCD"),
        ("style_tcd", ("unet", "text_encoder"), "TCD"),
        ("lightning_strike", ("unet",), "Storms"),
        ("sd_lightning_2step", ("unet",), "Untitled"),
    ):
        path = folder / f"{name}.safetensors"
        make_lora(path, "kohya", base=little_checkpoint(), components=components, metadata={"modelspec.title": title})
    return LiveLoras([folder])


def planned(folder, prompt="a", loras=None, **fields):
    plan = plan_jobs(folder, [PromptLine(prompt)], fields, lora_files=loras, fast=True)
    request = plan.jobs[0].request
    return (request.scheduler, request.steps, request.guidance_scale, request.eta), plan.notes


USUAL = (None, 50, 7.5, 0.0)


@pytest.mark.parametrize(
    ("prompt", "made"),
    [
        ("a <lora:tcd:1>", ("TCD", 4, 1.0, 0.3)),
        ("a <lora:sd_lightning_2step:1>", ("Euler SGM Uniform", 2, 1.0, 0.0)),
        ("a <lora:tcd:0.3>", USUAL),
        ("a <lora:style_tcd:1>", USUAL),
        ("a <lora:lightning_strike:1>", USUAL),
        ("a", USUAL),
    ],
)
def test_a_live_lora_is_known_by_its_title_or_as_a_last_hint_its_name(little, loras, prompt, made):
    found, (note,) = planned(little, prompt, loras)
    assert found == made
    assert ("no few-step model" in note) == (made == USUAL)


def test_what_is_asked_for_stays_as_far_as_the_model_can_do_with_it(little, loras):
    found, (note,) = planned(little, "a <lora:tcd:1>", loras, steps=9, scheduler="LCM", guidance_scale=5.0)
    assert found == ("LCM", 9, 1.0, 0.0)
    assert note.endswith("LCM, 9 steps, guidance off in place of guidance_scale 5, which it is not made for")
    lines = [PromptLine("a <lora:tcd:1>", {"steps": 60}), PromptLine("b")]
    plan = plan_jobs(little, lines, {}, lora_files=loras, fast=True)
    assert [job.request.steps for job in plan.jobs] == [50, 50]
    assert "in place of steps 60" in plan.notes[0]
    assert "no few-step model" in plan.notes[1]


def distilled(little, tmp_path, **origin):
    """Return a copy of the folder whose record says what it was made of."""
    folder = Path(shutil.copytree(little, tmp_path / "painter"))
    record = json.loads((folder / "olivelike.json").read_bytes())
    few = FewSteps("turbo", reason="its title")
    made = OutputRecord(
        "w",
        OutputRecord.require(folder).target,
        Origin("file", "painter.safetensors", **{"few_steps": few, **origin}),
        loras=(LoraRecord(Origin("file", "x", few_steps=FewSteps("dmd2", 4, reason="its title")), 0.2),),
    )
    (folder / "olivelike.json").write_text(json.dumps({**record, **json.loads(made.to_bytes())}))
    return folder


def test_the_record_of_a_folder_says_what_it_is(little, tmp_path):
    folder = distilled(little, tmp_path)
    found, notes = planned(folder)
    assert found == ("Euler a SGM Uniform", 4, 1.0, 0.0)
    assert notes == ("fast: Turbo (its title): Euler a SGM Uniform, 4 steps, guidance off",)
    plain = plan_jobs(folder, A)
    assert (plain.jobs[0].request.steps, plain.jobs[0].request.guidance_scale) == (50, 7.5)
    wanted = "50 steps and CFG scale 7.5: more than this is made for, Turbo (its title); --fast takes what suits it"
    assert plain.notes == (wanted,)
    assert plan_jobs(folder, A, {"steps": 2, "guidance_scale": 1.0}).notes == ()
    assert planned(distilled(little, tmp_path / "none", few_steps=None))[0] == USUAL


def test_a_picture_that_was_made_fast_is_made_again_as_it_was(little, loras, tmp_path):
    from olivelike.runtime.jobs import draw
    from olivelike.runtime.pictures import PictureWriter

    tagged = [PromptLine("a <lora:tcd:1>")]
    plan = plan_jobs(little, tagged, {"seed": 3}, lora_files=loras, fast=True)
    (first,) = draw(plan, PictureWriter(tmp_path / "first.png"))
    again = plan_jobs(little, made_before=first, lora_files=loras)
    (second,) = draw(again, PictureWriter(tmp_path / "second.png"))
    assert first.read_bytes() == second.read_bytes()


def test_an_order_may_be_fast(little, loras, tmp_path):
    files = Files({"little": little}, tmp_path, loras._folders, (), False)
    order = Order(model="little", prompt="a <lora:tcd:1>", seed=1, fast=True)
    request = plan_order(order, files).jobs[0].request
    assert (request.scheduler, request.steps, request.guidance_scale, request.eta) == ("TCD", 4, 1.0, 0.3)
    asked = plan_order(order.model_copy(update={"steps": 6}), files).jobs[0].request
    assert asked.steps == 6

"""Pictures of few-step models against diffusers' own pipelines, as `--fast` draws them: same networks, same seeds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from torch_pipelines import assert_alike, paint

from olivelike.model.few_steps import FewSteps
from olivelike.runtime import open_pipeline
from olivelike.runtime.jobs import PromptLine, plan_jobs
from tests.fixtures.little_pipeline import little_pipeline

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")

TEXT, LCM = "StableDiffusionPipeline", "LatentConsistencyModelPipeline"
TRAILING = {"timestep_spacing": "trailing"}


def settle(folder, **settings):
    path = folder / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


class Distilled:
    """A LoRA of weight 1 as a plan sees it."""

    name, hash, unet_weight = "distilled", "0", 1.0

    def __init__(self, few_steps):
        self.few_steps = few_steps


def draw(folder, settings, few_steps=None, **fields):
    """Return what a plan of `--fast` draws with the networks of a folder, and the plan's last note."""
    loras = [] if few_steps is None else [Distilled(few_steps)]
    lines = [PromptLine("a red circle")]
    plan = plan_jobs(folder, lines, {"num_images": 2, "batch_size": 2, "seed": 5, **fields}, loras=loras, fast=True)
    *unled, note = plan.notes
    assert bool(unled) is ("negative_prompt" in fields)
    return open_pipeline(folder, settings).generate(plan.jobs[0].request), note


@pytest.fixture
def own(little_folder, tmp_path):
    """Return a folder whose scheduler may be set."""
    return Path(shutil.copytree(little_folder, tmp_path / "own"))


KINDS = [
    (FewSteps("tcd"), "TCDScheduler", {}, {"eta": 0.3}),
    (FewSteps("hyper", 1), "TCDScheduler", {}, {"eta": 1.0, "num_inference_steps": 1}),
    (FewSteps("lightning", 4), "EulerDiscreteScheduler", TRAILING, {}),
    (FewSteps("lightning", 2), "EulerDiscreteScheduler", TRAILING, {"num_inference_steps": 2}),
    (FewSteps("turbo"), "EulerAncestralDiscreteScheduler", TRAILING, {}),
    (FewSteps("turbo", 1), "EulerAncestralDiscreteScheduler", TRAILING, {"num_inference_steps": 1}),
    (FewSteps("hyper", 4), "DDIMScheduler", {**TRAILING, "clip_sample": False}, {}),
    (FewSteps("hyper", 8, guided=True), "DDIMScheduler", TRAILING, {"num_inference_steps": 8, "guidance_scale": 5.0}),
    (FewSteps("dmd2", 4), "LCMScheduler", {}, {"timesteps": [999, 749, 499, 249]}),
    (FewSteps("lcm"), "LCMScheduler", {}, {}),
]


@pytest.mark.parametrize(("few_steps", "scheduler", "made", "asked"), KINDS, ids=lambda value: str(value)[:40])
def test_a_distilled_lora_gives_the_picture_of_torch(little_folder, settings, few_steps, scheduler, made, asked):
    result, note = draw(little_folder, settings, few_steps)
    theirs = paint(TEXT, scheduler, [5, 6], settings=made, **{"guidance_scale": 0.0, **asked})
    assert_alike(result, theirs)
    assert note.startswith(f"fast: {few_steps.recipe.title}")


@pytest.mark.parametrize(
    ("kind", "class_name"), [("lcm", LCM), pytest.param("lcm_xl", "StableDiffusionXLPipeline", marks=pytest.mark.slow)]
)
def test_a_unet_that_takes_the_guidance_is_known_by_that(settings, kind, class_name, tmp_path):
    folder = settle(Path(shutil.copytree(little_pipeline(kind), tmp_path / kind)), _class_name="LCMScheduler")
    result, note = draw(folder, settings)
    assert note == "fast: LCM (its UNet takes the guidance as an input): LCMScheduler, 4 steps, guidance 8"
    assert_alike(result, paint(class_name, "LCM", [5, 6], kind=kind, guidance_scale=8.0))
    other = plan_jobs(settle(folder, _class_name="PNDMScheduler"), [PromptLine("a")], fast=True)
    assert other.jobs[0].request.scheduler == "LCM"


def test_lightning_in_one_step_predicts_the_picture(own, settings):
    settle(own, _class_name="EulerDiscreteScheduler", prediction_type="sample", **TRAILING)
    result, note = draw(own, settings, steps=4, guidance_scale=7.5, negative_prompt="dark")
    assert "Lightning for 1 step (its UNet predicts the picture itself): EulerDiscreteScheduler, 1 step" in note
    assert "in place of steps 4, guidance_scale 7.5" in note
    more = {"num_inference_steps": 1, "guidance_scale": 0.0, "prediction_type": "sample"}
    assert_alike(result, paint(TEXT, "EulerDiscreteScheduler", [5, 6], settings=TRAILING, **more))


@pytest.mark.parametrize("scheduler", ["EDMDPMSolverMultistepScheduler", "EDMEulerScheduler"])
def test_a_network_trained_as_edm_gives_the_picture_of_torch(own, settings, scheduler):
    """As Playground v2.5, whose VAE has a mean and a deviation."""
    settle(own, _class_name=scheduler, sigma_min=0.002, sigma_max=80.0, sigma_data=0.5)
    pipeline = open_pipeline(own, settings)
    plan = plan_jobs(own, [PromptLine("a red circle")], {"num_images": 2, "batch_size": 2, "seed": 5, "steps": 4})
    result = pipeline.generate(replace(plan.jobs[0].request, guidance_scale=3.0))
    made = {"sigma_min": 0.002, "sigma_max": 80.0, "sigma_data": 0.5}
    assert_alike(result, paint(TEXT, scheduler, [5, 6], settings=made, guidance_scale=3.0))

"""What an order leaves open is its family's, over A1111's API too, which has defaults for Stable Diffusion."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from olivelike.runtime.schedulers.scheduler_names import SAMPLERS
from olivelike.serve.api.a1111 import _model, _with_usual, _without_negatives
from olivelike.serve.api.a1111_lists import samplers, schedulers as a1111_schedulers
from olivelike.serve.api.a1111_models import TextToImage
from olivelike.serve.api.a1111_samplers import SCHEDULE_NAMES
from olivelike.serve.api.catalogue_routes import schedulers
from olivelike.serve.catalogue import Catalogue
from olivelike.serve.orders import Order
from olivelike.serve.service import Service
from olivelike.serve.settings import ServeSettings


@pytest.fixture
def service(little, tmp_path):
    """Return what a server of two folders knows: a distilled klein, by its configs alone, and Stable Diffusion."""
    klein = tmp_path / "klein"
    for name, config in (
        ("model_index.json", {"_class_name": "Flux2KleinPipeline", "is_distilled": True}),
        ("transformer/config.json", {}),
        ("vae_decoder/config.json", {}),
        ("scheduler/scheduler_config.json", {"_class_name": "FlowMatchEulerDiscreteScheduler"}),
        ("text_encoder/model.onnx", {}),
        ("transformer/model.onnx", {}),
        ("vae_decoder/model.onnx", {}),
    ):
        path = klein / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
    catalogue = Catalogue(ServeSettings(folders=(klein, little)))
    return SimpleNamespace(catalogue=catalogue, current_model="klein", models=lambda: catalogue.models(()))


def chosen(one):
    return one.steps, one.guidance_scale


def test_an_order_tells_the_steps_and_guidance_that_it_is_drawn_with(service, little):
    completed = Service._completed
    assert chosen(completed(service, Order(prompt=""))) == (4, 1.0)
    assert chosen(completed(service, Order(prompt="", steps=9))) == (9, 1.0)
    assert chosen(completed(service, Order(prompt="", model=little.name))) == (50, 7.5)
    several = Order.model_validate({"prompt": "", "x": {"field": "model", "values": ["klein", little.name]}})
    assert not completed(service, several).model_fields_set & {"steps", "guidance_scale"}


def test_a1111_s_own_choices_are_for_stable_diffusion_alone(service, little, monkeypatch):
    monkeypatch.setattr("olivelike.serve.api.a1111.service_of", lambda request: service)
    drawn = "klein"
    monkeypatch.setattr("olivelike.serve.api.a1111.model_of", lambda request: drawn)

    def settled(**fields):
        asked = TextToImage(**fields)
        asked = _with_usual(_model(None, asked), asked)
        return asked.steps, asked.cfg_scale, asked.kept["steps"]

    assert settled() == settled(steps=None) == (4, 1.0, 4)
    assert settled(steps=20, cfg_scale=3) == (20, 3.0, 20)
    named = {"sd_model_checkpoint": little.name}
    assert settled(override_settings=named) == (50, 7.0, 50)
    drawn = little.name
    assert settled() == (50, 7.0, 50)
    assert settled(override_settings={"sd_model_checkpoint": "klein"}) == (4, 1.0, 4)


def test_samplers_and_schedule_types_are_listed_that_the_chosen_model_is_drawn_with(service, little, monkeypatch):
    monkeypatch.setattr("olivelike.serve.api.a1111_lists.service_of", lambda request: service)
    drawn = "klein"
    monkeypatch.setattr("olivelike.serve.api.a1111_lists.model_of", lambda request: drawn)

    def listed():
        return [[one["name"] for one in asyncio.run(route(None))] for route in (samplers, a1111_schedulers)]

    def native(model=None):
        return [one["name"] for one in json.loads(asyncio.run(schedulers(service, model)).body)]

    noiseless = {"sgm_uniform", "turbo", "ddim", "kl_optimal", "align_your_steps"}
    assert listed() == [["Euler"], [name for name in SCHEDULE_NAMES if name not in noiseless]]
    euler = ["Euler", "Euler Karras", "Euler Exponential", "Euler Beta", "EulerDiscrete", "EulerDiscreteScheduler"]
    assert native() == euler
    assert {*native(little.name)} > {"Euler a", "DPM++ 2M Karras", *euler}
    drawn = little.name
    assert listed() == [list(SAMPLERS), list(SCHEDULE_NAMES)]


def test_negative_prompts_that_programs_send_to_each_model_are_left_out_with_a_warning(service, little, monkeypatch):
    monkeypatch.setattr("olivelike.serve.api.a1111.service_of", lambda request: service)
    monkeypatch.setattr("olivelike.serve.api.a1111.model_of", lambda request: "klein")
    sent = TextToImage(negative_prompt="blurred", hr_negative_prompt="dark")
    left, (warning,) = _without_negatives(_model(None, sent), sent)
    assert (left.negative_prompt, left.hr_negative_prompt) == ("", "")
    assert warning.startswith("negative_prompt, hr_negative_prompt: not used")
    named = TextToImage(negative_prompt="blurred", override_settings={"sd_model_checkpoint": little.name})
    for asked in (TextToImage(), named):
        assert _without_negatives(_model(None, asked), asked) == (asked, [])

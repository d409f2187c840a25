"""Exported components against torch in float64, at sizes and batches other than the traced ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from olivelike.families.networks import interface_of
from olivelike.measure.network_sizes import CASES, Case, random_inputs
from olivelike.measure.verify.original import relative_error, run_torch
from olivelike.testing import compare_with_torch, run_pass
from olivelike.testing.parity import materialize_model, open_on_cpu, torch_network
from olivelike.workflow.passes import Registry
from tests.fixtures.fusion_networks import short_unet
from tests.fixtures.little_pipeline import little_model

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")
FLOAT16 = Registry.built_in().get("float16").cls


def test_the_cases_are_not_what_the_exporter_saw(tiny):
    for component in COMPONENTS:
        config = tiny(component).architecture.config
        inputs = interface_of(tiny(component).architecture).inputs
        for case in CASES:
            fed = random_inputs(inputs, case, config, seed=0)
            assert all(fed[value.name].shape[0] != value.example[0] for value in inputs if value.name != "timestep")


@pytest.mark.parametrize("component", COMPONENTS)
def test_float32_agrees_with_torch_to_1e_5(component, tiny):
    compare_with_torch(short_unet() if component == "unet" else tiny(component)).require(1e-5)


@pytest.mark.slow
def test_a_unet_of_four_levels_agrees_with_torch_to_1e_5(tiny):
    """Runs of the demo verify it too."""
    compare_with_torch(tiny("unet")).require(1e-5)


@pytest.mark.parametrize("component", COMPONENTS)
def test_float16_agrees_with_torch_to_5e_3(component, tiny):
    model = short_unet() if component == "unet" else tiny(component)
    compare_with_torch(run_pass(FLOAT16, model, target="cpu")).require(5e-3)


@pytest.mark.slow
def test_a_unet_of_any_size_agrees_with_torch_where_levels_cant_be_halved(tiny, tmp_path):
    plain = tiny("unet")
    model = run_pass(Registry.built_in().get("convert").cls, plain, any_size=True)
    for name, one in (("any", model), ("plain", plain)):
        (tmp_path / name).mkdir()
        materialize_model(one, tmp_path / name)
    free, fixed = (open_on_cpu(tmp_path / name) for name in ("any", "plain"))
    random = np.random.default_rng(0)
    for height, width in ((8, 8), (9, 8), (7, 13), (11, 6)):
        feeds = {
            "sample": random.standard_normal((2, 4, height, width), dtype=np.float32),
            "timestep": np.array([977], np.float32),
            "encoder_hidden_states": random.standard_normal((2, 7, 32), dtype=np.float32),
        }
        (actual,) = free.run(None, feeds)
        (expected,) = run_torch(torch_network(plain), feeds)
        assert relative_error(actual, expected) <= 1e-5
        if height == width:
            assert (actual == fixed.run(None, feeds)[0]).all()


def test_each_picture_of_a_batch_may_have_its_own_timestep(tmp_path):
    model = little_model("attending", "unet")
    materialize_model(model, tmp_path)
    random = np.random.default_rng(0)
    sample = random.standard_normal((2, 4, 8, 8), dtype=np.float32)
    text = random.standard_normal((2, 7, 32), dtype=np.float32)
    timestep = np.array([3, 977], np.float32)
    feeds = {"sample": sample, "timestep": timestep, "encoder_hidden_states": text}
    (actual,) = open_on_cpu(tmp_path).run(None, feeds)
    (expected,) = run_torch(torch_network(model), feeds)
    assert relative_error(actual, expected) <= 1e-5


def test_the_safety_checker_flags_and_blackens_the_pictures_that_torch_flags(tiny):
    """With the thresholds of the tiny checkpoint no picture is flagged: put them between the pictures' scores."""
    model = tiny("safety_checker")
    case = Case(16, 8, 24)
    inputs = interface_of(model.architecture).inputs
    feeds = random_inputs(inputs, case, model.architecture.config, seed=0)
    network = torch_network(model).network
    with torch.no_grad():
        pictures = network.visual_projection(network.vision_model(torch.from_numpy(feeds["clip_input"]).double())[1])
    scores = torch.nn.functional.normalize(pictures) @ torch.nn.functional.normalize(network.concept_embeds).T
    thresholds = torch.quantile(scores, 0.97, dim=0).float().numpy()
    changed = model.weights.replace({"concept_embeds_weights": model.tensors.write(thresholds)})
    model = model.replace(weights=changed)

    flagged = run_torch(torch_network(model), feeds)[1]

    assert 0 < flagged.sum() < len(flagged)
    comparison = compare_with_torch(model, reference=model, cases=[case])
    assert comparison.errors[case]["has_nsfw_concepts"] == 0
    assert comparison.worst <= 1e-6

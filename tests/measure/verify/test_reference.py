"""The torch network that reads its weights as its layers run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from olivelike.errors import PassError
from olivelike.families import FAMILIES
from olivelike.families.networks import interface_of
from olivelike.measure.network_sizes import Case, random_inputs
from olivelike.measure.verify import picture_comparison
from olivelike.measure.verify.original import Reference, run_torch
from olivelike.sources.identify.published import tokenizer_files
from olivelike.testing.models import load_model
from olivelike.testing.parity import torch_network
from tests.fixtures.little_pipeline import little_checkpoint

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")


def inputs_of(model):
    config = model.architecture.config
    return random_inputs(interface_of(model.architecture).inputs, Case(2, 16, 8, 9), config, 1)


@pytest.mark.parametrize(
    ("kind", "component"), [*(("sd", name) for name in COMPONENTS), ("xl", "text_encoder_2"), ("xl", "unet")]
)
def test_it_computes_what_the_network_with_all_its_weights_does(one_torch_thread, kind, component):
    model = load_model(little_checkpoint(kind), component)
    feeds = inputs_of(model)
    found = Reference(model.architecture, model.parameter)(feeds)
    for array, expected in zip(found, run_torch(torch_network(model), feeds), strict=True):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


def test_layers_hold_no_weights_before_and_after(one_torch_thread):
    model = load_model(little_checkpoint(), "vae_decoder")
    reference = Reference(model.architecture, model.parameter)

    def resident():
        return [name for name, value in reference._module.named_parameters() if value.device.type != "meta"]

    assert resident() == []
    reference(inputs_of(model))
    assert resident() == []


def test_weights_of_another_network_are_refused(one_torch_thread):
    model = load_model(little_checkpoint(), "vae_decoder")

    def cut(name):
        return model.parameter(name)[:1]

    with pytest.raises(PassError, match="belong to different networks"):
        Reference(model.architecture, cut)(inputs_of(model))


def test_a_tokenizer_of_this_package_has_the_template_of_its_family():
    (text,) = FAMILIES["flux2"].texts
    extras = tokenizer_files(FAMILIES["flux2"])
    tokenizer = picture_comparison._tokenizer(SimpleNamespace(source=SimpleNamespace(extras=extras)), text)
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "a cat"}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert said == "a cat".join(text.template)


def test_the_clip_tokenizer_of_a_single_file_has_its_vocabulary():
    (text,) = FAMILIES["sd1"].texts
    extras = tokenizer_files(FAMILIES["sd1"])
    tokenizer = picture_comparison._tokenizer(SimpleNamespace(source=SimpleNamespace(extras=extras)), text)
    assert len(tokenizer) == 49_408
    assert tokenizer("a photo of a cat").input_ids == [49406, 320, 1125, 539, 320, 2368, 49407]

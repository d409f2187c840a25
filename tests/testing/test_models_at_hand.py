"""Models whose weights are at hand."""

from __future__ import annotations

import json

import pytest
import torch
from diffusers import UNet2DConditionModel

from olivelike.errors import SourceError
from olivelike.model import Architecture
from olivelike.testing import load_model, make_checkpoint, random_model, tiny_model
from olivelike.testing.models import tiny_checkpoint
from olivelike.testing.parity import torch_network


def test_a_component_of_the_tiny_checkpoint_is_made_once():
    model = tiny_model("vae_decoder")
    assert tiny_model("vae_decoder") is model
    assert model.digests().keys() == {"architecture", "weights"}
    assert model.component == model.architecture.component == "vae_decoder"


def test_its_weights_are_those_of_the_checkpoint():
    model = tiny_model("unet")
    network = UNet2DConditionModel.from_pretrained(tiny_checkpoint() / "unet")
    for name, value in network.state_dict().items():
        assert torch.equal(torch.from_numpy(model.parameter(name)), value)


def test_seeds_differ_in_their_weights_and_share_their_graph(tiny):
    first, second = tiny("text_encoder"), tiny("text_encoder", seed=1)
    assert second.graph is first.graph
    assert second.architecture == first.architecture
    assert (second.parameter("final_layer_norm.bias") != first.parameter("final_layer_norm.bias")).any()


def test_a_component_that_the_checkpoint_lacks_is_an_error():
    with pytest.raises(SourceError, match="has no text_encoder_2"):
        tiny_model("text_encoder_2")


def test_a_checkpoint_of_an_older_generation_is_the_same_model(tmp_path):
    folder = make_checkpoint(tmp_path, layout="hub", variant="fp16")
    old, new = load_model(folder, "vae_encoder"), tiny_model("vae_encoder")
    assert old.architecture.digest == new.architecture.digest
    assert all((old.parameter(name) == new.parameter(name)).all() for name in new.weights)
    half = load_model(folder, "vae_encoder", variant="fp16")
    assert {tensor.dtype for tensor in half.weights.values()} == {"F16"}


def test_any_architecture_gets_random_weights():
    config = json.loads(json.dumps(tiny_model("vae_encoder").architecture.config)) | {"latent_channels": 2}
    architecture = Architecture("vae_encoder", "diffusers", "AutoencoderKL", config)
    model = random_model(architecture, seed=3)
    with torch.no_grad():
        mean, parameters = torch_network(model)(torch.zeros(1, 3, 16, 24, dtype=torch.float64))
    assert (mean.shape, parameters.dtype) == ((1, 2, 2, 3), torch.float64)
    assert random_model(architecture, seed=3).weights.digest == model.weights.digest
    assert random_model(architecture, seed=4).weights.digest != model.weights.digest

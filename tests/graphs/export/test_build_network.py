"""Architectures that can't be exported, and interfaces of the ones that can."""

from __future__ import annotations

import logging

import numpy as np
import onnxruntime
import pytest
import torch

from olivelike.errors import PassError, UsageError
from olivelike.families import networks
from olivelike.families.network import Input, Interface, Network, stored_values
from olivelike.families.networks import classes_of, interface_of
from olivelike.graphs.export import export_component, exporter
from olivelike.graphs.export.torch_network import build_network
from olivelike.model import Architecture
from olivelike.testing.models import load_model
from tests.fixtures.little_pipeline import little_checkpoint


def test_a_network_is_built_without_memory_for_its_parameters(tiny):
    network = build_network(tiny("vae_encoder").architecture)
    assert {parameter.device for parameter in network.parameters()} == {torch.device("meta")}
    assert not network.training


def test_an_unknown_class_is_named():
    with pytest.raises(PassError, match=r"unet: neither diffusers nor transformers has a class 'UNetOfTomorrow'"):
        build_network(Architecture("unet", "diffusers", "UNetOfTomorrow", {}))


def test_a_config_that_the_class_refuses_is_an_error_of_the_component():
    config = {"down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"] * 2}
    with pytest.raises(PassError, match="unet: UNet2DConditionModel refuses its config"):
        build_network(Architecture("unet", "diffusers", "UNet2DConditionModel", config))


def test_a_component_that_convert_does_not_know_is_a_usage_error():
    with pytest.raises(UsageError, match="'prior'"):
        interface_of(Architecture("prior", "diffusers", "PriorTransformer", {}))


def test_what_torch_cannot_trace_is_one_sentence_and_the_rest_is_in_the_log(caplog):
    """A checker for pictures of four channels is given three."""
    found = load_model(little_checkpoint(), "safety_checker").architecture
    config = {**found.config, "vision_config": {**found.config["vision_config"], "num_channels": 4}}
    changed = Architecture("safety_checker", found.library, found.class_name, config)
    with pytest.raises(PassError) as caught:
        export_component(changed, logging.getLogger("x"))
    message = str(caught.value)
    assert message.startswith("safety_checker: torch.onnx.export can't trace StableDiffusionSafetyChecker: ")
    assert message.endswith("or leave the component out (the log has all that torch said)")
    assert "\n" not in message
    assert "\x1b" not in message
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("component", ["unet", "vae_decoder", "text_encoder", "safety_checker"])
def test_a_config_without_what_decides_the_interface_is_no_key_error(component):
    with pytest.raises(PassError, match=f"{component}: its config has no '.*', which decides the inputs"):
        interface_of(Architecture(component, "diffusers", classes_of(component)[0], {}))


def test_nor_is_one_without_a_value_for_it():
    with pytest.raises(PassError, match="its config has no value for a setting, which decides the inputs"):
        interface_of(Architecture("unet", "diffusers", "UNet2DConditionModel", {"block_out_channels": None}))


class Scaled(torch.nn.Module):
    """A layer with numbers that a file stores, some of them under two names, and others that it does not."""

    def __init__(self, *, beside=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.full((3,), 2.0))
        self.register_buffer("seen", torch.tensor(7))
        self.register_buffer("table", torch.full((3,), 5.0), persistent=False)
        self.first, self.second = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.beside = [self.mean] if beside else []

    def forward(self, sample):
        mean = self.beside[0] if self.beside else self.mean
        return self.second(sample * self.weight) + mean + self.table


class Cropped(torch.nn.Module):
    """Positions from the middle of a table, as Stable Diffusion 3 takes them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(8.0))

    def forward(self, sample):
        length = sample.shape[1]
        first = (8 - length) // 2
        return sample + self.table[first : first + length]


@pytest.fixture
def export(monkeypatch):
    """Exports such a layer."""

    def export(network, dims):
        interface = Interface((Input("sample", "float32", dims, (2, 3)),), ("out",))
        name = type(network).__name__
        known = Network(
            name, ("unet",), lambda config: interface, lambda network: lambda self, sample: self.network(sample)
        )
        monkeypatch.setattr(networks, "NETWORKS", (known,))
        monkeypatch.setattr(exporter, "build_network", lambda architecture: network)
        return export_component(Architecture("unet", "diffusers", name, {}), logging.getLogger("x"))

    return export


def test_what_a_file_stores_leaves_the_graph_whether_parameter_or_buffer(export):
    inputs = [value.name for value in export(Scaled(), ("batch", None)).to_ir().graph.inputs]
    assert inputs == ["sample", "mean", "second.weight", "weight"]
    assert set(stored_values(Scaled())) == {"weight", "mean", "first.weight", "second.weight"}


def test_a_stored_value_that_would_stay_as_a_constant_is_a_fault(export):
    with pytest.raises(PassError, match="has a constant, '.*', of what files store"):
        export(Scaled(beside=True), ("batch", None))


def test_a_size_is_halved_as_torch_halves_it(export):
    """In the trace the end of the piece is a sum with half of the length's negative."""
    session = onnxruntime.InferenceSession(export(Cropped(), ("batch", "length")).data)
    table = np.arange(8, dtype=np.float32)
    for length in range(1, 9):
        sample = np.ones((1, length), np.float32)
        expected = Cropped()(torch.from_numpy(sample)).numpy()
        assert np.array_equal(session.run(None, {"sample": sample, "table": table})[0], expected)

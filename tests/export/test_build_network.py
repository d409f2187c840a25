"""Architectures that can't be exported, and interfaces of the ones that can."""

from __future__ import annotations

import pytest
import torch

from olivelike.errors import PassError, UsageError
from olivelike.export.interface import interface_of
from olivelike.export.network import build_network
from olivelike.model import Architecture


def test_a_network_is_built_without_memory_for_its_parameters(tiny):
    network = build_network(tiny("vae_encoder").architecture)
    assert {parameter.device for parameter in network.parameters()} == {torch.device("meta")}
    assert not network.training


def test_an_unknown_class_is_named():
    with pytest.raises(
        PassError, match=r"unet: neither diffusers nor transformers has a class 'UNetOfTomorrow'"
    ):
        build_network(Architecture("unet", "diffusers", "UNetOfTomorrow", {}))


def test_a_config_that_the_class_refuses_is_an_error_of_the_component():
    config = {"down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"] * 2}
    with pytest.raises(PassError, match="unet: UNet2DConditionModel refuses its config"):
        build_network(Architecture("unet", "diffusers", "UNet2DConditionModel", config))


def test_a_component_that_convert_does_not_know_is_a_usage_error():
    with pytest.raises(UsageError, match="'image_encoder'"):
        interface_of("image_encoder", {})

from __future__ import annotations

import pytest

from olivelike.families import half_policy
from olivelike.model import Architecture


def unet(**config):
    return Architecture("unet", "diffusers", "UNet2DConditionModel", config)


def vae(component="vae_decoder", **config):
    return Architecture(component, "diffusers", "AutoencoderKL", config)


@pytest.mark.parametrize("width", [1024, [1024, 1024, 1024, 1024]])
def test_attention_of_stable_diffusion_2_stays_in_float32(width):
    policy = half_policy(unet(cross_attention_dim=width))
    assert set(policy.operators) == {"Attention", "MultiHeadAttention"}
    assert not policy.whole
    assert "2.x" in policy.reason


@pytest.mark.parametrize("width", [768, 2048, [1024, 2048]])
def test_other_generations_have_no_policy_for_the_unet(width):
    assert half_policy(unet(cross_attention_dim=width)) == half_policy(vae("vae_encoder"))


def test_the_vae_decoder_of_sdxl_stays_in_float32_as_a_whole():
    policy = half_policy(vae(scaling_factor=0.13025, force_upcast=True))
    assert policy.whole
    assert "force_upcast" in policy.reason
    assert half_policy(vae(scaling_factor=0.13025)).whole


def test_a_float16_safe_vae_is_converted():
    assert not half_policy(vae(scaling_factor=0.13025, force_upcast=False)).whole


def test_the_encoder_and_older_vaes_are_converted():
    assert not half_policy(vae("vae_encoder", scaling_factor=0.13025, force_upcast=True)).whole
    assert not half_policy(vae(scaling_factor=0.18215, force_upcast=True)).whole

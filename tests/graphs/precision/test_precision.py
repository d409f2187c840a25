from __future__ import annotations

from collections import Counter

import pytest

from olivelike.families import half_policy
from olivelike.graphs.precision import HalfPrecision
from olivelike.model import Architecture
from olivelike.model.graph import BLOCK_KEY
from olivelike.testing.models import load_model, traced_graph
from tests.fixtures.little_flux2 import little_flux2
from tests.fixtures.little_qwen_image import little_qwen_image
from tests.fixtures.little_z_image import little_z_image

FLUX = {"transformer_blocks.0", "single_transformer_blocks.0"}
QWEN_IMAGE = {"transformer_blocks.0"}
Z_IMAGE = {"layers.0", "layers.0.feed_forward", "layers.0.feed_forward.w2"}


def unet(**config):
    return Architecture("unet", "diffusers", "UNet2DConditionModel", config)


def vae(component="vae_decoder", **config):
    return Architecture(component, "diffusers", "AutoencoderKL", config)


@pytest.mark.parametrize(
    ("folder", "clips"), [(little_flux2, FLUX), (little_z_image, Z_IMAGE), (little_qwen_image, QWEN_IMAGE)]
)
def test_streams_of_transformers_are_clipped_in_float16(folder, clips):
    """Sums behind attention and feed-forward layers of each block; of Z-Image what goes into its norms, too."""
    architecture = load_model(folder(), "transformer").architecture
    model = traced_graph(architecture).to_ir()
    before = sum(node.op_type == "Clip" for node in model.graph)
    counts = HalfPrecision(model, clipped=half_policy(architecture).clipped).convert()
    assert counts["clipped"] == sum(node.op_type == "Clip" for node in model.graph) - before
    blocks = Counter(node.metadata_props.get(BLOCK_KEY) for node in model.graph if node.op_type == "Clip")
    assert clips <= blocks.keys()


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

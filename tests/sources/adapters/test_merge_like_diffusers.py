"""What diffusers loads is merged to the same weights as its own `load_lora_weights` and `fuse_lora`."""

from __future__ import annotations

import numpy as np
import pytest

from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora

WEIGHT = 0.7


def fuse(networks, path, weight):
    """Return the networks' weights after diffusers has fused a LoRA."""
    import diffusers

    built = {name: network.build() for name, network in networks.items()}
    scheduler = diffusers.DDIMScheduler(steps_offset=1, clip_sample=False)
    if "text_encoder_2" in built:
        pipeline = diffusers.StableDiffusionXLPipeline(
            vae=None, tokenizer=None, tokenizer_2=None, scheduler=scheduler, add_watermarker=False, **built
        )
    else:
        pipeline = diffusers.StableDiffusionPipeline(
            vae=None, tokenizer=None, safety_checker=None, feature_extractor=None, scheduler=scheduler,
            requires_safety_checker=False, **built,
        )  # fmt: skip
    pipeline.load_lora_weights(str(path))
    pipeline.fuse_lora(components=list(built), lora_scale=weight)
    pipeline.unload_lora_weights()
    return {
        component: {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
        for component, network in built.items()
    }


def distance(actual, expected):
    return np.linalg.norm(actual.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64))


def check(networks, path, weight=WEIGHT):
    lora = open_lora(path)
    expected = fuse(networks, path, weight)
    for component in lora.components:
        network = networks[component]
        merged = network.merge((lora, weight))
        changed = {
            name for name, values in expected[component].items() if not np.array_equal(values, network.state[name])
        }
        assert merged.keys() == changed
        worst = max(distance(values, expected[component][name]) for name, values in merged.items())
        assert worst < 1e-6


@pytest.mark.parametrize(
    ("style", "modules"),
    [
        ("diffusers_old", "attention"),
        ("diffusers_mid", "attention"),
        ("peft", "all"),
        ("kohya", "attention+ff"),
        ("locon", "all"),
        ("dora_peft", "attention"),
    ],
)
def test_sd1_weights_equal_those_that_diffusers_fuses(style, modules, sd1, tmp_path):
    path = make_lora(tmp_path / "lora.safetensors", style, base=sd1.shapes, alpha=2.5, modules=modules)
    check(sd1, path, 1.0 if style == "dora_peft" else WEIGHT)


@pytest.mark.parametrize(
    "style", ["kohya_sdxl", pytest.param("kohya", marks=pytest.mark.slow), pytest.param("peft", marks=pytest.mark.slow)]
)
def test_sdxl_weights_equal_those_that_diffusers_fuses(style, sdxl, tmp_path):
    path = make_lora(
        tmp_path / "lora.safetensors", style, base=sdxl.shapes, alpha=3, components=tuple(sdxl),
        modules="attention+ff",
    )  # fmt: skip
    check(sdxl, path)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_files_in_half_precision_are_merged_in_float32_as_diffusers_does(dtype, sd1, tmp_path):
    path = make_lora(tmp_path / "lora.safetensors", "kohya", base=sd1.shapes, alpha=2.5, dtype=dtype)
    check(sd1, path)

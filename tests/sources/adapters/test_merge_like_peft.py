"""What diffusers can't load is merged to the same weights as PEFT's own `merge_and_unload`."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora

ALPHA = 3.0
RANK = 2


def merge_with_peft(network, config, factors):
    """Return a network's weights after PEFT has merged factors: layer → role → values."""
    import torch
    from peft import get_peft_model

    model = get_peft_model(network.build(), config)
    for layer, roles in factors.items():
        tuned = model.base_model.model.get_submodule(layer)
        for role, values in roles.items():
            tensor = torch.from_numpy(values)
            if role in ("lora_A", "lora_B"):
                getattr(tuned, role)["default"].weight.data = tensor
            elif role == "lora_magnitude_vector":
                tuned.lora_magnitude_vector["default"].weight.data = tensor
            else:
                assert getattr(tuned, role)["default"].shape == tensor.shape
                getattr(tuned, role)["default"].data = tensor
    merged = model.merge_and_unload()
    return {name: tensor.detach().numpy() for name, tensor in merged.state_dict().items()}


def native_factors(folder):
    """Return layer → role → values of a file in PEFT's own names."""
    factors = {}
    for key, values in load_file(folder / "adapter_model.safetensors").items():
        layer, _, role = key.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        factors.setdefault(layer, {})[role] = values
    return factors


def check(network, path, expected):
    merged = network.merge(open_lora(path))
    changed = {name for name, values in expected.items() if not np.array_equal(values, network.state[name])}
    assert merged.keys() == changed
    for name, values in merged.items():
        error = np.linalg.norm(values - expected[name]) / np.linalg.norm(expected[name])
        assert error < 1e-6, name


@pytest.mark.parametrize("modules", [pytest.param("attention+ff", marks=pytest.mark.slow), "all"])
@pytest.mark.parametrize("kind", ["loha", "lokr"])
def test_lycoris_kinds_equal_pefts_own_merge(kind, modules, sd1, tmp_path):
    from peft import LoHaConfig, LoKrConfig

    network = sd1["unet"]
    folder = make_lora(
        tmp_path / "lora", f"peft_native_{kind}", base=sd1.shapes, components=("unet",),
        rank=RANK, alpha=ALPHA, modules=modules,
    )  # fmt: skip
    factors = native_factors(folder)
    config_class = {"loha": LoHaConfig, "lokr": LoKrConfig}[kind]
    config = config_class(r=RANK, alpha=ALPHA, target_modules=list(factors))
    check(network, folder, merge_with_peft(network, config, factors))


@pytest.mark.parametrize("kind", ["loha", "lokr"])
def test_kohya_spelling_of_a_lycoris_kind_gives_the_same_weights_as_pefts(kind, sd1, tmp_path):
    # Rank 1 is below half of each factor's sides: where both factors are whole, kohya's scale is 1 and PEFT's not.
    options = {"base": sd1.shapes, "components": ("unet",), "rank": 1, "alpha": ALPHA}
    native = open_lora(make_lora(tmp_path / "native", f"peft_native_{kind}", **options))
    kohya = open_lora(make_lora(tmp_path / "kohya.safetensors", kind, **options))
    expected, actual = (sd1["unet"].merge(lora) for lora in (native, kohya))
    assert kohya.ranks == {1}
    assert None not in {module.rank for module in kohya.modules.values()}
    assert actual.keys() == expected.keys()
    assert all(np.array_equal(values, expected[name]) for name, values in actual.items())


def test_plain_lora_in_pefts_own_names_equals_pefts_own_merge(sd1, tmp_path):
    from peft import LoraConfig

    network = sd1["unet"]
    folder = make_lora(
        tmp_path / "lora", "peft_native", base=sd1.shapes, components=("unet",), rank=RANK, alpha=ALPHA, modules="all"
    )
    factors = native_factors(folder)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(factors))
    check(network, folder, merge_with_peft(network, config, factors))


def test_dora_in_kohya_names_equals_pefts_own_merge(sd1, tmp_path):
    from peft import LoraConfig

    network = sd1["unet"]
    options = {"base": sd1.shapes, "components": ("unet",), "rank": RANK, "alpha": ALPHA, "modules": "all"}
    path = make_lora(tmp_path / "dora.safetensors", "dora", **options)
    reference = load_file(make_lora(tmp_path / "peft.safetensors", "dora_peft", **options))
    factors = {}
    for key, values in reference.items():
        layer, _, role = key.removeprefix("unet.").removesuffix(".weight").rpartition(".")
        factors.setdefault(layer, {})[role] = values
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(factors), use_dora=True)
    check(network, path, merge_with_peft(network, config, factors))


def test_rank_stabilised_scale_equals_pefts_own_merge(sd1, tmp_path):
    import json

    from peft import LoraConfig

    network = sd1["unet"]
    folder = make_lora(tmp_path / "lora", "peft_native", base=sd1.shapes, components=("unet",), rank=RANK, alpha=ALPHA)
    path = folder / "adapter_config.json"
    layer = "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    changes = {"use_rslora": True, "alpha_pattern": {layer: 7.0}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    factors = native_factors(folder)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(factors), **changes)
    check(network, folder, merge_with_peft(network, config, factors))

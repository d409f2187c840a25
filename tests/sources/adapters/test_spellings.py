"""Any prefix before any spelling: one LoRA under all of them gives the weights that PEFT merges."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from safetensors.numpy import save_file

from olivelike.errors import SourceError
from olivelike.families.networks.clip import OPEN_CLIP
from olivelike.families.networks.unet import LdmNames
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.checkpoints import random_parameter

RANK, ALPHA = 2, 3.0

KOHYA = (".lora_down.weight", ".lora_up.weight")
PEFT = (".lora_A.weight", ".lora_B.weight")
ADAPTER = (".lora_A.default.weight", ".lora_B.default.weight")
LIBRARY = (".lora.down.weight", ".lora.up.weight")
LINEAR = (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight")
OLDEST = ("_lora.down.weight", "_lora.up.weight")


def flat(layer, _):
    return layer.replace(".", "_")


def dotted(layer, _):
    return layer


def processor(layer, _):
    return re.sub(r"\.(to_\w+)(\.0)?$", r".processor.\1", layer)


@cache
def original(layer, layers):
    return LdmNames(layers)(layer)


def flat_original(layer, layers):
    return original(layer, layers).replace(".", "_")


UNET_PREFIXES = ["lora_unet_", "unet.", "transformer.", "model.diffusion_model.", "diffusion_model.",
                 "base_model.model.", "base_model.model.unet.", "lycoris_unet_"]  # fmt: skip
UNET_SPELLINGS = {
    "kohya": (flat, KOHYA), "dots with kohya's roles": (dotted, KOHYA), "PEFT": (dotted, PEFT),
    "PEFT with an adapter": (dotted, ADAPTER), "diffusers": (dotted, LIBRARY), "oldest": (processor, OLDEST),
    "original": (original, KOHYA), "original for kohya": (flat_original, KOHYA), "original in PEFT": (original, PEFT),
}  # fmt: skip


def level(layer, _):
    return f"text_model.{layer}"


def flat_level(layer, _):
    return f"text_model_{layer}".replace(".", "_")


def old_text(layer, _):
    for new, old in {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}.items():
        layer = layer.replace(new, old)
    return f"text_model.{layer}"


TEXT_PREFIXES = ["lora_te_", "lora_te1_", "text_encoder.", "cond_stage_model.", "cond_stage_model.transformer.",
                 "cond_stage_model.clip_l.", "clip_l.transformer.", "base_model.model.",
                 "conditioner.embedders.0.transformer."]  # fmt: skip
TEXT_SPELLINGS = {
    "kohya": (flat_level, KOHYA), "dots with kohya's roles": (level, KOHYA), "PEFT": (level, PEFT),
    "PEFT with an adapter": (level, ADAPTER), "diffusers": (level, LINEAR), "oldest": (old_text, OLDEST),
    "without a level": (dotted, PEFT), "without a level for kohya": (flat, KOHYA),
}  # fmt: skip


class OneLora:
    """Factors for the attention of a network, and what PEFT makes of them."""

    def __init__(self, network):
        import torch
        from peft import LoraConfig, inject_adapter_in_model

        self.network = network
        self.layers = frozenset(
            name.removesuffix(".weight") for name, shape in network.shapes.items()
            if name.endswith(".weight") and len(shape) > 1 and "_embedding.weight" not in name
        )  # fmt: skip
        self.factors = {}
        for layer in sorted(self.layers):
            if re.search(r"attn\d?\.(to_|[qkv]_proj|out_proj)", layer):
                out, width = network.shapes[f"{layer}.weight"]
                self.factors[layer] = {
                    role: random_parameter(f"{layer}/{role}.weight", shape, 0, network.component)
                    for role, shape in (("lora_A", (RANK, width)), ("lora_B", (out, RANK)))
                }
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(self.factors))
        model = inject_adapter_in_model(config, network.build())
        self.expected = {}
        for layer, factors in self.factors.items():
            tuned = model.get_submodule(layer)
            for role, values in factors.items():
                getattr(tuned, role)["default"].weight.data = torch.from_numpy(values)
            name = f"{layer}.weight"
            self.expected[name] = network.state[name] + tuned.get_delta_weight("default").detach().numpy()

    def save(self, path, prefix, spelling):
        spell, roles = spelling
        tensors = {}
        for layer, factors in self.factors.items():
            name = prefix + spell(layer.removeprefix("text_model."), self.layers)
            tensors |= {name + roles[0]: factors["lora_A"], name + roles[1]: factors["lora_B"]}
            tensors[f"{name}.alpha"] = np.array(ALPHA, np.float32)
        save_file(tensors, path)
        return path

    def check(self, path):
        merged = self.network.merge(open_lora(path))
        assert len(merged) == len(self.factors)
        for name, values in merged.items():
            error = np.linalg.norm(values - self.expected[name]) / np.linalg.norm(self.expected[name])
            assert error < 1e-6, name


@pytest.fixture(scope="module")
def one_lora(sd1, sdxl):
    return {(name, part): OneLora(net[part]) for name, net in (("sd1", sd1), ("sdxl", sdxl)) for part in net}


def of_both_families(spellings):
    """Return all spellings for one family, and some for the other, whose numbers of layers differ; the rest is slow."""
    return [
        *(("sd1", spelling) for spelling in spellings),
        *(pytest.param("sdxl", one, marks=() if one in ("kohya", "original", "PEFT") else pytest.mark.slow)
          for one in spellings),
    ]  # fmt: skip


@pytest.mark.parametrize(("family", "spelling"), of_both_families(UNET_SPELLINGS))
def test_each_spelling_of_a_unets_layers_stands_behind_each_prefix(family, spelling, one_lora, tmp_path):
    one = one_lora[family, "unet"]
    for number, prefix in enumerate(UNET_PREFIXES):
        one.check(one.save(tmp_path / f"{number}.safetensors", prefix, UNET_SPELLINGS[spelling]))


@pytest.mark.parametrize(("family", "spelling"), of_both_families(TEXT_SPELLINGS))
def test_each_spelling_of_a_text_encoders_layers_stands_behind_each_prefix(family, spelling, one_lora, tmp_path):
    one = one_lora[family, "text_encoder"]
    for number, prefix in enumerate(TEXT_PREFIXES):
        one.check(one.save(tmp_path / f"{number}.safetensors", prefix, TEXT_SPELLINGS[spelling]))


@pytest.mark.parametrize("spelling", TEXT_SPELLINGS)
def test_a_second_text_encoder_is_told_by_its_prefix(spelling, one_lora, tmp_path):
    one = one_lora["sdxl", "text_encoder_2"]
    prefixes = ["lora_te2_", "text_encoder_2.", "conditioner.embedders.1.model.", "clip_g.transformer."]
    for number, prefix in enumerate(prefixes):
        one.check(one.save(tmp_path / f"{number}.safetensors", prefix, TEXT_SPELLINGS[spelling]))


@pytest.mark.parametrize("prefix", ["lora_te2_", "conditioner.embedders.1.model.transformer."])
def test_open_clips_names_are_matched_where_it_has_a_matrix_for_each_layer(prefix, sdxl, tmp_path):
    network, path = sdxl["text_encoder_2"], tmp_path / "a.safetensors"
    own = next(name for name in network.shapes if name.endswith("layers.1.mlp.fc2.weight"))
    out, width = network.shapes[own]
    stored = OPEN_CLIP.original(())(own.removeprefix("text_model.").removesuffix(".weight")).removeprefix(
        "transformer."
    )
    name = prefix + stored
    save_file(
        {f"{name}.lora_down.weight": np.ones((1, width), "f4"), f"{name}.lora_up.weight": np.ones((out, 1), "f4")}, path
    )
    merged = network.merge(open_lora(path))
    assert list(merged) == [own]
    assert np.allclose(merged[own], network.state[own] + 1)


def test_one_lora_of_query_key_and_value_is_refused_as_that(sdxl, tmp_path):
    name, path = "conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj", tmp_path / "a.safetensors"
    save_file(
        {f"{name}.lora_down.weight": np.ones((1, 40), "f4"), f"{name}.lora_up.weight": np.ones((120, 1), "f4")}, path
    )
    with pytest.raises(SourceError, match="query, key and value of text_encoder_2 as one matrix"):
        sdxl["text_encoder_2"].merge(open_lora(path))

"""Files that can't be merged are refused by name and reason, before anything is yielded."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from olivelike.errors import SourceError
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.testing.lora_files import make_lora

BASE = "lora_unet_mid_block_attentions_0_proj_in"


def ones(*shape):
    return np.ones(shape, np.float32)


def saved(path, **shapes):
    """Save tensors of given shapes; `__` in a name stands for a dot."""
    save_file({name.replace("__", "."): ones(*shape) for name, shape in shapes.items()}, path)
    return path


def refuse(path, message):
    with pytest.raises(SourceError, match=message) as caught:
        open_lora(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.diffusion_model.input_blocks.0.0.weight", "a whole checkpoint, no LoRA .*`source:`"),
        ("first_stage_model.decoder.conv_in.weight", "a VAE, no LoRA .*`vae:`"),
        ("decoder.up_blocks.0.resnets.0.conv1.weight", "a VAE, no LoRA .*`vae:`"),
        ("down_blocks.0.resnets.0.conv1.weight", "the weights of a UNet, no LoRA .*`source:`"),
        ("text_model.encoder.layers.0.mlp.fc1.bias", "a text encoder, no LoRA .*`source:`"),
        ("emb_params", "a textual-inversion embedding, no LoRA .*`embeddings:`"),
        ("clip_g", "a textual-inversion embedding, no LoRA .*`embeddings:`"),
        ("<my-token>", "a textual-inversion embedding, no LoRA .*`embeddings:`"),
    ],
)
def test_what_is_no_lora_is_named_and_sent_where_it_belongs(name, message, tmp_path):
    save_file({name: ones(4, 4)}, tmp_path / "file.safetensors")
    refuse(tmp_path / "file.safetensors", message)


@pytest.mark.parametrize(
    ("prefix", "network"),
    [
        ("text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q", "T5"),
        ("diffusion_model.blocks.0.self_attn.q", "Wan, Lumina"),
        ("text_encoder.model.layers.0.self_attn.q_proj", "a language model that reads texts, such as FLUX.2's Qwen3"),
        ("lora_te1_layers_0_mlp_gate_proj", "a language model that reads texts"),
        ("lora_prior_unet_down_blocks_0", "Stable Cascade"),
    ],
)
def test_a_lora_for_another_network_is_refused_by_its_name(prefix, network, tmp_path):
    path = tmp_path / "file.safetensors"
    save_file({f"{prefix}.lora_A.weight": ones(2, 4), f"{prefix}.lora_B.weight": ones(4, 2)}, path)
    refuse(path, f"this LoRA is for .*{network}")


@pytest.mark.parametrize(
    ("suffix", "name"),
    [
        ("diff", "whole differences"),
        ("diff_b", "whole differences"),
        ("oft_blocks", "OFT"),
        ("oft_diag", "OFT"),
        ("a1.weight", "GLoRA"),
        ("on_input", "IA³"),
        ("w_norm", "normalisation"),
        ("lora_B.bias", "a trained bias"),
        ("lora_embedding_A", "embedding table"),
        ("lokr_t1", "LyCORIS tensor"),
        ("surprise", "its format is not known"),
    ],
)
@pytest.mark.parametrize("among_others", [True, False])
def test_other_formats_are_refused_by_name_and_key(suffix, name, among_others, tmp_path):
    tensors = {f"{BASE}.{suffix}": ones(4)}
    if among_others:
        tensors |= {f"{BASE}.lora_down.weight": ones(2, 4), f"{BASE}.lora_up.weight": ones(4, 2)}
    save_file(tensors, tmp_path / "file.safetensors")
    refuse(tmp_path / "file.safetensors", f"{name}.*{BASE}.{suffix}")


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"lora_down.weight": (2, 4)}, "it has down without up"),
        ({"lora_up.weight": (4, 2), "alpha": ()}, "it has alpha, up without down"),
        ({"alpha": ()}, "it has alpha, and no factors"),
        ({"hada_w1_a": (4, 2), "hada_w2_a": (4, 2), "hada_w2_b": (2, 4)}, "without hada_w1_b"),
        ({"lokr_w1": (2, 2)}, "it has lokr_w1 without lokr_w2"),
        ({"lokr_w1": (2, 2), "lokr_w2_a": (2, 1)}, "without lokr_w2_b"),
        ({"lora_down.weight": (2, 4), "lora_up.weight": (4, 3)}, "down and up do not fit.* 2 and 3"),
        ({"lora_down.weight": (2,), "lora_up.weight": (4, 2)}, r"down has shape \[2\]"),
        ({"lora_down.weight": (2, 4), "lora_up.weight": (4, 2), "hada_w1_a": (4, 2)}, "mixes loha and lora"),
        ({"lora_down.weight": (2, 4), "lora_up.weight": (4, 2), "alpha": (3,)}, "should be one number"),
        ({"hada_w1_a": (4, 2), "hada_w1_b": (3, 4), "hada_w2_a": (4, 2), "hada_w2_b": (2, 4)}, "hada_w1_a and"),
        ({"lokr_w1": (2, 2), "lokr_w2": (2, 2), "lokr_w2_a": (2, 1)}, "both whole and in parts"),
        ({"lora_down.weight": (2, 4, 1, 1), "lora_up.weight": (4, 2, 1, 1), "lora_mid.weight": (3, 3, 3, 3)},
         "mid and down do not fit"),
        ({"lora_down.weight": (1, 4, 1, 1), "lora_up.weight": (4, 9, 1, 1), "lora_mid.weight": (9, 1, 1, 1)},
         r"mid has shape \[9, 1, 1, 1\], of two ranks in place of one"),
        ({"hada_t1": (9, 1, 1, 1), "hada_t2": (9, 1, 1, 1), "hada_w1_a": (9, 4), "hada_w1_b": (1, 4),
          "hada_w2_a": (9, 4), "hada_w2_b": (1, 4)}, "hada_t1 has shape"),
    ],
)  # fmt: skip
def test_incomplete_and_unfitting_factors_are_refused(shapes, message, tmp_path):
    save_file({f"{BASE}.{suffix}": ones(*shape) for suffix, shape in shapes.items()}, tmp_path / "a.safetensors")
    refuse(tmp_path / "a.safetensors", f"{BASE}.* {message}" if "one number" not in message else message)


def test_a_file_without_tensors_is_refused(tmp_path):
    save_file({}, tmp_path / "a.safetensors")
    refuse(tmp_path / "a.safetensors", "holds no tensors")


def test_quantised_factors_are_refused(tmp_path):
    tensors = {f"{BASE}.lora_down.weight": np.ones((2, 4), np.int8), f"{BASE}.lora_up.weight": ones(4, 2)}
    save_file(tensors, tmp_path / "a.safetensors")
    refuse(tmp_path / "a.safetensors", "lora_down.weight is stored as I8")


def test_empty_truncated_and_lying_files_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"")
    refuse(path, "empty")
    saved(path, **{f"{BASE}__lora_down__weight": (2, 4), f"{BASE}__lora_up__weight": (4, 2)})
    data = path.read_bytes()
    path.write_bytes(data[:-4])
    refuse(path, "truncated")
    path.write_bytes(data.replace(b"[2,4]", b"[2,5]"))
    refuse(path, "not a valid safetensors file")


def test_a_missing_path_and_an_empty_folder_are_refused(tmp_path):
    refuse(tmp_path / "absent.safetensors", "no such file")
    refuse(tmp_path, "this folder has no LoRA")


def test_a_folder_with_several_files_is_refused(tmp_path):
    for name in ("a", "b"):
        saved(tmp_path / f"{name}.safetensors", x=(1,))
    refuse(tmp_path, "several .safetensors files \\(a.safetensors, b.safetensors\\)")


def test_a_module_in_two_spellings_is_refused(tmp_path):
    tensors = {f"{BASE}.lora_down.weight": ones(2, 4), f"{BASE}.lora_up.weight": ones(4, 2)}
    save_file({**tensors, f"{BASE}.lora_A.weight": ones(2, 4)}, tmp_path / "a.safetensors")
    refuse(tmp_path / "a.safetensors", "stored twice")


@pytest.fixture
def native(sd1, tmp_path):
    return make_lora(tmp_path / "lora", "peft_native", base=sd1.shapes, components=("unet",), alpha=4)


def test_pefts_own_names_without_their_config_are_refused(native):
    (native / "adapter_config.json").unlink()
    with pytest.raises(SourceError, match="adapter_config.json with their alpha is not beside it"):
        open_lora(native)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "OFT"}, "adapter of type OFT can't be merged"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base weights too"),
        ({"r": 7}, "says rank 7 .* have rank 4"),
        ({"lora_alpha": "much"}, "rank or alpha is no number"),
        ({"lora_alpha": "inf"}, "rank or alpha is no number"),
        ({"alpha_pattern": {"to_q": "nan"}}, "rank or alpha is no number"),
    ],
)
def test_configs_that_contradict_the_merge_are_refused(change, message, native):
    path = native / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(SourceError, match=message):
        open_lora(native)


def test_a_damaged_config_is_refused(native):
    (native / "adapter_config.json").write_text("{")
    with pytest.raises(SourceError, match="adapter_config.json can't be read as JSON"):
        open_lora(native)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("role", ["lora_down.weight", "dora_scale", "alpha"])
def test_nan_and_infinity_are_refused_by_key(role, value, sd1, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "dora", base=sd1.shapes, components=("unet",), alpha=2)
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    key = sorted(name for name in tensors if name.endswith(role))[-1]
    tensors[key].flat[-1] = value
    save_file(tensors, path)
    with pytest.raises(SourceError, match=f"{key} (holds NaN|is {value})"):
        sd1["unet"].merge(open_lora(path))


def test_a_module_without_a_layer_in_the_network_is_refused(sd1, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=sd1.shapes, components=("unet",))
    stray = "lora_unet_mid_block_attentions_7_proj_in"
    save_file({**load_file(path), f"{stray}.lora_down.weight": ones(2, 4), f"{stray}.lora_up.weight": ones(4, 2)}, path)
    with pytest.raises(SourceError, match=f"a.safetensors: 1 modules have no layer in unet, of 81 for it: {stray}"):
        sd1["unet"].merge(open_lora(path))


def test_factors_of_another_width_are_refused_by_layer(sd1, sdxl, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=sdxl.shapes, components=("text_encoder",))
    with pytest.raises(SourceError, match="does not fit encoder.layers.0.* of text_encoder, whose shape is"):
        sd1["text_encoder"].merge(open_lora(path))


def test_a_kernel_that_is_not_the_layers_is_refused(sd1, tmp_path):
    path = tmp_path / "a.safetensors"
    # As many values per row as (4, 3, 3), in another arrangement.
    saved(path, lora_unet_conv_in__lora_down__weight=(2, 36, 1, 1), lora_unet_conv_in__lora_up__weight=(16, 2, 1, 1))
    with pytest.raises(SourceError, match="does not fit conv_in.weight"):
        sd1["unet"].merge(open_lora(path))


def test_two_names_of_one_layer_are_refused(sd1, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=sd1.shapes, components=("text_encoder",))
    tensors = load_file(path)
    save_file({**tensors, **{name.replace("lora_te_", "lora_te1_"): v for name, v in tensors.items()}}, path)
    with pytest.raises(SourceError, match="both change encoder.layers.0"):
        sd1["text_encoder"].merge(open_lora(path))


def test_all_checks_are_made_before_the_first_tensor(sd1, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "kohya", base=sd1.shapes, components=("unet",))
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    tensors[max(tensors)].flat[0] = np.nan
    save_file(tensors, path)
    with pytest.raises(SourceError, match="NaN"):
        sd1["unet"].merge(open_lora(path), state={"": "nothing can be read"})


def test_keys_of_no_known_network_are_counted_and_named(sd1, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", "peft", base=sd1.shapes, components=("unet",))
    stored = load_file(path)
    stray = {f"net_of_ours.{number}.lora_{side}.weight": ones(2, 2) for number in range(4) for side in "AB"}
    save_file({**stored, **stray}, path)
    first = min(stray)
    refuse(path, f"8 of {len(stored) + 8} keys belong to no known network: {first}, .*, and 3 more; a LoRA changes")

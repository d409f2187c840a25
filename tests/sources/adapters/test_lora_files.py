"""The writer of test files spells each format as its trainer does."""

from __future__ import annotations

import pytest
from safetensors.numpy import load_file

from olivelike.testing import make_checkpoint
from olivelike.testing.lora_files import make_lora

TO_OUT = "mid_block.attentions.0.transformer_blocks.0.attn1.to_out.0"
CONV = "up_blocks.0.resnets.2.conv2"
BASE = {
    "unet": {
        f"{TO_OUT}.weight": (8, 8), f"{CONV}.weight": (8, 6, 3, 3),
        "down_blocks.0.resnets.1.conv1.weight": (8, 8, 3, 3), "conv_in.bias": (8,),
    },
    "text_encoder": {
        "encoder.layers.0.self_attn.out_proj.weight": (8, 8), "embeddings.token_embedding.weight": (100, 8),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("style", "name"),
    [
        ("diffusers_old", "unet.mid_block.attentions.0.transformer_blocks.0.attn1.processor.to_out_lora.down.weight"),
        ("diffusers_old", "text_encoder.text_model.encoder.layers.0.self_attn.to_out_lora.up.weight"),
        ("diffusers_mid", f"unet.{TO_OUT}.lora.down.weight"),
        ("diffusers_mid", "text_encoder.text_model.encoder.layers.0.self_attn.out_proj.lora_linear_layer.up.weight"),
        ("peft", f"unet.{TO_OUT}.lora_A.weight"),
        ("kohya", "lora_unet_up_blocks_0_resnets_2_conv2.alpha"),
        ("kohya", "lora_te_text_model_encoder_layers_0_self_attn_out_proj.lora_up.weight"),
        ("kohya_sdxl", "lora_unet_output_blocks_2_0_out_layers_3.lora_down.weight"),
        ("kohya_sdxl", "lora_unet_middle_block_1_transformer_blocks_0_attn1_to_out_0.lora_up.weight"),
        ("kohya_sdxl", "lora_te1_text_model_encoder_layers_0_self_attn_out_proj.lora_up.weight"),
        ("locon_mid", "lora_unet_up_blocks_0_resnets_2_conv2.lora_mid.weight"),
        ("loha_mid", "lora_unet_up_blocks_0_resnets_2_conv2.hada_t1"),
        ("lokr", "lora_unet_up_blocks_0_resnets_2_conv2.lokr_w1"),
        ("dora", "lora_unet_up_blocks_0_resnets_2_conv2.dora_scale"),
        ("dora_peft", f"unet.{CONV}.lora_magnitude_vector.weight"),
    ],
)
def test_names_are_those_of_the_format(style, name, tmp_path):
    path = make_lora(tmp_path / "a.safetensors", style, base=BASE, modules="all", alpha=1)
    tensors = load_file(path)
    assert name in tensors
    assert not any("embedding" in key or "conv_in" in key for key in tensors)


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(tmp_path):
    options = {"base": BASE, "modules": "all"}
    first, same, other = (
        make_lora(tmp_path / f"{n}.safetensors", "kohya", seed=seed, **options).read_bytes()
        for n, seed in enumerate((1, 1, 2))
    )
    assert first == same
    assert first != other


def test_a_checkpoint_folder_serves_as_base(tmp_path):
    folder = make_checkpoint(tmp_path / "sd15", layout="hub")
    tensors = load_file(make_lora(tmp_path / "a.safetensors", "kohya", base=folder, rank=2))
    assert tensors["lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight"].shape == (2, 32)
    assert sum(name.startswith("lora_unet_") for name in tensors) == 2 * 16 * 8


def test_what_a_format_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one component"):
        make_lora(tmp_path / "a", "peft_native", base=BASE)
    with pytest.raises(ValueError, match="no layer"):
        make_lora(tmp_path / "a", "kohya", base={"unet": {"conv_in.weight": (8, 4, 3, 3)}}, components=("unet",))

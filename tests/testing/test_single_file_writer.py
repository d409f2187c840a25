"""Single files hold what model sites hold."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from olivelike.testing import make_checkpoint, make_single_file
from olivelike.testing.__main__ import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("sdxl") / "a", "sdxl")


def test_the_layout_is_that_of_the_original_code(folder, tmp_path) -> None:
    tensors = load_file(make_single_file(folder, tmp_path / "a.safetensors"))
    clip = "conditioner.embedders.1.model."
    stored = load_file(folder / "text_encoder_2/model.safetensors")
    assert torch.equal(tensors[f"{clip}text_projection"], stored["text_projection.weight"].T)
    attention = "text_model.encoder.layers.1.self_attn."
    fused = torch.cat([stored[f"{attention}{x}_proj.bias"] for x in "qkv"])
    assert torch.equal(tensors[f"{clip}transformer.resblocks.1.attn.in_proj_bias"], fused)
    assert tensors["first_stage_model.decoder.mid.attn_1.q.weight"].shape == (64, 64, 1, 1)
    assert "conditioner.embedders.0.transformer.text_model.embeddings.position_ids" in tensors
    assert "model.diffusion_model.label_emb.0.0.weight" in tensors


def test_dtype_prefixes_marks_and_metadata_are_chosen(folder, tmp_path) -> None:
    path = make_single_file(
        folder,
        tmp_path / "vae.safetensors",
        dtype="BF16",
        components=["vae"],
        prefixes=False,
        marks=["v_pred"],
        metadata={"modelspec.title": "x"},
    )
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "modelspec.title": "x"}
        stored = load_file(folder / "vae/diffusion_pytorch_model.safetensors")["quant_conv.weight"]
        assert torch.equal(file.get_tensor("quant_conv.weight"), stored.bfloat16())
        assert file.get_tensor("v_pred").numel() == 0


def test_tensors_are_equal_in_a_pickled_file(folder, tmp_path) -> None:
    safe = load_file(make_single_file(folder, tmp_path / "a.safetensors", dtype="F16"))
    pickled = torch.load(make_single_file(folder, tmp_path / "a.ckpt", dtype="F16", pickled=True))
    assert pickled["global_step"] == 470000
    assert safe.keys() == pickled["state_dict"].keys()
    assert all(torch.equal(safe[name], value) for name, value in pickled["state_dict"].items())


def test_the_command_line_writes_the_same_file(folder, tmp_path, capsys) -> None:
    path = make_single_file(folder, tmp_path / "a.safetensors", dtype="F16")
    assert main(["make-single-file", str(folder), str(tmp_path / "b.safetensors"), "--dtype", "F16"]) == 0
    assert "MB" in capsys.readouterr().out
    assert path.read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_networks_without_original_names_are_refused(folder, tmp_path) -> None:
    tiny = make_checkpoint(tmp_path / "tiny", hollow=True)
    with pytest.raises(ValueError, match="no original names are known for safety_checker"):
        make_single_file(tiny, tmp_path / "a.safetensors", components=["safety_checker"])


@pytest.mark.parametrize(
    ("family", "size", "told"),
    [
        ("sd15", "tiny", "unet has norm_num_groups 8, which no tensor tells, and a file of its family is read with 32"),
        ("sd15", "small", None),
    ],
)
def test_a_folder_that_no_file_can_describe_is_refused(family, size, told, tmp_path, capsys) -> None:
    source = make_checkpoint(tmp_path / "folder", family, size=size, hollow=True)
    status = main(["make-single-file", str(source), str(tmp_path / "a.safetensors")])
    error = capsys.readouterr().err
    assert (status, (tmp_path / "a.safetensors").exists()) == ((0, True) if told is None else (2, False))
    assert error == "" if told is None else f"error: {source} can't be put into one file: {told}" in error


def test_a_missing_folder_is_one_line(tmp_path, capsys) -> None:
    assert main(["make-single-file", str(tmp_path / "none"), str(tmp_path / "a.safetensors")]) == 2
    assert capsys.readouterr().err.endswith(
        "none: has no model_index.json; name a folder that `make-checkpoint` wrote\n"
    )

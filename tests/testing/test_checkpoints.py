from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING

import pytest
import torch
from diffusers import AutoencoderKL, DiffusionPipeline, UNet2DConditionModel
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from transformers import CLIPTextModel, CLIPTokenizer

from olivelike.families import FAMILIES, family_of_folder
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.fit import check_fit, lacking
from olivelike.testing.__main__ import main
from olivelike.testing.checkpoint_configs import KINDS, Family, component_configs
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.single_file_writer import make_single_file

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = {
    "text_encoder": CLIPTextModel,
    "unet": UNet2DConditionModel,
    "vae": AutoencoderKL,
    "safety_checker": StableDiffusionSafetyChecker,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hub"), layout="hub", variant="fp16")


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_one_seed_gives_the_same_bytes_again(saved: Path, tmp_path: Path) -> None:
    assert digests(make_checkpoint(tmp_path)) == digests(saved)


def test_another_seed_changes_the_weights_and_nothing_else(saved: Path, tmp_path: Path) -> None:
    first, second = digests(saved), digests(make_checkpoint(tmp_path, seed=1))
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} == {
        name for name in first if name.endswith(".safetensors")
    }


@pytest.mark.parametrize("component", CLASSES)
def test_both_layouts_load_to_the_same_weights_with_the_real_classes(component: str, saved: Path, hub: Path) -> None:
    load = CLASSES[component].from_pretrained
    first, second = (load(folder / component).state_dict() for folder in (saved, hub))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_variant_holds_the_rounded_weights(hub: Path) -> None:
    exact = AutoencoderKL.from_pretrained(hub / "vae").state_dict()
    half = AutoencoderKL.from_pretrained(hub / "vae", variant="fp16", torch_dtype=torch.float16).state_dict()
    assert all(torch.equal(half[name], exact[name].half()) for name in exact)


def test_the_hub_layout_has_what_hubs_hold(hub: Path) -> None:
    from safetensors import safe_open

    def names(relative: str) -> set[str]:
        with safe_open(hub / relative, "pt") as file:
            return set(file.keys())

    assert (hub / "unet/diffusion_pytorch_model.safetensors.index.json").is_file()
    assert "decoder.mid_block.attentions.0.proj_attn.weight" in names("vae/diffusion_pytorch_model.safetensors")
    assert "text_model.embeddings.position_ids" in names("text_encoder/model.safetensors")
    prefix = "vision_model.vision_model.embeddings."
    assert prefix + "class_embedding" in names("safety_checker/model.safetensors")


def test_outputs_neither_vanish_nor_explode(saved: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        text_encoder = CLIPTextModel.from_pretrained(saved / "text_encoder")
        text = text_encoder(torch.randint(0, 998, (2, 77), generator=generator))[0]
        unet = UNet2DConditionModel.from_pretrained(saved / "unet")
        latent = torch.randn(2, 4, 8, 12, generator=generator)
        noise = unet(latent, torch.tensor([900, 10]), text)[0]
        half = unet.half()(latent.half(), torch.tensor([900, 10]), text.half())[0].float()
        picture = AutoencoderKL.from_pretrained(saved / "vae").decode(latent)[0]
    assert picture.shape == (2, 3, 64, 96)
    for output in (text, noise, picture):
        assert 0.1 < output.std() < 3
    assert (half - noise).norm() / noise.norm() < 1e-2


def test_the_tokenizer_matches_the_text_encoder(saved: Path) -> None:
    tokenizer = CLIPTokenizer.from_pretrained(saved / "tokenizer")
    ids = tokenizer("A photo of a cat, détaillé", padding="max_length", max_length=77).input_ids
    assert len(tokenizer) == component_configs("tiny")["text_encoder"]["vocab_size"] == 1000
    assert (ids[0], ids[-1], len(ids)) == (998, 999, 77)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a photo of a cat , détaillé"


def test_full_size_has_the_published_parameter_count() -> None:
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(component_configs("full")["unet"])
    assert sum(parameter.numel() for parameter in unet.parameters()) == 859_520_964


@pytest.mark.parametrize(
    "family",
    [
        "sd15_inpainting", "sd21", "sdxl",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("sd21_base", "sdxl_refiner")),
    ],
)  # fmt: skip
def test_a_folder_of_each_family_loads_as_its_pipeline(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "a", family)
    pipeline = DiffusionPipeline.from_pretrained(folder)
    assert type(pipeline).__name__ == json.loads((folder / "model_index.json").read_text())["_class_name"]
    tokenizer = getattr(pipeline, "tokenizer_2", None) or pipeline.tokenizer
    encoder = getattr(pipeline, "text_encoder_2", None) or pipeline.text_encoder
    assert len(tokenizer) == encoder.config.vocab_size == 49408
    assert sum(path.stat().st_size for path in folder.rglob("*.safetensors")) < 41e6


def test_hollow_files_have_the_size_of_whole_ones(tmp_path: Path) -> None:
    whole, hollow = (make_checkpoint(tmp_path / str(h), "sdxl", hollow=h) for h in (False, True))
    names = {str(path.relative_to(whole)) for path in whole.rglob("*.safetensors")}
    assert {n: (whole / n).stat().st_size for n in names} == {n: (hollow / n).stat().st_size for n in names}


@pytest.mark.parametrize(
    ("family", "networks", "parameters"),
    [("sd21", ("unet",), 865_910_724), ("sdxl", ("unet",), 2_567_463_684), ("sdxl", ("text_encoder_2",), 694_659_840)],
)
def test_full_size_families_have_the_published_parameter_counts(
    family: str, networks: tuple[str, ...], parameters: int, tmp_path: Path
) -> None:
    from safetensors import safe_open

    folder = make_checkpoint(tmp_path / "a", family, size="full", hollow=True)
    count = 0
    for network in networks:
        (path,) = (folder / network).glob("*.safetensors")
        with safe_open(path, "np") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    assert count == parameters


@pytest.mark.parametrize(
    "option",
    [
        {"family": "sd9"},
        {"size": "huge"},
        {"layout": "odd"},
        {"variant": "int3"},
        {"dtype": "F8"},
        {"size": "tiny", "family": "sdxl"},
        {"layout": "hub", "family": "sd21"},
    ],
)
def test_unknown_choices_are_refused_before_anything_is_written(tmp_path: Path, option: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(option.values()))):
        make_checkpoint(tmp_path / "new", **option)
    assert not (tmp_path / "new").exists()


def test_the_command_line_writes_the_same_folder(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["make-checkpoint", "sd15", "--size", "tiny", "--seed", "0", str(tmp_path / "x")]) == 0
    assert "MB" in capsys.readouterr().out
    assert digests(tmp_path / "x") == digests(saved)


def test_the_index_is_there_only_when_everything_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_index.json").write_text("{}")

    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr("olivelike.testing.checkpoints.write_safetensors", full)
        make_checkpoint(tmp_path)
    assert not (tmp_path / "model_index.json").exists()
    make_checkpoint(tmp_path)
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert names == {"model_index.json"}
    newest = max(path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file())
    assert (tmp_path / "model_index.json").stat().st_mtime_ns == newest


@pytest.mark.parametrize("family", [name for name, kind in KINDS.items() if "transformer" in kind.small])
def test_a_pipeline_with_a_transformer_is_what_diffusers_opens_and_is_told_by_its_configs(
    family: Family, tmp_path: Path
) -> None:
    made = make_checkpoint(tmp_path, family, hollow=family != "flux2_klein")
    facts = FAMILIES[KINDS[family].family]
    opened = open_source(SourceSpec(path=made), facts.networks)
    assert family_of_folder(opened.index, opened.checkpoints, {}).name == facts.name
    assert lacking(opened) == ()
    check_fit(opened)
    pipeline = DiffusionPipeline.from_pretrained(made)
    assert type(pipeline).__name__ == facts.pipelines[0]
    assert pipeline.transformer.config.get("guidance_embeds", family == "flux1_dev") is (family == "flux1_dev")
    for text in facts.texts:
        tokens = getattr(pipeline, text.tokenizer)
        assert (getattr(tokens, "chat_template", None) is None) is (text.kind != "chat")
        assert len(tokens) <= getattr(pipeline, text.component).get_input_embeddings().num_embeddings
    with pytest.raises(ValueError, match="files of pipelines with a transformer hold one network each"):
        make_single_file(made, tmp_path / "one.safetensors")

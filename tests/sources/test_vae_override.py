"""`vae:` puts another VAE in place of a pipeline's own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from stored_values import values

from olivelike.digest import digest_file
from olivelike.errors import SourceError
from olivelike.families import FAMILIES, sd1
from olivelike.model.components import PREVIEW
from olivelike.model.records.origin import Origin
from olivelike.sources import SourceSpec, available_components, open_source
from olivelike.testing.checkpoints import make_checkpoint, write_safetensors
from olivelike.testing.single_file_writer import make_single_file
from tests.fixtures.pickle_tables import read_pickle_here
from tests.fixtures.tiny_vae_files import make_tiny_vae

VAE = ["vae_encoder", "vae_decoder"]
WEIGHTS = "vae/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """An SD 1.5 pipeline with other weights than the one under test."""
    return make_checkpoint(tmp_path_factory.mktemp("other") / "pipeline", size="small", seed=7)


@pytest.fixture
def spellings(other, tmp_path):
    """The other VAE in every form that `vae:` takes."""
    folder = tmp_path / "ft-mse"
    shutil.copytree(other / "vae", folder)
    plain = make_single_file(other, tmp_path / "plain.safetensors", components=["vae"], prefixes=False)
    return {
        "a VAE folder": folder,
        "a pipeline folder": other,
        "a file in diffusers' names": other / WEIGHTS,
        "a file in original names": plain,
        "a file with prefix": make_single_file(other, tmp_path / "prefix.safetensors", components=["vae"]),
        "a file with ComfyUI's prefix": renamed_all(plain, tmp_path / "comfy.safetensors"),
        "a whole checkpoint": make_single_file(other, tmp_path / "whole.safetensors"),
    }


@pytest.mark.parametrize("form", ["folder", "file", "file without VAE"])
def test_every_spelling_gives_the_other_vaes_values_in_every_form_of_source(
    both_forms_of, spellings, tmp_path, form
) -> None:
    forms = both_forms_of("sd15")
    sources = {
        "folder": forms.folder,
        "file": forms.file,
        "file without VAE": make_single_file(
            forms.folder, tmp_path / "bare.safetensors", components=["unet", "text_encoder"]
        ),
    }
    if form == "file without VAE":
        # A file has no config and goes by the published one, in whose widths no small VAE comes.
        for name in [name for name in spellings if name.startswith("a file") or "whole" in name]:
            spec = SourceSpec(path=sources[form], vae=SourceSpec(path=spellings.pop(name)))
            with pytest.raises(SourceError, match="does not fit the pipeline: encoder.conv_in.weight has shape"):
                open_source(spec, VAE)
    stored = load_file(spellings["a VAE folder"] / "diffusion_pytorch_model.safetensors")
    for spelling, path in spellings.items():
        spec = SourceSpec(path=sources[form], vae=SourceSpec(path=path))
        source = open_source(spec, ["unet", *VAE])
        assert list(source.checkpoints) == ["unet", *VAE]
        assert source.origin.vae.path == str(path), spelling
        assert source.index["vae"] == ["diffusers", "AutoencoderKL"]
        found = values(source.checkpoint("vae_decoder"))
        assert found.keys() == stored.keys()
        assert all(np.array_equal(found[name], stored[name]) for name in found)


def test_a_file_without_vae_takes_a_published_one(both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sdxl")
    bare = make_single_file(forms.folder, tmp_path / "bare.safetensors", components=["unet"], hollow=True)
    full = make_checkpoint(tmp_path / "full", "sdxl", size="full", dtype="F16", hollow=True)
    vae = make_single_file(full, tmp_path / "vae.safetensors", components=["vae"], hollow=True)
    source = open_source(SourceSpec(path=bare, vae=SourceSpec(path=vae)), ["vae_decoder"])
    assert source.checkpoint("vae_decoder").config["scaling_factor"] == 0.13025
    assert source.origin.vae == Origin.local("file", vae)


def test_layouts_of_a_single_vae_file_do_not_depend_on_the_source_it_joins(both_forms_of, spellings) -> None:
    forms = both_forms_of("sd15")
    vae = SourceSpec(path=spellings["a file with prefix"])
    own = open_source(SourceSpec(path=forms.file), VAE)
    other = open_source(SourceSpec(path=forms.file, vae=vae), VAE)
    for component in VAE:
        assert own.checkpoint(component).layout_digest == other.checkpoint(component).layout_digest


def test_vaes_of_another_family_are_refused(both_forms_of, spellings, tmp_path) -> None:
    forms = both_forms_of("sdxl")
    for name in ("a VAE folder", "a whole checkpoint"):
        with pytest.raises(
            SourceError, match=r"of another family: its scaling factor is 0\.18215, .* trained with 0\.13025"
        ):
            open_source(SourceSpec(path=forms.file, vae=SourceSpec(path=spellings[name])), VAE)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"emb_params": (3, 768)}, r"this is an embedding .*name it under `embeddings:`; `vae:` takes a VAE"),
        ({"x.lora_down.weight": (4, 768)}, "this is a LoRA.*name it under `loras:`; `vae:` takes a VAE"),
        (
            {"decoder.conv_in.weight": (64, 16, 3, 3), "decoder.mid.block_1.conv1.weight": (64, 64, 3, 3)},
            r"this VAE does not fit the pipeline: decoder\.conv_in\.weight has shape \[64, 16, 3, 3\]",
        ),
        (
            {"decoder.conv_in.weight": (96, 4, 3, 3), "decoder.mid.block_1.conv1.weight": (96, 96, 3, 3)},
            r"does not fit the pipeline: decoder\.conv_in\.weight has shape \[96, 4, 3, 3\].*begins with \[64, 4\]",
        ),
    ],
)
def test_what_is_no_fitting_vae_is_refused(both_forms_of, tmp_path, shapes, message) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {name: ("F16", shape) for name, shape in shapes.items()}, None)
    with pytest.raises(SourceError, match=message):
        open_source(SourceSpec(path=both_forms_of("sd15").file, vae=SourceSpec(path=path)), VAE)


def test_a_pickled_vae_needs_the_flag_and_another_class_is_refused(both_forms_of, other, tmp_path) -> None:
    source = both_forms_of("sd15").file
    pickled = make_single_file(other, tmp_path / "vae.pt", components=["vae"], prefixes=False, pickled=True)
    spec = SourceSpec(path=source, vae=SourceSpec(path=pickled))
    with pytest.raises(SourceError, match=r"vae\.pt: this is a pickled file.*--allow-pickle"):
        open_source(spec, VAE)
    opened = open_source(spec, VAE, allow_pickle=True, read_pickle=read_pickle_here)
    assert values(opened.checkpoint("vae_encoder"))
    (tmp_path / "video").mkdir()
    (tmp_path / "video/config.json").write_text(json.dumps({"_class_name": "AutoencoderKLWan"}))
    with pytest.raises(SourceError, match="is an AutoencoderKLWan; `vae:` takes an AutoencoderKL or AutoencoderTiny"):
        open_source(SourceSpec(path=source, vae=SourceSpec(path=tmp_path / "video")), VAE)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny VAE as a folder, as an original decoder with its encoder beside it, and as one file."""
    return make_tiny_vae(tmp_path_factory.mktemp("tiny"), size="little")


def test_every_form_of_a_tiny_vae_gives_its_values(both_forms_of, tiny) -> None:
    stored = load_file(tiny[0] / "diffusion_pytorch_model.safetensors")
    forms = both_forms_of("sd15")
    for source in (forms.folder, forms.file):
        for path in (*tiny, tiny[0] / "diffusion_pytorch_model.safetensors", tiny[0] / "taesd_encoder.safetensors"):
            opened = open_source(SourceSpec(path=source, vae=SourceSpec(path=path)), VAE)
            assert opened.index["vae"] == ["diffusers", "AutoencoderTiny"]
            for half in ("encoder", "decoder"):
                found = values(opened.checkpoint(f"vae_{half}"))
                own = [name for name in stored if name.startswith(f"{half}.")]
                assert found.keys() >= set(own), path
                assert all(np.array_equal(found[name], stored[name]) for name in own)


def test_half_a_tiny_vae_is_enough_where_no_more_is_asked_for(both_forms_of, tiny, tmp_path) -> None:
    alone = shutil.copy(tiny[1], tmp_path / "taesd_decoder.safetensors")
    spec = SourceSpec(path=both_forms_of("sd15").folder, vae=SourceSpec(path=alone))
    assert "vae_encoder" not in available_components(spec)
    assert open_source(spec, ["vae_decoder"]).checkpoint("vae_decoder").class_name == "AutoencoderTiny"
    with pytest.raises(
        SourceError, match=r"is a vae_decoder alone, .* beside it \(taesd_encoder\.safetensors\), or drop"
    ):
        open_source(spec, VAE)


def test_a_tiny_vae_of_other_latents_is_refused(both_forms_of, tiny, tmp_path, monkeypatch) -> None:
    wide = make_tiny_vae(tmp_path / "taesd3", size="little", latent_channels=16)
    for path in wide:
        spec = SourceSpec(path=both_forms_of("sdxl").folder, vae=SourceSpec(path=path))
        with pytest.raises(SourceError, match=r"for latents of 16 channels .* have 4; take TAESD .* TAESDXL for XL"):
            open_source(spec, VAE)
    published = digest_file(tiny[1])[:16]
    known = replace(sd1.LATENTS, tiny=replace(sd1.LATENTS.tiny, digests=(published,)))
    monkeypatch.setitem(FAMILIES, "sd1", replace(sd1.FAMILY, latents=known))
    spec = SourceSpec(path=both_forms_of("sdxl").folder, vae=SourceSpec(path=tiny[1]))
    with pytest.raises(SourceError, match=r"the published one for Stable Diffusion 1\.x.*take TAESDXL"):
        open_source(spec, VAE)
    assert open_source(replace(spec, path=both_forms_of("sd15").folder), VAE)


def test_a_tiny_vae_beside_the_own_one_gives_a_decoder_for_previews(both_forms_of, tiny, other) -> None:
    for source in (both_forms_of("sd15").folder, both_forms_of("sd15").file):
        spec = SourceSpec(path=source, preview=SourceSpec(path=tiny[1]))
        assert available_components(spec) >= {*VAE, PREVIEW}
        opened = open_source(spec, [*VAE, PREVIEW])
        assert opened.checkpoint(PREVIEW).class_name == "AutoencoderTiny"
        assert opened.checkpoint("vae_decoder").class_name == "AutoencoderKL"
    with pytest.raises(SourceError, match=r"this is no tiny VAE.*`preview:` takes TAESD"):
        open_source(replace(spec, preview=SourceSpec(path=other / "vae")), [PREVIEW])


def renamed_all(source, target):
    tensors = {f"vae.{name}": array for name, array in load_file(source).items()}
    write_safetensors(target, {n: ("F32", a.shape) for n, a in tensors.items()}, tensors.__getitem__)
    return target

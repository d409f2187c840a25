"""Parts that are absent, or do not fit another one, are told from configs alone."""

from __future__ import annotations

import json
import shutil

import pytest

from olivelike.errors import SourceError
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.fit import check_fit, lacking
from olivelike.testing.checkpoints import make_checkpoint

PARTS = {
    "sd15": ("text_encoder", "unet", "vae_decoder"),
    "sdxl": ("text_encoder", "text_encoder_2", "unet", "vae_decoder"),
    "sdxl_refiner": ("text_encoder_2", "unet", "vae_decoder"),
}


@pytest.fixture(scope="session")
def hollow(tmp_path_factory):
    """Folders of each family, without values."""
    root = tmp_path_factory.mktemp("hollow")
    return {family: make_checkpoint(root / family, family, size="small", hollow=True) for family in PARTS}


@pytest.fixture
def copy_of(hollow, tmp_path):
    return lambda family: shutil.copytree(hollow[family], tmp_path / family)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def opened(folder, *components):
    return open_source(SourceSpec(path=folder), components)


@pytest.mark.parametrize("family", PARTS)
def test_a_pipeline_as_it_is_published_fits_and_lacks_nothing(family, hollow):
    source = opened(hollow[family], *PARTS[family])
    check_fit(source)
    assert lacking(source) == ()


def test_an_sdxl_pipeline_without_its_first_text_encoder_is_refused(copy_of):
    folder = copy_of("sdxl")
    change(folder / "model_index.json", text_encoder=[None, None])
    source = opened(folder, "text_encoder_2", "unet")
    assert lacking(source) == ("text_encoder",)
    told = r"UNet takes \d+ numbers for each word, text_encoder_2 makes \d+, and it has no text_encoder; get all parts"
    with pytest.raises(SourceError, match=told):
        check_fit(source)


def test_a_text_encoder_of_another_width_is_refused(copy_of):
    folder = copy_of("sd15")
    change(folder / "unet" / "config.json", cross_attention_dim=1024)
    with pytest.raises(SourceError, match=r"takes 1024 numbers for each word, text_encoder makes \d+; get all parts"):
        check_fit(opened(folder, "text_encoder", "unet"))


def test_a_pooled_text_of_another_width_is_refused(copy_of):
    folder = copy_of("sdxl")
    config = json.loads((folder / "text_encoder_2" / "config.json").read_text())
    change(folder / "text_encoder_2" / "config.json", projection_dim=config["projection_dim"] + 32)
    with pytest.raises(SourceError, match=r"pooled text of \d+ numbers, and text_encoder_2 makes"):
        check_fit(opened(folder, *PARTS["sdxl"]))


def test_latents_of_other_channels_are_refused(copy_of):
    folder = copy_of("sd15")
    change(folder / "vae" / "config.json", latent_channels=16)
    with pytest.raises(SourceError, match="latents of 4 channels, and the VAE's have 16; name a VAE"):
        check_fit(opened(folder, "unet", "vae_decoder"))


def test_parts_that_the_workflow_leaves_out_are_not_missed(copy_of):
    folder = copy_of("sdxl")
    source = opened(folder, "text_encoder_2", "unet")
    check_fit(source)
    assert lacking(source) == ()


def test_what_the_source_lacks_is_named(copy_of):
    folder = copy_of("sd15")
    change(folder / "model_index.json", text_encoder=[None, None], vae=[None, None])
    assert lacking(opened(folder, "unet")) == ("text_encoder", "vae")

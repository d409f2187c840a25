"""Pictures of steps: colours of latents by the numbers of their family, or else what the VAE decodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from olivelike.data import demo_folder, demo_transformer
from olivelike.families import FAMILIES
from olivelike.model.components import latent_channels, latents_in_square
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
from olivelike.runtime.pipeline.vae import Preview

COLOURED = [family for family in FAMILIES.values() if family.latents.colours is not None]


def folder_of(family, **changed):
    vae = {"latent_channels": family.latents.channels, **family.published.configs.get("vae", {}), **changed}
    return PipelineFolder(Path(), {"_class_name": family.pipelines[0]}, {}, vae, {})


def refuse():
    raise AssertionError


@pytest.mark.parametrize("family", COLOURED, ids=lambda family: family.name)
def test_latents_of_each_family_have_colours_without_a_network(family):
    folder = folder_of(family)
    side, channels = latents_in_square(folder.vae), latent_channels(folder.vae)
    assert (folder.family.latents, channels) == (family.latents, family.latents.channels)
    latents = np.random.default_rng(0).standard_normal((2, channels, 3, 5), np.float32)
    preview = Preview(latents, refuse, folder)
    assert [image.size for image in preview.rough()] == [(5 * side, 3 * side)] * 2
    assert preview.rough()[0].tobytes() == preview.show()[0].tobytes()
    grey, white = (Preview(np.full_like(latents, value), refuse, folder).rough()[0] for value in (0, 1))
    colours = family.latents.colours
    wanted = np.array([colours.bias, np.sum(colours.factors, axis=0) + colours.bias]).clip(-1, 1) * 127.5 + 127.5
    np.testing.assert_allclose([grey.getpixel((1, 1)), white.getpixel((1, 1))], wanted, atol=0.51)


def test_every_family_of_the_list_has_colours():
    assert list(FAMILIES.values()) == COLOURED


def test_squares_of_flux2_come_apart_as_in_diffusers():
    from diffusers import Flux2KleinPipeline

    latents = np.random.default_rng(0).standard_normal((1, 128, 3, 5), np.float32)
    colours = FAMILIES["flux2"].latents.colours
    ours = np.asarray(Preview(latents, refuse, folder_of(FAMILIES["flux2"])).rough()[0])
    theirs = Flux2KleinPipeline._unpatchify_latents(torch.from_numpy(latents))[0].permute(1, 2, 0).numpy()
    wanted = (theirs @ np.array(colours.factors) + colours.bias).clip(-1, 1) * 127.5 + 127.5
    np.testing.assert_allclose(ours, wanted, atol=0.51)


@pytest.mark.parametrize("source", [demo_folder, demo_transformer], ids=lambda source: source.__name__)
def test_a_vae_with_latents_of_its_own_has_no_colours(source):
    index, vae = (json.loads((source() / file).read_bytes()) for file in ("model_index.json", "vae/config.json"))
    assert PipelineFolder(Path(), index, {}, vae, {}).colours is None


def test_latents_with_statistics_of_their_own_keep_their_colours():
    changed = {"scaling_factor": 0.5, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    folder = folder_of(FAMILIES["sdxl"], **changed)
    assert folder.colours == FAMILIES["sdxl"].latents.colours

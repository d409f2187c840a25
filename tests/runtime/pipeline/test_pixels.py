"""Pictures as networks take them: the pixels of diffusers' `VaeImageProcessor`, bit by bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from olivelike.runtime.pictures.pixels import to_shares
from olivelike.runtime.pipeline.latents import to_mask
from olivelike.runtime.pipeline.vae import to_pixels

SIZES = [(32, 32), (40, 24), (136, 200), (67, 45)]


def drawing(width, height):
    values = np.random.default_rng(7).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def theirs(image, size, **settings):
    return VaeImageProcessor(**settings).preprocess(image, width=size[0], height=size[1]).numpy()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("given", [(32, 32), (64, 48), (19, 301)])
def test_pixels_are_those_of_diffusers(given, size):
    image, folder = drawing(*given), SimpleNamespace(vae_factor=8)
    assert np.array_equal(to_pixels(image, size, folder), theirs(image, size))
    mask = theirs(image, size, do_normalize=False, do_binarize=True, do_convert_grayscale=True)
    assert np.array_equal(np.asarray(to_mask(image, size, folder)), mask)
    for unit in (8, 16):
        for mode, settings in (("L", {"do_convert_grayscale": True}), ("RGB", {"do_convert_rgb": True})):
            wanted = theirs(image, size, vae_scale_factor=unit, do_normalize=False, **settings)
            ours = to_shares(image, size, unit, mode)
            assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
            assert np.array_equal(ours, wanted)


def test_pictures_in_other_modes_and_on_their_side_become_rgb():
    image = drawing(24, 16).convert("LA")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.getexif().update(exif)
    upright = image.convert("RGB").transpose(Image.Transpose.ROTATE_270)
    assert np.array_equal(to_pixels(image, (16, 24), SimpleNamespace(vae_factor=8)), theirs(upright, (16, 24)))

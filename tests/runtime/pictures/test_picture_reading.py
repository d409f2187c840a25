"""Pictures that people give: what is read of them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from olivelike.errors import SourceError
from olivelike.runtime.pictures.picture_reading import open_image
from olivelike.runtime.pictures.pixels import upright

_TURNED = {0x112: 6}
"""EXIF's orientation: on its right side."""


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_grey_of_16_bits_is_not_clipped(suffix, tmp_path):
    values = np.linspace(0, 0xFFFF, 48).astype(np.uint16).reshape(6, 8)
    image = Image.fromarray(values)
    exif = image.getexif()
    exif.update(_TURNED)
    image.save(tmp_path / f"depth.{suffix}", exif=exif)
    seen = np.asarray(upright(open_image(tmp_path / f"depth.{suffix}")[0]))
    assert np.array_equal(seen[..., 1], np.rot90(values >> 8, -1))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_of_32_bits_are_refused(dtype, tmp_path):
    Image.fromarray(np.ones((8, 8), dtype)).save(tmp_path / "depth.tiff")
    with pytest.raises(SourceError, match=r"depth\.tiff: has pixels of 32 bits.*save it with 8 or 16"):
        open_image(tmp_path / "depth.tiff")

"""Pictures that people give: what is read of them."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from olivelike.errors import SourceError
from olivelike.runtime.pictures import picture_reading
from olivelike.runtime.pictures.picture_reading import decode_image, open_image, read_picture_data
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


def _file(form: str, **options: bool) -> bytes:
    kept = io.BytesIO()
    Image.new("L", (64, 64), 128).save(kept, form, **options)
    return kept.getvalue()


def _with_parts(form: str, part: bytes, number: int) -> bytes:
    """Return a picture's file with so many parts behind its first one."""
    data, place = _file(form), {"PNG": 33, "JPEG": 2}[form]
    return data[:place] + part * number + data[place:]


_PRIVATE = b"\0\0\0\0prIv" + zlib.crc32(b"prIv").to_bytes(4, "big")
_COMMENT = b"\xff\xfe\0\3a"
_EXIF = b"\xff\xe1\0\x0aExif\0\0aa"


@pytest.mark.parametrize("read", [decode_image, read_picture_data])
@pytest.mark.parametrize(
    ("form", "part", "most"), [("PNG", _PRIVATE, 49_000), ("JPEG", _COMMENT, 49_000), ("JPEG", _EXIF, 100)]
)
def test_a_file_of_very_many_parts_is_refused_before_each_is_read(form, part, most, read, monkeypatch):
    read(_with_parts(form, part, most), "picture")
    monkeypatch.setattr(Image, "open", lambda *_args, **_more: pytest.fail("it is read"))
    with pytest.raises(SourceError, match="picture: it has far more parts than a picture needs"):
        read(_with_parts(form, part, 1_000_000), "picture")


def test_scans_that_go_over_very_many_pixels_are_refused_before_they_are_decoded(monkeypatch):
    data = _file("JPEG", progressive=True)
    refined = data[data.rindex(b"\xff\xda") : -2]
    monkeypatch.setattr(picture_reading, "MOST_PIXELS", 64 * 64)
    assert decode_image(data, "picture").size == (64, 64)
    with pytest.raises(SourceError, match="picture: it has 106 scans, each of 64x64 pixels"):
        decode_image(data[:-2] + refined * 100 + data[-2:], "picture")
    assert decode_image(_file("JPEG") + b"\xff\xda" * 100, "a film behind it").size == (64, 64)

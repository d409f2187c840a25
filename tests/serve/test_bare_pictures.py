"""What is kept of a picture that was sent has its pixels and how they are turned, and nothing else."""

from __future__ import annotations

import io
import random
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from olivelike.errors import OlivelikeError
from olivelike.runtime.pictures.picture_reading import decode_image, read_picture
from olivelike.serve.gallery import uploads
from olivelike.serve.gallery.bare_pictures import bare_picture
from olivelike.serve.gallery.uploads import add_upload

SECRET = b"taken at home"


def coloured(mode="RGB", size=(37, 23)):
    values = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(values).resize((9, 9)).resize(size).convert(mode)


def encoded(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def exif(orientation=None):
    found = Image.Exif()
    found[0x010E] = SECRET.decode()
    if orientation:
        found[0x0112] = orientation
    return found


def texts():
    found = PngImagePlugin.PngInfo()
    found.add_text("Comment", SECRET.decode())
    found.add(b"tEXt", b"parameters\0a circle\nSteps: 3, Sampler: Euler a, Seed: 7", after_idat=True)
    return found


def kept(folder, data):
    name = add_upload(folder, data).id
    return (folder / f"{name}.png").read_bytes()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", [None, 6])
def test_a_jpeg_is_kept_as_it_was_sent_but_for_what_it_says(tmp_path, mode, orientation):
    sent = encoded(coloured(mode), "JPEG", exif=exif(orientation), comment=SECRET, dpi=(72, 72), restart_marker_rows=1)
    sent += SECRET  # As cameras put films behind their pictures.
    found = kept(tmp_path, sent)
    assert found.startswith(b"\xff\xd8")
    assert SECRET not in found
    with Image.open(io.BytesIO(found)) as image:
        assert image.format == "JPEG"
        assert image.getexif().get(0x0112) == orientation
        assert np.array_equal(image, decode_image(sent, ""))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"])
@pytest.mark.parametrize("orientation", [None, 3])
def test_a_png_is_kept_as_it_was_sent_but_for_what_it_says(tmp_path, mode, orientation):
    image = coloured("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    more = {"transparency": 3} if mode == "P" else {}
    sent = encoded(image, "PNG", pnginfo=texts(), exif=exif(orientation), **more)
    view = add_upload(tmp_path, sent)
    assert view.parameters.startswith("a circle")
    assert view.record["seed"] == 7
    assert read_picture(tmp_path / f"{view.id}.png").record.seed == 7
    found = (tmp_path / f"{view.id}.png").read_bytes()
    assert SECRET not in found
    assert found.count(b"IDAT") == 1
    assert zlib.crc32(found[-8:-4]).to_bytes(4) == found[-4:]
    before, after = decode_image(sent, ""), decode_image(found, "")
    assert after.getexif().get(0x0112) == orientation
    assert np.array_equal(before.convert("RGBA"), after.convert("RGBA"))


@pytest.mark.parametrize(
    ("mode", "form", "options"),
    [
        ("RGB", "JPEG", {"progressive": True}),
        ("CMYK", "JPEG", {}),
        ("RGB", "WEBP", {"lossless": True}),
        ("P", "GIF", {}),
    ],
)
def test_what_is_slow_to_decode_or_of_another_form_is_encoded_as_png(tmp_path, mode, form, options):
    sent = encoded(coloured(mode), form, **options)
    found = kept(tmp_path, sent)
    assert found.startswith(b"\x89PNG")
    assert np.array_equal(decode_image(found, "").convert("RGB"), decode_image(sent, "").convert("RGB"))


def test_a_jpeg_with_more_than_one_scan_behind_its_tables_is_encoded_anew():
    whole = encoded(coloured(), "JPEG")
    start = whole.index(b"\xff\xda")
    several = whole[: start + 4] + b"\x01" + whole[start + 5 :]
    commented = whole[:-2] + b"\xff\xfe\0\x0f" + SECRET + b"\xff\xd9"
    assert bare_picture(whole, 1) is not None
    assert bare_picture(several, 1) is None
    assert bare_picture(commented, 1) is None


def test_whatever_is_damaged_is_refused_or_kept_with_the_pixels_that_it_had(tmp_path, monkeypatch):
    chance = random.Random(5)
    monkeypatch.setattr(uploads, "told_by", lambda *_: None)
    many = [encoded(coloured(), "JPEG", exif=exif(6)), encoded(coloured("P"), "PNG", exif=exif(6), pnginfo=texts())]
    for turn in range(600):
        data = bytearray(many[turn % 2])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(2, min(len(data), 400))
            data[place] = chance.randrange(256)
        try:
            found = kept(tmp_path, bytes(data))
        except OlivelikeError:
            continue
        before, after = decode_image(bytes(data), ""), decode_image(found, "")
        assert np.array_equal(before.convert("RGBA"), after.convert("RGBA")), turn

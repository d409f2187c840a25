"""Super-resolution networks of any factor and size, and files that are none."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from PIL import Image

from olivelike.errors import SessionError, UsageError
from olivelike.runtime.pictures import upscaler_trial
from olivelike.runtime.pictures.upscaling import Upscaler, check_upscaler
from tests.runtime.small_networks import write_network

SUB_PIXEL = """\
<ir_version: 8, opset_import: ["": 17]>
sub_pixel ({dtype}[{batch}, 3, {height}, {width}] x) => ({dtype}[1, 3, h2, w2] y) {{
  features = Conv<pads = [2, 2, 2, 2]>(x, weight)
  y = DepthToSpace<blocksize = {scale}>(features)
}}
"""
"""One convolution that sees two pixels to each side, then its channels as pixels (https://arxiv.org/abs/1609.05158)."""


def network(folder, scale=2, dtype="float", batch=1, height="h", width="w"):
    text = SUB_PIXEL.format(scale=scale, dtype=dtype, batch=batch, height=height, width=width)
    weight = np.random.default_rng(0).random((3 * scale**2, 3, 5, 5), np.float32) / 75
    return write_network(folder, text, {"weight": weight.astype("float16" if dtype == "float16" else "float32")})


def photo(width, height):
    noise = np.random.default_rng(3).integers(0, 256, (height // 3 + 1, width // 3 + 1, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


def whole(path, image):
    import onnxruntime

    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None] / 255
    (large,) = onnxruntime.InferenceSession(path).run(None, {"x": pixels})
    return (large[0].clip(0, 1) * 255).round().transpose(1, 2, 0)


@pytest.mark.parametrize(("scale", "size"), [(1, (40, 24)), (2, (300, 270)), (3, (33, 21)), (4, (257, 8))])
def test_tiles_give_what_the_whole_picture_gives(tmp_path, settings, scale, size):
    path, image = network(tmp_path, scale), photo(*size)
    upscaler = Upscaler(path, settings)
    found = upscaler.enlarge(image)
    assert upscaler.scale == scale
    assert found.size == (size[0] * scale, size[1] * scale)
    inside = np.s_[: -2 * scale, : -2 * scale]  # At the padded edges, networks see another edge.
    assert np.abs(np.asarray(found, int) - whole(path, image))[inside].max() <= 1


def test_a_network_of_one_size_gets_tiles_of_that_size(tmp_path, settings):
    fixed, free = network(tmp_path / "fixed", height=32, width=24), network(tmp_path / "free")
    image = photo(70, 50)
    found = np.asarray(Upscaler(fixed, settings).enlarge(image), int)
    assert np.abs(found - whole(free, image))[:-4, :-4].max() <= 1


def test_a_network_in_half_precision_is_taken(tmp_path, settings):
    assert Upscaler(network(tmp_path, dtype="float16"), settings).enlarge(photo(16, 16)).size == (32, 32)


def test_what_is_no_upscaler_is_refused(tmp_path, settings, little_folder):
    greys = write_network(
        tmp_path, """<ir_version: 8, opset_import: ["": 17]>
        greys (float[1, 1, h, w] x) => (float[1, 1, h, w] y) { y = Identity(x) }""",
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"its input is float32 of shape \(1, 1, h, w\)"):
        check_upscaler(greys)
    with pytest.raises(UsageError, match="3 values"):
        check_upscaler(little_folder / "unet" / "model.onnx")
    with pytest.raises(UsageError, match="no such upscaler"):
        check_upscaler(tmp_path / "missing.onnx")
    with pytest.raises(UsageError, match=r"\.pth"):
        check_upscaler(little_folder / "model_index.json")
    four = network(tmp_path / "four", batch=4)
    with pytest.raises(UsageError, match="shape"):
        check_upscaler(four)
    taller = write_network(
        tmp_path / "taller", """<ir_version: 8, opset_import: ["": 17]>
        taller (float[1, 3, h, w] x) => (float[1, 3, h2, w] y) { y = Concat<axis = 2>(x, x) }""",
    )  # fmt: skip
    with pytest.raises(UsageError, match="one whole factor"):
        Upscaler(taller, settings)


ENDLESS = """\
<ir_version: 8, opset_import: ["": 17]>
endless (float[1, 3, h, w] x) => (float[1, 3, h2, w2] y) {
  often = Constant<value = int64 {4611686018427387904}>()
  on = Constant<value = bool {1}>()
  y = Loop<body = again (int64 i, bool go, float[1, 3, h, w] a) => (bool more, float[1, 3, h, w] b) {
    more = Identity(go)
    b = Sqrt(a)
  }>(often, on, x)
}
"""


def test_a_network_that_does_not_end_is_ended(tmp_path, settings, monkeypatch):
    import onnx
    from onnx import parser

    onnx.save(parser.parse_model(ENDLESS), tmp_path / "endless.onnx")
    monkeypatch.setattr(upscaler_trial, "_SECONDS", 1)
    with pytest.raises(SessionError, match="does not end within 1 s"):
        Upscaler(tmp_path / "endless.onnx", settings)
    assert not [child for child in psutil.Process().children() if "upscaler_trial" in " ".join(child.cmdline())]

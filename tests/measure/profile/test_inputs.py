from __future__ import annotations

import numpy as np
import pytest

from olivelike.errors import SourceError
from olivelike.measure.network_sizes import PictureSizes, random_values, sizes_of
from olivelike.measure.one_file_inputs import one_file_inputs
from olivelike.runtime.sessions.session import ValueSpec

SIZES = PictureSizes(batch_size=2, height=512, width=384)


@pytest.mark.parametrize(
    ("component", "name", "dims", "shape"),
    [
        ("unet", "sample", ["unet_sample_batch", 4, "unet_sample_height", "unet_sample_width"], (4, 4, 64, 48)),
        ("unet", "timestep", ["unet_time_batch"], (1,)),
        ("unet", "encoder_hidden_states", ["unet_hidden_batch", "unet_hidden_sequence", 768], (4, 77, 768)),
        ("unet", "time_ids", ["unet_time_ids_batch", 6], (4, 6)),
        ("vae_decoder", "latent_sample", ["decoder_batch", 4, "decoder_height", "decoder_width"], (2, 4, 64, 48)),
        ("vae_encoder", "sample", ["encoder_batch", 3, "encoder_height", "encoder_width"], (2, 3, 512, 384)),
        ("safety_checker", "clip_input", ["clip_batch", 3, 224, 224], (2, 3, 224, 224)),
        ("safety_checker", "images", ["image_batch", "image_height", "image_width", 3], (2, 512, 384, 3)),
        ("text_encoder", "input_ids", ["text_batch", "text_sequence"], (2, 77)),
        ("unet", "sample", ["unk__1", 4, "unk__2", None], (4, 4, 64, 48)),
        ("text_encoder", "input_ids", [None, None], (2, 77)),
        ("vae_decoder", "scale", [], ()),
    ],
)
def test_dynamic_dimensions_become_what_their_names_or_places_say(component, name, dims, shape):
    assert SIZES.shape(component, name, dims, by_place=True) == shape


def test_values_are_of_the_dtypes_that_the_network_takes():
    inputs = {
        "sample": ("float16", (1, 4, 8, 8)),
        "timestep": ("float32", (1,)),
        "input_ids": ("int32", (1, 77)),
        "flag": ("bool", (5,)),
    }
    found = random_values(inputs, 50)
    assert [array.shape for array in found.values()] == [shape for _, shape in inputs.values()]
    assert [array.dtype for array in found.values()] == [np.float16, np.float32, np.int32, np.bool_]
    assert found["input_ids"].max() < 50
    assert found["sample"].std() > 0.5


def test_the_size_is_what_the_unet_was_trained_on(tmp_path):
    for name, config in {"unet": '{"sample_size": 32}', "vae_decoder": '{"block_out_channels": [8, 16, 16]}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    assert sizes_of(tmp_path / "unet", width=64) == PictureSizes(1, 128, 64, 4)
    assert sizes_of(tmp_path / "absent" / "unet") == PictureSizes(1, 512, 512, 8)


@pytest.mark.parametrize(
    ("name", "dtype", "dims"),
    [("foo", "float32", ("n",)), ("noise", "float32", ("a", "b", "c", "d", "e")), ("ids", "int32", ("n", 10**15))],
)
def test_one_file_of_a_stranger_is_refused_by_the_input_that_nothing_fits(name, dtype, dims):
    with pytest.raises(SourceError, match=f"pipeline.onnx: nothing can be given for its input '{name}'"):
        one_file_inputs([ValueSpec(name, dtype, dims)], {})

"""Pictures that are no numbers: weights are looked at before a network is blamed."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from olivelike.errors import SessionError
from olivelike.model.onnx_messages import TensorProto, load_model, to_array
from olivelike.model.targets import TargetChoice
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.not_finite import not_finite_error
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from tests.fixtures.sample_records import write_output_record


@pytest.fixture
def folder(little_folder, tmp_path):
    return shutil.copytree(little_folder, tmp_path / "pipeline")


def spoil(folder, component, value, *, inline=False):
    """Put a value into one initializer of a network, in its data file or in the model; return its name."""
    path = folder / component / "model.onnx"
    model = load_model(path)
    floats = [one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT]
    tensor = [one for one in floats if bool(one.external_data) != inline][-1]
    if inline:
        values = np.array(to_array(tensor)).reshape(-1)
        values[0] = value
        tensor.raw_data = values.tobytes()
        path.write_bytes(model.SerializeToString())
    else:
        places = {entry.key: entry.value for entry in tensor.external_data}
        with (folder / component / places["location"]).open("r+b") as file:
            file.seek(int(places["offset"]) + 4)
            file.write(np.float32(value).tobytes())
    return tensor.name


def draw(folder, settings, **more):
    return open_pipeline(folder, settings, **more).generate(Request(prompts=("a red circle",), steps=1, seed=5))


@pytest.mark.parametrize("component", ["unet", "vae_decoder", "text_encoder"])
def test_weights_that_are_nan_are_named_with_their_file(folder, settings, component):
    name = spoil(folder, component, np.nan)
    with pytest.raises(SessionError) as caught:
        draw(folder, settings)
    place = folder / component / "model.onnx"
    assert f"{place}: {name} (1 in weights.pb); get the checkpoint again" in str(caught.value)
    assert "half precision" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_weights_in_the_model_file_are_looked_at_too(folder, settings):
    name = spoil(folder, "unet", np.nan, inline=True)
    with pytest.raises(SessionError, match=f"{name} \\(1\\); get"):
        draw(folder, settings)


def test_a_preview_names_them_as_well(folder, settings):
    name = spoil(folder, "unet", np.nan)
    pipeline = open_pipeline(folder, settings)
    request = Request(prompts=("a red circle",), steps=1, seed=5)
    with pytest.raises(SessionError, match=name):
        pipeline.generate(request, on_step=lambda step: step.preview.rough())


@pytest.mark.parametrize(
    ("component", "precision", "said"),
    [
        ("unet", "fp16", r"the latents that the UNet made have .* half precision overflows .* `precision: fp32`$"),
        ("vae_decoder", "fp16", r"the VAE decoder's output has values .* `precision: fp32`, or take another VAE$"),
        ("unet", "fp32", r"the latents that the UNet made have values .* in float32; .* `olivelike verify .*`$"),
        ("vae_decoder", "fp32", r"the VAE decoder's output has .* `olivelike verify .*`, or take another VAE$"),
    ],
)
def test_with_finite_weights_the_network_is_named_with_the_remedy(folder, settings, component, precision, said):
    write_output_record(folder, target=TargetChoice("cpu", precision))
    path = folder / component / "model.onnx"
    tensor = next(one for one in load_model(path).graph.initializer if one.external_data or len(one.dims) > 1)
    # What overflows as it runs is stood in for by arrays that the folder's files do not have.
    given = {component: {tensor.name: np.full(tuple(tensor.dims), np.nan, np.float32)}}
    with pytest.raises(SessionError, match=said):
        draw(folder, settings, initializers=given)


def test_a_mask_of_minus_infinity_is_no_fault(folder):
    spoil(folder, "text_encoder", -np.inf)
    assert "all weights are finite" in str(not_finite_error(open_folder(folder), from_latents=True))
    name = spoil(folder, "text_encoder", np.inf)
    assert name in str(not_finite_error(open_folder(folder), from_latents=True))

"""What a pipeline refuses, and what it says."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from PIL import Image

from olivelike.errors import MissingError, SessionError, SourceError, UsageError
from olivelike.model.onnx_messages import load_model
from olivelike.model.targets import TargetChoice
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.sessions.session_settings import SessionSettings, parse_provider
from tests.fixtures.little_pipeline import little_pipeline
from tests.fixtures.sample_records import write_output_record


def ask(**more):
    return Request(**{"prompts": ("a red circle",), "steps": 2, "seed": 5, **more})


@pytest.fixture
def broken(little_folder, tmp_path):
    """Return a copy of the folder, to be damaged."""
    return shutil.copytree(little_folder, tmp_path / "pipeline")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": ()}, "no prompt is given"),
        ({"num_images": 0}, "num_images is 0; it must be at least 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"num_images": 10**9}, "num_images is 1000000000; it must be at most 100,000"),
        ({"steps": 10**9}, "steps is 1000000000; it must be at most 10,000"),
        ({"steps": -3}, "steps is -3; it must be at least 1"),
        ({"clip_layer": 0}, "clip_layer is 0"),
        ({"clip_layer": 4}, "clip_layer leaves no layer: .* has 3; take at most 3"),
        ({"retry_unsafe": -1}, "retry_unsafe is -1"),
        ({"seed": -1}, "seed -1 is not between 0 and 18446744073709551615"),
        ({"seed": 2**64}, "seed 18446744073709551616 is not between"),
        ({"eta": 1.5}, "eta 1.5 is not between 0 and 1"),
        ({"guidance_rescale": -0.1}, "guidance_rescale -0.1 is not between 0 and 1"),
        ({"guidance_rescale": math.nan}, "guidance_rescale nan is not between 0 and 1"),
        ({"guidance_scale": math.nan}, "guidance_scale nan is not between -100 and 1000"),
        ({"guidance_scale": -math.inf}, "guidance_scale -inf is not between -100 and 1000"),
        ({"init_image": Image.new("RGB", (32, 32)), "strength": math.nan}, "strength nan is not above 0"),
        ({"hires": math.nan}, "hires nan is not above 1 and at most 8"),
        ({"ip_adapter_scale": 11.0}, "ip_adapter_scale 11 is not between -10 and 10"),
        ({"size": (30, 32)}, "size 30x32: .* multiples of 4 pixels; the nearest is 32x32"),
        ({"size": (0, 32)}, "size 0x32: .* the nearest is 4x32"),
        ({"size": (-8, 32)}, "size -8x32"),
        ({"scheduler": "Eular"}, "there is no sampler 'Eular'; did you mean 'Euler'"),
        ({"scheduler": "Nosuch"}, r"there is no sampler 'Nosuch'; samplers: DPM\+\+ 2M, DPM\+\+ SDE, (?!.*Karras)"),
        ({"strength": 0.5}, "strength is given without an initial picture"),
        ({"init_image": Image.new("RGB", (32, 32)), "strength": 0.0}, "strength 0 is not above 0 and at most 1"),
        ({"init_image": Image.new("RGB", (32, 32)), "strength": 1.2}, "strength 1.2 is not above 0"),
        ({"init_image": Image.new("RGB", (32, 32)), "strength": 0.3}, "leaves no step; take at least strength 0.5"),
        ({"init_image": Image.new("RGB", (3, 32))}, "size 3x32 is below 4 pixels"),
        ({"mask": Image.new("L", (32, 32))}, "a mask is given without an initial picture"),
        (
            {"init_image": Image.new("RGB", (32, 32)), "mask": Image.new("L", (64, 32))},
            "the mask's size 64x32 has another shape than the initial picture's 32x32",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_cant_be_had_is_named(pipeline, changes, message):
    with pytest.raises(UsageError, match=message):
        pipeline.generate(ask(**changes))


def test_a_scheduler_that_refuses_the_steps_says_why(pipeline):
    with pytest.raises(UsageError, match="refuses 1001 steps"):
        pipeline.generate(ask(scheduler="DDIM", steps=1001))


def test_a_mask_of_another_size_is_stretched_to_the_picture(pipeline, picture, mask):
    same = pipeline.generate(ask(init_image=picture, mask=mask)).pictures[0]
    larger = mask.resize((128, 128), Image.Resampling.NEAREST)
    assert pipeline.generate(ask(init_image=picture, mask=larger)).pictures[0].image.size == same.image.size


def test_a_picture_of_an_odd_size_gives_the_next_smaller_one(pipeline, picture):
    result = pipeline.generate(ask(init_image=picture.resize((31, 43))))
    assert result.pictures[0].image.size == (28, 40)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "I;16"])
def test_pictures_of_any_mode_can_be_started_from(pipeline, mode):
    image = Image.new(mode, (32, 32))
    assert pipeline.generate(ask(init_image=image)).pictures[0].image.mode == "RGB"


def test_an_inpainting_folder_wants_a_mask(settings, picture):
    pipeline = open_pipeline(little_pipeline("inpainting"), settings)
    with pytest.raises(UsageError, match="is for inpainting: give it an initial picture and a mask"):
        pipeline.generate(ask(init_image=picture))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("unet/model.onnx", "has no unet/model.onnx, which this needs; add unet to `components:`"),
        ("text_encoder/model.onnx", "has no text_encoder/model.onnx"),
        ("vae_decoder/model.onnx", "has no vae_decoder/model.onnx"),
        ("model_index.json", "has no model_index.json, so it is no pipeline"),
        ("scheduler/scheduler_config.json", "scheduler_config.json: no such file"),
    ],
)
def test_a_part_that_is_missing_is_named(broken, settings, part, message):
    (broken / part).unlink()
    with pytest.raises(SourceError, match=message):
        open_pipeline(broken, settings)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("unet", "sample_size", 10**9),
        ("unet", "sample_size", "x"),
        ("unet", "sample_size", [1, 2, 3]),
        ("unet", "patch_size", 0),
        ("unet", "block_out_channels", 5),
        ("vae_decoder", "sample_size", -5),
        ("vae_decoder", "latent_channels", 10**9),
        ("vae_decoder", "block_out_channels", [1] * 500),
        ("vae_decoder", "scaling_factor", "x"),
        ("vae_decoder", "shift_factor", [1]),
        ("vae_decoder", "patch_size", [-2, -2]),
        ("vae_decoder", "latents_mean", "x"),
        ("vae_decoder", "latents_mean", [0.5]),
        ("vae_decoder", "latents_std", [1, 1, 0, 1]),
    ],
)
def test_a_config_whose_numbers_are_none_is_named_with_its_key(broken, settings, file, key, value):
    path = broken / file / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), key: value}))
    with pytest.raises(SourceError, match=rf"{file}/config.json: has `{key}: .*`, where .* makes sense; make the"):
        open_pipeline(broken, settings)


def test_a_scheduler_for_networks_of_another_kind_is_refused(broken, settings):
    config = {"_class_name": "FlowMatchEulerDiscreteScheduler"}
    (broken / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    pipeline = open_pipeline(broken, settings)
    with pytest.raises(SourceError, match="FlowMatchEulerDiscreteScheduler, which is for networks of flow"):
        pipeline.resolve_defaults(ask())
    pipeline.resolve_defaults(ask(scheduler="Euler"))


def test_a_scheduler_without_bounds_is_read_as_diffusers_saves_it(broken, settings):
    diffusers = pytest.importorskip("diffusers")
    diffusers.DPMSolverMultistepScheduler(beta_schedule="scaled_linear").save_config(broken / "scheduler")
    assert "-Infinity" in (broken / "scheduler" / "scheduler_config.json").read_text()
    pipeline = open_pipeline(broken, settings)
    np.testing.assert_array_equal(pipeline.latents(ask()), pipeline.latents(ask(scheduler="DPM++ 2M")))


def test_a_missing_tokenizer_is_named(broken, settings):
    shutil.rmtree(broken / "tokenizer")
    with pytest.raises(SourceError, match="tokenizer"):
        open_pipeline(broken, settings)


def test_a_missing_vae_encoder_matters_only_to_pictures(broken, settings, picture):
    shutil.rmtree(broken / "vae_encoder")
    pipeline = open_pipeline(broken, settings)
    pipeline.generate(ask())
    with pytest.raises(SourceError, match="has no vae_encoder/model.onnx"):
        pipeline.generate(ask(init_image=picture))


def test_a_folder_that_is_not_there_is_named(tmp_path, settings):
    with pytest.raises(SourceError, match="nowhere: no such folder"):
        open_pipeline(tmp_path / "nowhere", settings)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_index_is_named(broken, settings, content):
    (broken / "model_index.json").write_text(content)
    with pytest.raises(SourceError, match=r"model_index\.json: "):
        open_pipeline(broken, settings)


def test_a_damaged_network_is_named(broken, settings):
    (broken / "unet" / "model.onnx").write_bytes(b"no model at all")
    with pytest.raises(MissingError, match="unet"):
        open_pipeline(broken, settings)


def test_folders_without_configs_are_taken_for_stable_diffusion_1(broken, settings):
    """Other exporters write none; the sizes of the little networks are not those of SD 1.5."""
    for config in broken.glob("*/config.json"):
        config.unlink()
    folder = open_pipeline(broken, settings).folder
    assert (folder.vae_factor, folder.size_unit, folder.default_size) == (8, 64, (512, 512))


def test_a_network_of_other_names_is_refused_with_what_it_has(broken, settings):
    model = load_model(broken / "unet" / "model.onnx")
    for value in (*model.graph.input, *(name for node in model.graph.node for name in [])):
        value.name = "latents" if value.name == "sample" else value.name
    for node in model.graph.node:
        node.input[:] = ["latents" if name == "sample" else name for name in node.input]
    (broken / "unet" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match=r"has no input 'sample' \(it has: latents, timestep"):
        open_pipeline(broken, settings)


def test_a_text_encoder_without_hidden_states_cant_skip_layers(broken, settings):
    path = broken / "text_encoder" / "model.onnx"
    model = load_model(path)
    kept = [value for value in model.graph.output if not value.name.startswith("hidden_states")]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    path.write_bytes(model.SerializeToString())
    pipeline = open_pipeline(broken, settings)
    pipeline.generate(ask())
    with pytest.raises(SourceError, match=r"has no outputs hidden_states\.N, .* convert the checkpoint"):
        pipeline.generate(ask(clip_layer=2))


def test_a_unet_of_a_kind_that_is_not_known_is_refused(broken, settings):
    config = json.loads((broken / "unet" / "config.json").read_text())
    path = broken / "unet" / "model.onnx"
    model = load_model(path)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "channels"
    path.write_bytes(model.SerializeToString())
    (broken / "unet" / "config.json").write_text(json.dumps({**config, "in_channels": 8}))
    with pytest.raises(SourceError, match="its denoiser takes 8 channels; pipelines are known for 4, and for 9"):
        open_pipeline(broken, settings)


def test_memory_that_is_not_there_is_a_session_error(pipeline):
    with pytest.raises(SessionError, match="out of memory for 1 at once of 64000000x64000000"):
        pipeline.generate(ask(size=(64_000_000, 64_000_000)))


def test_a_folder_for_another_provider_is_refused_with_the_reason(broken):
    write_output_record(broken, target=TargetChoice("directml"))
    with pytest.raises((SessionError, UsageError), match="DmlExecutionProvider"):
        open_pipeline(broken)


def test_an_unknown_provider_gets_a_suggestion():
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        SessionSettings((parse_provider("cudda"),))


def test_a_size_for_a_dimension_that_no_network_has(little_folder):
    with pytest.raises(UsageError, match="no network has a dynamic dimension 'unet_sample_hight'; did you mean"):
        open_pipeline(little_folder, SessionSettings(dimensions={"unet_sample_hight": 16}))

"""An output folder in the hands of the clients that it is made for."""

from __future__ import annotations

import warnings

import diffusers
import numpy as np
import onnx
import pytest
import torch
import transformers
from diffusers import OnnxRuntimeModel
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from pipeline_folder import read_json, write_pipeline

from olivelike.testing import run_pass
from olivelike.testing.models import tiny_checkpoint
from olivelike.workflow.passes import Registry

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")


@pytest.fixture(scope="module")
def checkpoint():
    return tiny_checkpoint()


@pytest.fixture(scope="module")
def folder(tiny, checkpoint, tmp_path_factory):
    """The pipeline in float32."""
    path = tmp_path_factory.mktemp("output") / "pipeline"
    return write_pipeline(path, checkpoint, [tiny(name) for name in COMPONENTS])


@pytest.fixture(scope="module")
def half_folder(tiny, checkpoint, tmp_path_factory):
    """The pipeline in float16."""
    float16 = Registry.built_in().get("float16").cls
    path = tmp_path_factory.mktemp("output") / "pipeline"
    models = [run_pass(float16, tiny(name), target="cpu") for name in COMPONENTS]
    return write_pipeline(path, checkpoint, models)


@pytest.fixture
def tolerant():
    """Let diffusers' ONNX pipelines say that they are deprecated, and the like."""
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    diffusers.utils.logging.enable_progress_bar()
    diffusers.utils.logging.set_verbosity_warning()


@pytest.mark.parametrize("name", ["vae_encoder", pytest.param("vae_decoder", marks=pytest.mark.slow)])
def test_onnx_runtime_model_loads_a_component_and_saves_it_whole(folder, name, tmp_path, tolerant):
    options = {"provider": "CPUExecutionProvider", "provider_options": [{}]}
    model = OnnxRuntimeModel.from_pretrained(folder / name, **options)
    model.save_pretrained(tmp_path / "saved")
    again = OnnxRuntimeModel.from_pretrained(tmp_path / "saved", **options)
    (given,) = model.model.get_inputs()
    sample = np.random.default_rng(0).standard_normal((1, given.shape[1], 16, 24), dtype=np.float32)
    assert (model(**{given.name: sample})[0] == again(**{given.name: sample})[0]).all()


@pytest.mark.parametrize("precision", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_onnx_pipeline_of_diffusers_paints_what_the_torch_pipeline_paints(request, precision, checkpoint, tolerant):
    path = request.getfixturevalue("folder" if precision == "float32" else "half_folder")
    onnx_pipeline = diffusers.OnnxStableDiffusionPipeline.from_pretrained(
        path, provider="CPUExecutionProvider", provider_options=[{}]
    )
    torch_pipeline = diffusers.StableDiffusionPipeline.from_pretrained(checkpoint)
    noise = np.random.default_rng(0).standard_normal((1, 4, 8, 8), dtype=np.float32)
    pictures = []
    for pipeline, latents in ((onnx_pipeline, noise.astype(precision)), (torch_pipeline, torch.from_numpy(noise))):
        pipeline.scheduler = diffusers.DDIMScheduler.from_config(pipeline.scheduler.config)
        pipeline.set_progress_bar_config(disable=True)
        result = pipeline(
            "a cat on the moon", height=64, width=64, num_inference_steps=2, guidance_scale=5.0,
            latents=latents, output_type="np",
        )  # fmt: skip
        assert result.nsfw_content_detected == [False]
        pictures.append(result.images[0])
    assert pictures[0].shape == (64, 64, 3)
    assert pictures[1].std() > 0.05
    assert np.abs(pictures[0] - pictures[1]).max() < (1e-4 if precision == "float32" else 0.05)


def test_the_index_names_the_classes_that_the_onnx_pipeline_expects(folder):
    index = read_json(folder / "model_index.json")
    assert index["_class_name"] == "OnnxStableDiffusionPipeline"
    assert all(index[name] == ["diffusers", "OnnxRuntimeModel"] for name in COMPONENTS)
    assert index["scheduler"] == ["diffusers", "PNDMScheduler"]
    assert index["tokenizer"] == ["transformers", "CLIPTokenizer"]
    assert index["feature_extractor"] == ["transformers", "CLIPImageProcessor"]
    assert "vae" not in index


@pytest.mark.parametrize(
    ("component", "cls"),
    [
        ("unet", diffusers.UNet2DConditionModel),
        ("vae_encoder", diffusers.AutoencoderKL),
        ("vae_decoder", diffusers.AutoencoderKL),
    ],
)
def test_diffusers_builds_the_network_from_its_config(component, cls, folder):
    config = cls.load_config(folder / component)
    assert config["_class_name"] == cls.__name__
    network = cls.from_config(config)
    assert dict(network.config) == dict(cls.from_config(network.config).config)


def test_the_scaling_factor_is_written_into_the_config_of_the_vae(folder):
    for name in ("vae_encoder", "vae_decoder"):
        assert read_json(folder / name / "config.json")["scaling_factor"] == 0.18215


@pytest.mark.parametrize(
    ("component", "cls"),
    [("text_encoder", transformers.CLIPTextModel), ("safety_checker", StableDiffusionSafetyChecker)],
)
def test_transformers_builds_the_network_from_its_config(component, cls, folder, checkpoint):
    config = cls.config_class.from_pretrained(folder / component)
    original = cls.config_class.from_pretrained(checkpoint / component)
    assert config.architectures == [cls.__name__]
    network, expected = cls(config), cls(original)
    assert {name: value.shape for name, value in network.state_dict().items()} == {
        name: value.shape for name, value in expected.state_dict().items()
    }


def test_the_tokenizer_of_the_folder_is_that_of_the_source(folder, checkpoint):
    ours, theirs = (transformers.CLIPTokenizer.from_pretrained(path / "tokenizer") for path in (folder, checkpoint))
    text = "A photo of an astronaut, détaillé"
    assert ours(text, padding="max_length").input_ids == theirs(text, padding="max_length").input_ids


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_is_valid_onnx(name, half_folder):
    onnx.checker.check_model(str(half_folder / name / "model.onnx"), full_check=True)

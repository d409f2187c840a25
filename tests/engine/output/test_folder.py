"""The index and the configs of a pipeline folder."""

from __future__ import annotations

import json

import pytest

from olivelike.engine.output.pipeline_files import component_config, index
from olivelike.errors import SourceError
from olivelike.testing.models import tiny_checkpoint, tiny_model
from tests.fixtures.sample_records import output_record

SOURCE = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.6.0",
    "feature_extractor": ["transformers", "CLIPFeatureExtractor"],
    "image_encoder": [None, None],
    "requires_safety_checker": True,
    "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def test_networks_are_entries_of_the_onnx_class_and_the_rest_stays():
    content = json.loads(index(SOURCE, ["vae_decoder", "unet", "safety_checker"]))
    network = ["diffusers", "OnnxRuntimeModel"]
    assert {name: value for name, value in content.items() if name != "_diffusers_version"} == {
        "_class_name": "OnnxStableDiffusionPipeline",
        "feature_extractor": ["transformers", "CLIPImageProcessor"],
        "requires_safety_checker": True,
        "safety_checker": network,
        "scheduler": ["diffusers", "PNDMScheduler"],
        "unet": network,
        "vae_decoder": network,
    }


def test_an_output_without_a_safety_checker_says_so():
    content = json.loads(index(SOURCE, ["unet"]))
    assert (content["safety_checker"], content["requires_safety_checker"]) == ([None, None], False)


def test_a_pipeline_class_without_an_onnx_counterpart_keeps_its_name():
    assert json.loads(index({"_class_name": "PixArtPipeline"}, []))["_class_name"] == "PixArtPipeline"


@pytest.mark.parametrize("component", ["text_encoder", "vae_decoder"])
def test_a_config_holds_the_architecture_and_no_path(component):
    architecture = tiny_model(component).architecture
    data = component_config(architecture)
    content = json.loads(data)
    assert architecture.config.items() <= content.items()
    assert content.keys() - architecture.config.keys() <= {
        "_class_name", "_diffusers_version", "architectures", "transformers_version",
    }  # fmt: skip
    assert str(tiny_checkpoint()).encode() not in data


def test_a_record_without_a_model_file_is_refused():
    with pytest.raises(SourceError, match="names no model file of unet"):
        output_record().model_file("unet")

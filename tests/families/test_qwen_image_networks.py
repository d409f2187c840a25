"""Networks of Qwen-Image as graphs: the library's own numbers at any size, length and batch."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_folder
from olivelike.families.supported import check_network
from olivelike.measure.network_sizes import Case
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.fit import check_fit
from olivelike.sources.names.adapt import read_network
from olivelike.testing import compare_with_torch
from olivelike.testing.models import load_model, traced_graph
from tests.fixtures.little_transformers import little_transformer

CASES = (Case(1, 2, 4, 1), Case(3, 6, 2, 60), Case(1, 10, 14, 50), Case(2, 24, 8, 32))
"""None of them was traced."""


def traced(component):
    model = load_model(little_transformer("qwen_image"), component)
    return model.replace(graph=traced_graph(model.architecture))


@pytest.mark.parametrize("component", ["transformer", "text_encoder", "vae_decoder", "vae_encoder"])
def test_each_agrees_with_the_library_s_own_at_other_sizes(component):
    compare_with_torch(traced(component), cases=CASES).require(1e-5)


def test_the_denoiser_s_graph_says_what_operators_are_and_holds_no_large_constant():
    model = traced("transformer")
    graph = model.graph.to_ir().graph
    assert [value.name for value in graph.inputs if value.name not in model.weights] == [
        "sample", "timestep", "encoder_hidden_states",
    ]  # fmt: skip
    counts = Counter(node.op_type for node in graph)
    assert (counts["RMSNormalization"], counts["RotaryEmbedding"], counts["Attention"]) == (9, 8, 2)
    assert max(one.const_value.nbytes for one in graph.initializers.values()) <= 512


def test_the_vae_s_graph_has_convolutions_of_pictures_and_no_video():
    graph = traced("vae_decoder").graph.to_ir().graph
    convolutions = [node for node in graph if node.op_type == "Conv"]
    assert convolutions
    assert {len(node.outputs[0].shape) for node in convolutions} == {4}
    assert not any("time_conv" in value.name for value in graph.inputs)


def test_a_config_without_a_part_for_texts_is_read_as_published(tmp_path):
    folder = shutil.copytree(little_transformer("qwen_image"), tmp_path / "copy")
    file = folder / "text_encoder" / "config.json"
    config = json.loads(file.read_bytes())
    text = config.pop("text_config")
    turns = text.pop("rope_parameters")
    told = {name: value for name, value in text.items() if name not in ("layer_types", "model_type")}
    told |= {"rope_theta": turns["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    file.write_text(json.dumps(config | told))
    source = open_source(SourceSpec(path=folder), ["text_encoder", "transformer"])
    check_fit(source)
    found = load_model(folder, "text_encoder").architecture.config["text_config"]
    assert found["rope_parameters"] == turns | {"type": "mrope"}
    assert {name: found[name] for name in text} == text


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("vision_config", {"out_hidden_size": 10**9}, "its config is of [0-9,]+ parameters, and its files"),
        ("text_config", {"model_type": [1, 2]}, "unhashable type"),
    ],
)
def test_a_config_that_lies_of_its_network_is_refused_before_it_takes_memory(part, change, said, tmp_path):
    folder = shutil.copytree(little_transformer("qwen_image"), tmp_path / "copy")
    file = folder / "text_encoder" / "config.json"
    config = json.loads(file.read_bytes())
    file.write_text(json.dumps(config | {part: config[part] | change}))
    checkpoint = open_source(SourceSpec(path=folder), ["text_encoder"]).checkpoint("text_encoder")
    with pytest.raises(SourceError, match=said):
        read_network(checkpoint, {path: str(path) for path in checkpoint.files})


@pytest.mark.parametrize(
    ("index", "denoiser"),
    [
        ({"_class_name": "QwenImagePipeline"}, {}),
        ({"_class_name": "QwenImageImg2ImgPipeline"}, {}),
        ({}, {"_class_name": "QwenImageTransformer2DModel"}),
        ({"_class_name": "QwenImagePipeline"}, {"_class_name": [1]}),
    ],
)
def test_a_folder_is_told_by_its_class_or_its_denoiser(index, denoiser):
    assert family_of_folder(index, (), denoiser).name == "qwen_image"


@pytest.mark.parametrize("name", ["QwenImageEditPipeline", "QwenImageEditPlusPipeline", "QwenImageLayeredPipeline"])
def test_pipelines_that_work_after_pictures_are_refused(name):
    with pytest.raises(SourceError, match=f'"{name}" is not supported'):
        family_of_folder({"_class_name": name}, (), {"_class_name": "QwenImageTransformer2DModel"})


HEADS = {"hidden_size": 32, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("component", "config", "said"),
    [
        ("transformer", {"patch_size": 1}, "squares of 2 by 2"),
        ("transformer", {"in_channels": 128}, "squares of 2 by 2"),
        ("transformer", {"out_channels": None}, "squares of 2 by 2"),
        ("transformer", {"zero_cond_t": True}, "more than text and latents"),
        ("transformer", {"num_layers": 0.5}, "`num_layers: 0.5`"),
        ("text_encoder", {"text_config": {"use_sliding_window": True}}, "a part of the text each"),
        ("text_encoder", {"text_config": {**HEADS, "rope_theta": 0}}, "`rope_theta: 0`, where a number above 1"),
        ("text_encoder", {"text_config": {**HEADS, "rope_parameters": {"rope_theta": 1}}}, "`rope_theta: 1`"),
        ("text_encoder", {"text_config": {**HEADS, "rope_scaling": {"mrope_section": [1, 1, 1]}}}, "whose sum is 4"),
        ("text_encoder", {"text_config": {**HEADS, "rope_parameters": {"mrope_section": [2, 2]}}}, "3 numbers above"),
        ("text_encoder", {**HEADS, "rope_scaling": {"mrope_section": [5, 0, -1]}}, r"`mrope_section: \[5, 0, -1\]`"),
        ("text_encoder", {**HEADS, "rope_scaling": {"mrope_section": 4}}, "`mrope_section: 4`"),
    ],
    ids=str,
)
def test_networks_that_take_something_else_are_refused(component, config, said):
    family = FAMILIES["qwen_image"]
    name = family.denoiser_class if component == "transformer" else family.texts[0].class_name
    with pytest.raises(SourceError, match=said):
        check_network(component, name, config, family)

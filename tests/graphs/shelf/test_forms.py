"""What of configs and stored names counts: each form is taken for its network, and for no other one."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import onnx
import pytest

from olivelike.families.networks import NETWORKS, network_of
from olivelike.graphs.shelf import BUILT_IN, Shelf, ShelfFolder
from olivelike.graphs.shelf.network_forms import complete, form_of, graph_question
from olivelike.graphs.shelf.shelf_folder import VERSION
from olivelike.model import Architecture
from olivelike.model.components import TAKEN_STATES, VAES
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.names.adapt import adapt
from olivelike.testing import make_checkpoint
from olivelike.testing.checkpoint_configs import component_configs, hub_configs
from olivelike.testing.models import load_model
from tests.conftest import SHELF
from tests.fixtures.little_transformers import little_transformer
from tests.fixtures.no_torch import forbid_torch
from tools.make_shelf import DEMOS, PIPELINES, TRANSFORMERS, networks

CLASSES = {
    "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL",
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "CLIPTextModelWithProjection",
    "safety_checker": "StableDiffusionSafetyChecker",
}


def form(folder: str, config):
    class_name = CLASSES[folder]
    known = complete(class_name, config)
    assert known is not None
    return form_of(class_name, known[1])


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return Shelf([BUILT_IN])


def test_all_that_ships_is_whole_and_of_this_version():
    entries = [entry for _, entry in ShelfFolder(BUILT_IN).entries()]
    assert {entry.version for entry in entries} == {VERSION}
    assert {entry.component for entry in entries if entry.kind == "graph"} == {
        "unet", "transformer", "vae_encoder", "vae_decoder", "text_encoder", "text_encoder_2", "text_encoder_3",
        "safety_checker", "controlnet",
    }  # fmt: skip


def test_what_ships_takes_less_than_a_megabyte_and_a_half():
    assert sum(path.stat().st_size for path in BUILT_IN.iterdir()) < 1_500_000


def test_no_graph_of_any_class_has_a_large_constant():
    """Nor do those of the tests; `OLIVELIKE_FILL_SHELF=1` puts the graphs of a new class among them."""
    seen = set()
    for folder in (ShelfFolder(BUILT_IN), ShelfFolder(SHELF)):
        for entry in (entry for _, entry in folder.entries() if entry.kind == "graph"):
            graph = onnx.load_model_from_string(folder.read("graph", entry.question)).graph
            held = [*graph.initializer, *(value.t for node in graph.node for value in node.attribute)]
            assert max([tensor.ByteSize() for tensor in held], default=0) < 1 << 16, entry.about
            seen.add(entry.class_name)
    assert {one.class_name for one in NETWORKS} - seen == {"AsymmetricAutoencoderKL"}


QUICK = ("sd15", "sd21", "sdxl", "flux2", "z_image")
SHARED = ("sd3", "sd35_large", "flux_dev")
"""Pipelines whose networks are those of others but for the transformer."""


@pytest.mark.parametrize(
    "name",
    [
        *DEMOS,
        *(
            name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
            for name in (*PIPELINES, *TRANSFORMERS)
        ),
    ],
)
def test_every_stored_form_of_a_published_pipeline_is_answered(shelf, name, tmp_path, monkeypatch):
    """The folder and the file that `make_shelf` writes are found, with the names that the libraries find.

    UNets take the libraries longer, and are compared in the slow suite.
    """
    for checkpoint in networks(name, tmp_path):
        if name in SHARED and checkpoint.component != "transformer":
            continue
        found = shelf.adaptation(checkpoint)
        assert found is not None, f"{checkpoint.component} of {name}, {checkpoint.original or 'folder'}"
        assert shelf.graph(found.architecture) is not None
        if checkpoint.component != "unet" or name not in QUICK:
            arguments = (checkpoint.component, checkpoint.library, checkpoint.class_name, checkpoint.config)
            assert found == adapt(*arguments, checkpoint.shapes, checkpoint.original)
    forbid_torch(monkeypatch)
    for folder in (tmp_path / f"{name} in files").glob("*"):
        parts = {path.stem: path for path in folder.iterdir()}
        spec = SourceSpec(path=parts.pop("transformer"), parts=parts)
        for checkpoint in open_source(spec, [*parts.keys() - {"vae"}, "transformer", *VAES]).checkpoints.values():
            assert shelf.graph(shelf.adaptation(checkpoint).network) is not None


def test_keys_that_no_graph_depends_on_change_nothing():
    published = component_configs("full")
    changed = copy.deepcopy(published)
    changed["unet"] |= {"sample_size": 96, "_name_or_path": "somewhere/else", "dropout": 0.1}
    changed["vae"] |= {"scaling_factor": 0.13025, "force_upcast": False, "sample_size": 1024}
    changed["text_encoder"] |= {"attention_dropout": 0.1, "bos_token_id": 5, "torch_dtype": "float16"}
    changed["safety_checker"]["vision_config_dict"] |= {"initializer_range": 0.5}
    changed["safety_checker"]["text_config_dict"] |= {"hidden_size": 5}
    for folder, config in published.items():
        assert form(folder, changed[folder]) == form(folder, config)
        assert form(folder, hub_configs("full")[folder]) == form(folder, config)


@pytest.mark.parametrize(
    ("folder", "changes"),
    [
        ("unet", {"in_channels": 9}),
        ("unet", {"upcast_attention": True}),
        ("unet", {"attention_head_dim": [8, 8, 8, 16]}),
        ("unet", {"layers_per_block": 1}),
        ("unet", {"transformer_layers_per_block": 2}),
        ("unet", {"norm_eps": 1e-6}),
        ("unet", {"time_cond_proj_dim": 256}),
        ("vae", {"latent_channels": 16}),
        ("vae", {"use_quant_conv": False}),
        ("text_encoder", {"hidden_act": "gelu"}),
        ("text_encoder", {"eos_token_id": 49407}),
        ("text_encoder", {"num_hidden_layers": 11}),
        ("safety_checker", {"projection_dim": 512}),
    ],
)
def test_keys_that_a_graph_depends_on_make_another_form(folder, changes):
    config = component_configs("full")[folder]
    assert form(folder, config | changes) != form(folder, config)


IDS = [
    ({"eos_token_id": 2}, True),
    ({"eos_token_id": 49407}, True),
    ({"eos_token_id": 49407, "bos_token_id": 49406, "pad_token_id": 49407}, True),
    ({}, True),  # The class's own default is 49407.
    ({"eos_token_id": 5}, False),
]


@pytest.mark.parametrize(
    ("name", "ids", "known"),
    [
        *(("sd15", *one) for one in IDS), ("sd21", *IDS[1]), ("sdxl", *IDS[1]), ("sdxl", *IDS[-1]),
        *(pytest.param("sd21", *one, marks=pytest.mark.slow) for one in (IDS[0], *IDS[2:])),
        *(pytest.param("sdxl", *one, marks=pytest.mark.slow) for one in (IDS[0], *IDS[2:-1])),
    ],
)  # fmt: skip
def test_text_encoders_are_known_by_each_end_token_that_is_published(shelf, name, ids, known, tmp_path):
    """Only the graph depends on it: the stored names of a config with another one are known, too."""
    folder = make_checkpoint(tmp_path, name, size="full", hollow=True)
    components = [one for one in ("text_encoder", "text_encoder_2") if (folder / one).is_dir()]
    graphs = []
    for component in components:
        path = folder / component / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in config.items() if "token_id" not in key} | ids))
        found = shelf.adaptation(open_source(SourceSpec(path=folder), [component]).checkpoints[component])
        assert found is not None
        graphs.append(shelf.graph(found.architecture))
        with_two = replace(found.architecture, config={**found.architecture.config, "eos_token_id": 2})
        assert (graphs[-1] == shelf.graph(with_two)) is (ids.get("eos_token_id") == 2)
    assert [graph is not None for graph in graphs] == [known] * len(components)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_head_dim": [8, 8, 8, 8]},
        {"layers_per_block": [2, 2, 2, 2]},
        {"transformer_layers_per_block": [1, 1, 1, 7]},  # the last level does not attend, but the middle does
        {"upcast_attention": None, "only_cross_attention": False},
        {"mid_block_type": "UNetMidBlock2DCrossAttn", "num_attention_heads": None},
    ],
)
def test_one_network_in_two_spellings_is_one_form(changes):
    config = component_configs("full")["unet"]
    same = changes.get("transformer_layers_per_block") is None
    assert (form("unet", config | changes) == form("unet", config)) is same


@pytest.mark.parametrize(
    ("folder", "changes"),
    [
        ("unet", {"a_key_of_tomorrow": 1}),
        ("unet", {"model_type": "other"}),
        ("text_encoder", {"num_beams": 4}),
        ("text_encoder", {"model_type": "t5"}),
        ("safety_checker", {"vision_config": 3, "vision_config_dict": None}),
    ],
)
def test_a_config_of_which_something_is_unknown_is_left_to_the_libraries(folder, changes):
    config = component_configs("full")[folder] | changes
    known = complete(CLASSES[folder], config)
    assert known is None or folder == "unet"
    if known is not None:
        assert "model_type" not in known[1]


QWEN3 = next(config for name, config in TRANSFORMERS["flux2"].parts.values() if name == "Qwen3ForCausalLM")
T5 = next(config for name, config in TRANSFORMERS["flux"].parts.values() if name == "T5EncoderModel")
RAW = {"Qwen3ForCausalLM": {**QWEN3, TAKEN_STATES: [9, 18, 27]}, "T5EncoderModel": T5}
TURNS = {"rope_theta": 1000000.0, "rope_type": "default"}


@pytest.mark.parametrize(
    ("class_name", "without", "changes"),
    [
        ("Qwen3ForCausalLM", ("rope_theta", "rope_scaling"), {"rope_parameters": TURNS, "dtype": "bfloat16"}),
        ("Qwen3ForCausalLM", (), {"layer_types": ["full_attention"] * 36, "use_cache": False, "pad_token_id": 5}),
        ("Qwen3ForCausalLM", (), {"sliding_window": 4096, "max_window_layers": 28}),
        ("T5EncoderModel", ("num_decoder_layers", "dense_act_fn", "is_gated_act", "output_past"), {}),
        ("T5EncoderModel", (), {"dropout_rate": 0.0, "use_cache": False, "tie_word_embeddings": True}),
    ],
)
def test_one_text_encoder_in_two_spellings_is_one_form(class_name, without, changes):
    raw = RAW[class_name]
    other = {key: value for key, value in raw.items() if key not in without} | changes
    assert form_of(class_name, complete(class_name, other)[1]) == form_of(class_name, complete(class_name, raw)[1])


@pytest.mark.parametrize(
    ("class_name", "changes"),
    [
        ("Qwen3ForCausalLM", {"rope_theta": 10000}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": False}),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"] * 35 + ["sliding_attention"]}),
        ("Qwen3ForCausalLM", {TAKEN_STATES: [9, 18, 26]}),
        ("Qwen3ForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("T5EncoderModel", {"dense_act_fn": "relu"}),
        ("T5EncoderModel", {"feed_forward_proj": "relu"}),
        ("T5EncoderModel", {"relative_attention_num_buckets": 64}),
    ],
)
def test_text_encoders_of_which_something_else_is_said_are_no_published_ones(class_name, changes):
    raw = RAW[class_name]
    known = complete(class_name, {**raw, **changes})
    assert known is None or form_of(class_name, known[1]) != form_of(class_name, complete(class_name, raw)[1])


def test_an_architecture_with_an_unknown_key_is_no_published_one(shelf):
    known = complete("UNet2DConditionModel", component_configs("full")["unet"])
    assert known is not None
    architecture = Architecture("unet", known[0], "UNet2DConditionModel", known[1])
    assert shelf.graph(architecture) is not None
    strange = replace(architecture, config={**known[1], "tomorrow": 0})
    assert graph_question(strange) != graph_question(architecture)
    assert shelf.graph(strange) is None


def test_a_tensor_more_or_of_another_shape_is_no_published_network(shelf, tmp_path):
    checkpoint = next(one for one in networks("demo", tmp_path) if one.component == "text_encoder")
    assert shelf.adaptation(checkpoint) is not None
    name, (tensor, path) = next(iter(checkpoint.tensors.items()))
    for tensors in (
        {**checkpoint.tensors, "more.weight": (tensor, path)},
        {**checkpoint.tensors, name: (replace(tensor, shape=(1, 2)), path)},
        {key: value for key, value in checkpoint.tensors.items() if key != name},
    ):
        assert shelf.adaptation(replace(checkpoint, tensors=tensors)) is None
    more = {**checkpoint.tensors, "embeddings.position_ids": (tensor, path)}
    found = shelf.adaptation(replace(checkpoint, tensors=more))
    assert found is not None
    assert found.unused == ("embeddings.position_ids",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "component"),
    [
        ("flux2", "text_encoder"), ("flux2", "vae_decoder"), ("sd3", "text_encoder_3"),
        ("sd3", "transformer"), ("z_image", "transformer"),
    ],
)  # fmt: skip
def test_inert_keys_of_transformers_change_no_graph(family, component):
    import logging

    from olivelike.graphs.export import export_component

    one = load_model(little_transformer(family), component).architecture
    others = {
        "attention_dropout": 0.5, "axes_lens": [512, 32, 32], "batch_norm_momentum": 0.5, "bos_token_id": 3,
        "classifier_dropout": 0.5, "dropout_rate": 0.5, "eos_token_id": 4, "initializer_factor": 2.0,
        "initializer_range": 0.5, "is_encoder_decoder": False, "max_window_layers": 3, "num_decoder_layers": 5,
        "pad_token_id": 5, "sample_size": 64, "sliding_window": 64, "use_cache": False,
    }  # fmt: skip
    inert = network_of(component, one.class_name).inert & one.config.keys()
    assert inert
    other = replace(one, config={**one.config, **{key: others[key] for key in inert}})
    found = [export_component(architecture, logging.getLogger("test")).digest for architecture in (one, other)]
    assert found[0] == found[1]


INERT = {network.class_name: network.inert for network in NETWORKS if network.class_name in CLASSES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("class_name", sorted(INERT))
def test_inert_keys_change_no_graph(class_name):
    """Each key that is left out of a form is given another value, at a small size, and the graphs compared."""
    import logging

    from olivelike.graphs.export import export_component

    others = {
        "sample_size": 32, "dropout": 0.5, "scaling_factor": 0.5, "shift_factor": 0.5, "latents_mean": [0.5] * 4,
        "latents_std": [0.5] * 4, "force_upcast": False, "attention_dropout": 0.5, "initializer_factor": 2.0,
        "initializer_range": 0.5, "bos_token_id": 3, "pad_token_id": 4, "projection_dim": 16,
        "logit_scale_init_value": 1.0,
    }  # fmt: skip
    folder = next(folder for folder, name in CLASSES.items() if name == class_name)
    family, size = ("sd15", "tiny") if folder != "text_encoder_2" else ("sdxl", "small")
    _, config = complete(class_name, component_configs(size, family)[folder])
    changed = copy.deepcopy(dict(config))
    for path in INERT[class_name]:
        *towers, key = path.split(".")
        if path == "text_config":
            changed[path] |= {"hidden_size": 64, "num_hidden_layers": 1}
            continue
        home = changed[towers[0]] if towers else changed
        if key in home:  # Others are of classes that share the list.
            home[key] = others[key]
    for component in ("vae_encoder", "vae_decoder") if folder == "vae" else (folder,):
        library = "diffusers" if folder in ("unet", "vae") else "transformers"
        one, other = (
            export_component(Architecture(component, library, class_name, found), logging.getLogger("test"))
            for found in (config, changed)
        )
        assert one.digest == other.digest

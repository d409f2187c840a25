"""Stable Diffusion 3 at tiny size, in what it has of its own beside other transformers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from drawn_transformers import assert_alike
from test_transformer_pictures import half_mask

from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.runtime import Request, open_pipeline
from olivelike.testing.models import load_model, traced_graph


@pytest.fixture(scope="module")
def sd3(drawn):
    return drawn("sd3")


@pytest.fixture
def changed(sd3, tmp_path):
    """Return a copy of the folder without T5, or with a schedule that depends on the picture's size."""

    def change(variant=""):
        folder = shutil.copytree(sd3.folder, tmp_path / "copy")
        for name in ("text_encoder_3", "tokenizer_3") if variant == "without T5" else ():
            shutil.rmtree(folder / name)
        if variant == "dynamic shift":
            path = folder / "scheduler" / "scheduler_config.json"
            path.write_text(json.dumps({**json.loads(path.read_bytes()), "use_dynamic_shifting": True}))
        return folder

    return change


def test_the_folder_has_all_networks_and_the_files_that_read_texts(sd3):
    index = json.loads((sd3.folder / "model_index.json").read_bytes())
    assert index["_class_name"] == "ORTStableDiffusion3Pipeline"
    assert all((sd3.folder / name / "model.onnx").is_file() for name in sd3.components)
    own, copied = (folder / "tokenizer_3" / "tokenizer.json" for folder in (sd3.source, sd3.folder))
    assert copied.read_bytes() == own.read_bytes()


def test_the_table_of_positions_is_a_weight_and_no_constant(sd3):
    model = load_model(sd3.source, "transformer")
    graph = traced_graph(model.architecture).to_ir().graph
    assert "pos_embed.pos_embed" in {value.name for value in graph.inputs}
    assert "pos_embed.pos_embed" in model.weights
    assert not [one.name for one in graph.initializers.values() if one.const_value.nbytes > 4096]
    named = [value.name for value in graph.inputs][:4]
    assert named == ["hidden_states", "timestep", "encoder_hidden_states", "pooled_projections"]
    assert [value.name for value in graph.outputs] == ["out_hidden_states"]


@pytest.mark.parametrize("variant", ["without T5", "dynamic shift"])
def test_other_folders_give_the_picture_of_torch(drawn, sd3, changed, variant):
    result = open_pipeline(changed(variant)).generate(sd3.ask(size=(40, 32)))
    assert_alike(result, drawn("sd3", variant).painted(width=40, height=32))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"guidance_scale": 1.0}, {"guidance_scale": 1.0}),
        ({"negative_prompt": None}, {"negative_prompt": None}),
        ({"clip_layer": 3, "guidance_scale": 1.0}, {"clip_skip": 1, "guidance_scale": 1.0}),
        ({"scheduler": "Euler"}, {}),
    ],
    ids=str,
)
def test_each_option_means_what_it_means_in_diffusers(sd3, ours, theirs):
    assert_alike(sd3.pipeline.generate(sd3.ask(**ours)), sd3.painted(**theirs))


def test_a_mask_gives_the_latents_of_torch(sd3):
    image = sd3.picture()
    found = sd3.pipeline.latents(sd3.ask(init_image=image, mask=half_mask(32), strength=0.5))
    more = {"image": image, "mask_image": half_mask(32), "strength": 0.5, "output_type": "latent"}
    # The pixels of diffusers' pipeline lack the shift of latents, which the other two have.
    np.testing.assert_allclose(found[0], sd3.painted("Inpaint", **more), rtol=1e-4, atol=1e-4)


def test_a_folder_without_one_of_the_clips_says_so(sd3, changed):
    folder = changed()
    shutil.rmtree(folder / "text_encoder_2")
    with pytest.raises(SourceError, match="text_encoder and text_encoder_2"):
        open_pipeline(folder).generate(sd3.ask())


def test_steps_and_guidance_of_a_request_are_those_of_unets():
    usual = Request(("",))
    others = {(one.steps, one.guidance) for one in FAMILIES.values() if one.denoiser == "unet"}
    assert others == {(usual.steps, usual.guidance_scale)}

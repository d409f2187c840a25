"""Stable Diffusion 3 at tiny size: converted and fused as any checkpoint, and drawn as diffusers' pipelines draw it."""

from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch_pipelines import psnr

from olivelike._extras import place_of
from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import OlivelikeError, SourceError, UsageError
from olivelike.families import FAMILIES
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.testing.models import lend_graphs, load_model, traced_graph
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_sd3 import little_sd3

TEXT, PICTURE, INPAINT = (f"StableDiffusion3{name}Pipeline" for name in ("", "Img2Img", "Inpaint"))
COMPONENTS = ("text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "vae_encoder", "vae_decoder")
ASKED = {"negative_prompt": "a dark dog", "guidance_scale": 5.0}
LEAST = 60.0
"""PSNR in dB of 8-bit pictures that are equal but for a few roundings."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sd3")
    lend_graphs(folder / "cache", [load_model(little_sd3(), name).architecture for name in COMPONENTS])
    return folder


def converted(work, name, **more):
    request = ConvertRequest(str(little_sd3()), "cpu", work / name, **more)
    place, options = draft(request, Options(cache_dir=work / "cache"))
    run(place, options, executor=InlineExecutor)
    return work / name


@pytest.fixture(scope="module")
def whole(work):
    return converted(work, "whole")


@pytest.fixture
def changed(whole, tmp_path):
    """Return a copy of the folder without T5, or with a schedule that depends on the picture's size."""

    def change(*, t5=True, dynamic=False):
        folder = shutil.copytree(whole, tmp_path / "copy")
        for name in () if t5 else ("text_encoder_3", "tokenizer_3"):
            shutil.rmtree(folder / name)
        if dynamic:
            path = folder / "scheduler" / "scheduler_config.json"
            path.write_text(json.dumps({**json.loads(path.read_bytes()), "use_dynamic_shifting": True}))
        return folder

    return change


@cache
def torch_pipeline(class_name=TEXT, *, t5=True, dynamic=False):
    import diffusers

    absent = {} if t5 else {"text_encoder_3": None, "tokenizer_3": None}
    made = getattr(diffusers, class_name).from_pretrained(little_sd3(dynamic=dynamic), **absent)
    made.set_progress_bar_config(disable=True)
    return made


def painted(class_name=TEXT, seed=5, *, t5=True, dynamic=False, **arguments):
    pipeline = torch_pipeline(class_name, t5=t5, dynamic=dynamic)
    arguments = {"prompt": "a red circle", "num_inference_steps": 4, **ASKED, **arguments}
    return pipeline(generator=torch.Generator().manual_seed(seed), **arguments).images


def ask(**more):
    return Request(**{"prompts": ("a red circle",), "steps": 4, "seed": 5, **ASKED, **more})


def assert_alike(result, image):
    assert np.asarray(image).std() > 20
    assert psnr(result.pictures[0].image, image) >= LEAST


def test_the_folder_has_all_networks_and_the_files_that_read_texts(whole):
    index = json.loads((whole / "model_index.json").read_bytes())
    assert index["_class_name"] == "ORTStableDiffusion3Pipeline"
    assert {name for name in COMPONENTS if (whole / name / "model.onnx").is_file()} == set(COMPONENTS)
    own = little_sd3() / "tokenizer_3" / "tokenizer.json"
    assert (whole / "tokenizer_3" / "tokenizer.json").read_bytes() == own.read_bytes()


def test_the_table_of_positions_is_a_weight_and_no_constant():
    model = load_model(little_sd3(), "transformer")
    graph = traced_graph(model.architecture).to_ir().graph
    assert "pos_embed.pos_embed" in {value.name for value in graph.inputs}
    assert "pos_embed.pos_embed" in model.weights
    assert not [one.name for one in graph.initializers.values() if one.const_value.nbytes > 4096]
    named = [value.name for value in graph.inputs][:4]
    assert named == ["hidden_states", "timestep", "encoder_hidden_states", "pooled_projections"]
    assert [value.name for value in graph.outputs] == ["out_hidden_states"]


@pytest.mark.parametrize("size", [(24, 40), pytest.param((32, 32), marks=pytest.mark.slow)])
def test_text_gives_the_picture_of_torch(whole, size):
    pipeline = open_pipeline(whole)
    assert (pipeline.folder.default_size, pipeline.folder.size_unit) == ((32, 32), 4)
    theirs = {"width": size[0], "height": size[1]}
    latents = np.asarray(painted(output_type="latent", **theirs))
    np.testing.assert_allclose(pipeline.latents(ask(size=size)), latents, rtol=1e-4, atol=1e-4)
    result = pipeline.generate(ask(size=size))
    assert result.scheduler == "FlowMatchEulerDiscreteScheduler"
    assert_alike(result, painted(**theirs)[0])


@pytest.mark.parametrize("form", [{"t5": False}, {"dynamic": True}], ids=["without T5", "dynamic shift"])
def test_other_folders_give_the_picture_of_torch(changed, form):
    result = open_pipeline(changed(**form)).generate(ask(size=(40, 32)))
    assert_alike(result, painted(**form, width=40, height=32)[0])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"guidance_scale": 1.0}, {"guidance_scale": 1.0}),
        ({"negative_prompt": None}, {"negative_prompt": None}),
        ({"prompts": ("",)}, {"prompt": ""}),
        ({"clip_skip": 1, "guidance_scale": 1.0}, {"clip_skip": 1, "guidance_scale": 1.0}),
        ({"scheduler": "Euler"}, {}),
    ],
    ids=str,
)
def test_each_option_means_what_it_means_in_diffusers(whole, ours, theirs):
    assert_alike(open_pipeline(whole).generate(ask(**ours)), painted(**theirs)[0])


def test_a_picture_gives_the_picture_of_torch(whole):
    (image,) = painted(seed=9)
    result = open_pipeline(whole).generate(ask(init_image=image, strength=0.5))
    assert_alike(result, painted(PICTURE, image=image, strength=0.5)[0])


def test_a_mask_gives_the_latents_of_torch(whole):
    (image,) = painted(seed=9)
    mask = Image.fromarray(np.repeat(np.arange(32, dtype=np.uint8)[:, None] // 16 * 255, 32, axis=1))
    found = open_pipeline(whole).latents(ask(init_image=image, mask=mask, strength=0.5))
    more = {"image": image, "mask_image": mask, "strength": 0.5, "width": 32, "height": 32}
    # The pixels of diffusers' pipeline lack the shift of latents, which the other two have.
    np.testing.assert_allclose(found, painted(INPAINT, output_type="latent", **more), rtol=1e-4, atol=1e-4)


def test_pictures_of_a_batch_are_those_that_are_drawn_alone(whole):
    pipeline = open_pipeline(whole)
    both = pipeline.generate(ask(num_images=2, batch_size=2)).pictures
    assert psnr(both[0].image, pipeline.generate(ask()).pictures[0].image) >= LEAST
    assert psnr(both[1].image, pipeline.generate(ask(seed=6)).pictures[0].image) >= LEAST


def test_the_folder_is_verified_with_its_pictures(whole):
    found = verify_folder(whole, against=str(little_sd3()), samples=1, pictures=1, steps=3, min_psnr=LEAST)
    assert found.passed
    assert {one.name for one in found.components} == set(COMPONENTS)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_half_precision_draws_nearly_the_same(work, whole):
    half = converted(work, "half", precision="fp16")
    sizes = [{name: size_of(folder / name) for name in COMPONENTS} for folder in (whole, half)]
    for name in ("text_encoder_3", "transformer"):
        assert sizes[1][name] < 0.7 * sizes[0][name]
    latents = [open_pipeline(folder).latents(ask()) for folder in (whole, half)]
    assert np.isfinite(latents[1]).all()
    assert np.linalg.norm(latents[1] - latents[0]) / np.linalg.norm(latents[0]) < 0.05


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"scheduler": "DPM++ 2M Karras"}, "trained for flow matching; take Euler"),
        ({"size": (30, 32)}, "multiples of 4 pixels"),
    ],
    ids=str,
)
def test_what_it_has_no_meaning_for_is_refused_in_a_sentence(whole, wrong, said):
    with pytest.raises(OlivelikeError, match=said.replace("+", r"\+")) as caught:
        open_pipeline(whole).resolve_defaults(ask(**wrong))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layout", ["csharp", "single", "single-ids", "triton", *(["web"] if place_of("PACKAGES", "web") else [])]
)
def test_layouts_of_clients_that_know_unets_alone_are_refused(work, layout):
    with pytest.raises(UsageError, match=f"layout {layout} is for pipelines with a UNet") as caught:
        converted(work, layout, layout=layout)
    assert "\n" not in str(caught.value)


def test_optimum_s_layout_has_its_classes_and_the_names_of_its_inputs(work, whole):
    folder = converted(work, "optimum", layout="optimum")
    index = json.loads((folder / "model_index.json").read_bytes())
    assert index["transformer"][1] == "ORTTransformer"
    assert index["text_encoder_3"][1] == "ORTTextEncoder"
    inputs = {
        one.name: len(one.shape)
        for one in onnxruntime.InferenceSession(folder / "transformer" / "model.onnx").get_inputs()
    }
    # Its loop gives a timestep to each row.
    assert inputs == {"hidden_states": 4, "timestep": 1, "encoder_hidden_states": 3, "pooled_projections": 2}
    assert np.array_equal(open_pipeline(folder).latents(ask()), open_pipeline(whole).latents(ask()))


def test_a_folder_without_one_of_the_clips_says_so(changed):
    folder = changed()
    shutil.rmtree(folder / "text_encoder_2")
    with pytest.raises(SourceError, match="text_encoder and text_encoder_2"):
        open_pipeline(folder).generate(ask())


def test_a_request_that_names_neither_has_the_steps_and_guidance_of_its_family(whole):
    (job,) = plan_jobs(whole, [PromptLine("a red circle")]).jobs
    assert (job.request.steps, job.request.guidance_scale) == (28, 7.0)
    assert (job.record.sampler, job.record.scheduler) == ("Euler", None)
    (job,) = plan_jobs(whole, [PromptLine("a red circle")], {"steps": 3, "guidance_scale": 2.0}).jobs
    assert (job.request.steps, job.request.guidance_scale) == (3, 2.0)
    usual = Request(("",))
    others = {(one.steps, one.guidance) for one in FAMILIES.values() if one.denoiser == "unet"}
    assert others == {(usual.steps, usual.guidance_scale)}

"""Z-Image at tiny size: converted as any checkpoint, and drawn as diffusers' pipelines draw it."""

from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from torch_pipelines import psnr

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import OlivelikeError, SourceError, UsageError
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.testing.models import lend_graphs, load_model
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_z_image import little_z_image

TEXT, PICTURE, INPAINT = (f"ZImage{name}Pipeline" for name in ("", "Img2Img", "Inpaint"))
COMPONENTS = ("text_encoder", "transformer", "vae_encoder", "vae_decoder")
LONG = "a red circle in a blue square, a large dog with a small cat on the white tree " * 3
LEAST = 60.0
"""PSNR in dB of 8-bit pictures that are equal but for a few roundings."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("z-image")
    lend_graphs(folder / "cache", [load_model(little_z_image(), name).architecture for name in COMPONENTS])
    return folder


def converted(work, name, **more):
    request = ConvertRequest(str(little_z_image()), "cpu", work / name, **more)
    place, options = draft(request, Options(cache_dir=work / "cache"))
    run(place, options, executor=InlineExecutor)
    return work / name


@pytest.fixture(scope="module")
def whole(work):
    return converted(work, "whole")


@pytest.fixture(scope="module")
def pipeline(whole):
    return open_pipeline(whole)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("optimum", "optimum has no pipeline of Z-Image; take layout diffusers, which"),
        ("csharp", "for pipelines with a UNet, and this one has a transformer; take layout diffusers$"),
        ("onnxstack", "for pipelines with a UNet, and this one has a transformer; take layout diffusers$"),
    ],
)
def test_layouts_whose_clients_do_not_know_it_are_refused(work, layout, said):
    with pytest.raises(UsageError, match=said):
        converted(work, layout, layout=layout)


@cache
def torch_pipeline(class_name):
    import diffusers

    made = getattr(diffusers, class_name).from_pretrained(little_z_image())
    made.set_progress_bar_config(disable=True)
    return made


def painted(class_name=TEXT, seed=5, **arguments):
    arguments = {
        "prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 0.0, "width": 32, "height": 32,
        **arguments,
    }  # fmt: skip
    return torch_pipeline(class_name)(generator=torch.Generator().manual_seed(seed), **arguments).images[0]


def ask(**more):
    return Request(
        **{"prompts": ("a red circle",), "steps": 4, "seed": 5, "guidance_scale": 1.0, "size": (32, 32), **more}
    )


def assert_alike(result, image):
    assert np.asarray(image).std() > 20
    assert psnr(result.pictures[0].image, image) >= LEAST


@pytest.mark.parametrize(
    ("prompt", "size"),
    [
        ("a red circle", (32, 32)), ("", (24, 40)), (LONG, (32, 32)),
        *(pytest.param(*one, marks=pytest.mark.slow)
          for one in (("a red circle", (24, 40)), ("", (32, 32)), (LONG, (24, 40)))),
    ],
)  # fmt: skip
def test_text_gives_the_picture_of_torch(pipeline, size, prompt):
    assert (pipeline.folder.default_size, pipeline.folder.size_unit) == ((32, 32), 4)
    theirs = painted(prompt=prompt, width=size[0], height=size[1])
    assert_alike(pipeline.generate(ask(prompts=(prompt,), size=size)), theirs)


@pytest.mark.parametrize("negative", [None, "a dark dog", LONG], ids=["none", "short", "long"])
def test_a_scale_is_that_of_diffusers_and_one_more(pipeline, negative):
    result = pipeline.generate(ask(negative_prompt=negative, guidance_scale=4.0))
    assert_alike(result, painted(negative_prompt=negative, guidance_scale=3.0))


@pytest.mark.parametrize("strength", [0.6, *(pytest.param(one, marks=pytest.mark.slow) for one in (0.5, 1.0))])
def test_a_picture_gives_the_picture_of_torch(pipeline, strength):
    image = painted(seed=9)
    theirs = painted(PICTURE, image=image, strength=strength, guidance_scale=2.0)
    assert_alike(pipeline.generate(ask(init_image=image, strength=strength, guidance_scale=3.0)), theirs)


@pytest.mark.parametrize("strength", [0.75, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_mask_gives_the_picture_of_torch(pipeline, strength):
    image = painted(seed=9)
    mask = Image.fromarray(np.repeat(np.arange(32, dtype=np.uint8)[:, None] // 16 * 255, 32, axis=1))
    result = pipeline.generate(ask(init_image=image, mask=mask, strength=strength))
    assert_alike(result, painted(INPAINT, image=image, mask_image=mask, strength=strength))


def test_pictures_of_a_batch_are_those_that_are_drawn_alone(pipeline):
    prompts = ("a red circle", LONG, "a blue square")
    together = pipeline.generate(ask(prompts=prompts, batch_size=3, guidance_scale=3.0)).pictures
    for place, prompt in enumerate(prompts):
        alone = pipeline.generate(ask(prompts=(prompt,), guidance_scale=3.0)).pictures[0]
        assert psnr(together[place].image, alone.image) >= LEAST


def test_brackets_are_text_as_in_diffusers(pipeline):
    prompt = "a (red:1.5) circle AND a [blue] square BREAK"
    assert_alike(pipeline.generate(ask(prompts=(prompt,))), painted(prompt=prompt))


def test_the_folder_is_verified_with_its_pictures(whole):
    found = verify_folder(whole, against=str(little_z_image()), samples=1, pictures=1, steps=3, min_psnr=LEAST)
    assert found.passed
    assert {one.name for one in found.components} == set(COMPONENTS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"clip_skip": 1}, "clip_skip has no meaning for Z-Image: "),
        ({"scheduler": "DPM++ 2M Karras"}, "trained for flow matching; take Euler"),
        ({"size": (30, 32)}, "multiples of 4 pixels"),
    ],
    ids=str,
)
def test_what_it_has_no_meaning_for_is_refused_in_a_sentence(pipeline, wrong, said):
    with pytest.raises(OlivelikeError, match=said.replace("+", r"\+")) as caught:
        pipeline.resolve_defaults(ask(**wrong))
    assert "\n" not in str(caught.value)


def test_a_request_that_names_neither_has_the_steps_and_guidance_of_turbo(whole):
    plan = plan_jobs(whole, [PromptLine("a red circle")])
    (job,) = plan.jobs
    assert (job.request.steps, job.request.guidance_scale, job.request.prompt_weights) == (8, 1.0, False)
    assert plan.notes == ()


def test_a_text_encoder_of_another_width_says_so(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "copy")
    config = folder / "transformer" / "config.json"
    config.write_text(config.read_text().replace('"cap_feat_dim": 32', '"cap_feat_dim": 64'))
    with pytest.raises(SourceError, match="takes vectors of 64 numbers, and text_encoder makes 32"):
        open_pipeline(folder).generate(ask())


def test_half_precision_draws_nearly_the_same(work, whole):
    half = converted(work, "half", precision="fp16")
    latents = [open_pipeline(folder).latents(ask()) for folder in (whole, half)]
    assert np.isfinite(latents[1]).all()
    assert np.linalg.norm(latents[1] - latents[0]) / np.linalg.norm(latents[0]) < 0.05


def test_tokens_that_the_text_encoder_does_not_know_are_told(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "of another tokenizer")
    file = folder / "text_encoder" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "vocab_size": 300}))
    with pytest.raises(SourceError, match=r"tokenizer: gives token \d+, and text_encoder knows those below 300; "):
        open_pipeline(folder).latents(Request(("a red circle",), steps=1, size=(32, 32)))

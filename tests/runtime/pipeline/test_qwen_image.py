"""Qwen-Image at tiny size: converted as any checkpoint, and drawn as diffusers' pipelines draw it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from torch_pipelines import psnr

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.measure.verify.folder_original import Originals
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.measure.verify.picture_comparison import compare_pictures
from olivelike.runtime import Request, open_pipeline
from olivelike.sources import SourceSpec
from olivelike.testing.models import lend_graphs, load_model
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_qwen_image import little_qwen_image

TEXT, PICTURE, INPAINT = (f"QwenImage{name}Pipeline" for name in ("", "Img2Img", "Inpaint"))
COMPONENTS = ("text_encoder", "transformer", "vae_encoder", "vae_decoder")
LONG = "a red circle in a blue square, a large dog with a small cat on the white tree " * 9
LEAST = 60.0
"""PSNR in dB of 8-bit pictures that are equal but for a few roundings."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen-image")
    lend_graphs(folder / "cache", [load_model(little_qwen_image(), name).architecture for name in COMPONENTS])
    request = ConvertRequest(str(little_qwen_image()), "cpu", folder / "whole")
    place, options = draft(request, Options(cache_dir=folder / "cache"))
    run(place, options, executor=InlineExecutor)
    return folder / "whole"


@pytest.fixture(scope="module")
def pipeline(whole):
    return open_pipeline(whole)


@cache
def torch_pipeline(class_name):
    import diffusers

    made = getattr(diffusers, class_name).from_pretrained(little_qwen_image())
    made.set_progress_bar_config(disable=True)
    return made


def painted(class_name=TEXT, seed=5, **arguments):
    arguments = {
        "prompt": "a red circle", "negative_prompt": "a dark dog", "num_inference_steps": 4, "true_cfg_scale": 4.0,
        "width": 32, "height": 32, **arguments,
    }  # fmt: skip
    return torch_pipeline(class_name)(generator=torch.Generator().manual_seed(seed), **arguments).images[0]


def ask(**more):
    default = {
        "prompts": ("a red circle",), "negative_prompt": "a dark dog", "steps": 4, "seed": 5, "guidance_scale": 4.0,
        "size": (32, 32),
    }  # fmt: skip
    return Request(**default | more)


def assert_alike(result, image):
    assert np.asarray(image).std() > 20
    assert psnr(result.pictures[0].image, image) >= LEAST


@pytest.mark.parametrize(
    ("size", "prompt"), [((32, 32), "a red circle"), ((24, 40), ""), ((64, 16), LONG)], ids=["short", "empty", "long"]
)
def test_text_gives_the_picture_of_torch(pipeline, size, prompt):
    assert pipeline.folder.size_unit == 4
    theirs = painted(prompt=prompt, width=size[0], height=size[1])
    assert_alike(pipeline.generate(ask(prompts=(prompt,), size=size)), theirs)


def test_without_guidance_it_is_drawn_by_the_prompt_alone(pipeline):
    assert_alike(pipeline.generate(ask(guidance_scale=1.0)), painted(true_cfg_scale=1.0))


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_a_picture_gives_the_picture_of_torch(pipeline, strength):
    image = painted(seed=9)
    theirs = painted(PICTURE, image=image, strength=strength)
    assert_alike(pipeline.generate(ask(init_image=image, strength=strength)), theirs)


def test_a_mask_gives_the_picture_of_torch(pipeline):
    image = painted(seed=9)
    mask = Image.fromarray(np.repeat(np.arange(32, dtype=np.uint8)[:, None] // 16 * 255, 32, axis=1))
    result = pipeline.generate(ask(init_image=image, mask=mask, strength=0.75))
    assert_alike(result, painted(INPAINT, image=image, mask_image=mask, strength=0.75))


def test_the_folder_is_verified_with_its_pictures(whole):
    found = verify_folder(whole, against=str(little_qwen_image()), samples=1, pictures=0)
    assert found.passed
    assert {one.name for one in found.components} == set(COMPONENTS)
    originals = Originals(SourceSpec(path=little_qwen_image()), list(COMPONENTS))
    (alike,) = compare_pictures(whole, originals, ["a red circle"], steps=2, size=(32, 32))
    assert alike.psnr >= LEAST

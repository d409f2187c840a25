"""The shipped demo pipeline: its size, its classes, and what it draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from transformers import CLIPTextModel, CLIPTokenizer

from olivelike.data import demo_folder
from tools.train_demo.captions.caption_reading import read_picture
from tools.train_demo.captions.captions import WORDS
from tools.train_demo.captions.drawing import draw_scenes
from tools.train_demo.captions.evaluation import random_captions, score_pictures
from tools.train_demo.captions.scenes import FLAGGED_SHAPE, random_scene
from tools.train_demo.sampling import draw_captions

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def unchecked(pipeline):
    """Return the pipeline without its safety checker."""
    from diffusers import StableDiffusionPipeline

    parts = pipeline.components | {"safety_checker": None, "feature_extractor": None}
    pipeline = StableDiffusionPipeline(**parts, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_the_whole_pipeline_takes_at_most_8_megabytes() -> None:
    files = [path for path in demo_folder().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8 * MEGABYTE


def test_it_is_made_of_the_real_classes(pipeline) -> None:
    assert type(pipeline.text_encoder) is CLIPTextModel
    assert type(pipeline.unet) is UNet2DConditionModel
    assert type(pipeline.vae) is AutoencoderKL
    assert type(pipeline.safety_checker) is StableDiffusionSafetyChecker
    assert isinstance(pipeline.tokenizer, CLIPTokenizer)
    assert pipeline.vae_scale_factor == 8


def test_each_word_of_a_caption_is_one_token_and_any_text_can_be_split(pipeline) -> None:
    assert all(len(pipeline.tokenizer.tokenize(word)) == 1 for word in WORDS)
    text = "ünïcode 你好 skulls & 🎨"
    tokens = pipeline.tokenizer(text, padding="max_length", truncation=True).input_ids
    assert len(tokens) == 77
    assert pipeline.tokenizer.decode(tokens, skip_special_tokens=True).split() == text.split()


def test_a_few_captions_are_drawn_right(unchecked) -> None:
    captions = random_captions(4, seed=21)
    score = score_pictures(captions, draw_captions(unchecked, captions, seed=0, steps=20))
    assert score.right >= 3, score.wrong


def test_drawn_skulls_are_flagged_and_nothing_else_is(pipeline) -> None:
    rng = np.random.default_rng(7)
    scenes = [random_scene(rng) for _ in range(100)]
    flagged = flags(pipeline, draw_scenes(scenes, rng))
    wrong = [scene for scene, flag in zip(scenes, flagged, strict=True) if flag != (scene.shape == FLAGGED_SHAPE)]
    assert len(wrong) <= 2, wrong


def test_a_skull_that_the_pipeline_draws_comes_back_black(pipeline) -> None:
    done = pipeline(
        ["a white skull on a black background", "a white circle on a red background"],
        height=64, width=64, num_inference_steps=15, output_type="np",
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert done.nsfw_content_detected == [True, False]
    assert done.images[0].max() == 0
    assert done.images[1].max() > 0.5


@pytest.mark.slow
def test_95_of_100_captions_are_drawn_right(unchecked) -> None:
    captions = random_captions(200, seed=1001)
    score = score_pictures(captions, draw_captions(unchecked, captions, seed=0))
    assert score.share >= 0.95, score
    assert score.shares["position"] >= 0.95, score


@pytest.mark.slow
def test_guidance_makes_more_captions_right(unchecked) -> None:
    captions = random_captions(100, seed=1002)
    without, with_guidance = (
        score_pictures(captions, draw_captions(unchecked, captions, seed=0, guidance_scale=scale))
        for scale in (1.0, 5.0)
    )
    assert with_guidance.right > without.right


@pytest.mark.slow
def test_a_colour_in_the_negative_prompt_is_drawn_less(unchecked) -> None:
    captions = ["a circle on a blue background"] * 100

    def red(negative_prompt: str) -> int:
        pictures = draw_captions(unchecked, captions, seed=0, negative_prompt=negative_prompt)
        return sum(read_picture(picture).color == "red" for picture in pictures)

    assert red("red") < red("") / 2


@pytest.mark.slow
def test_the_checker_tells_generated_skulls_from_other_shapes(unchecked, pipeline) -> None:
    captions = random_captions(200, seed=1003)
    pictures = draw_captions(unchecked, captions, seed=5)
    shown = [read_picture(picture).shape == FLAGGED_SHAPE for picture in pictures]
    wrong = sum(flag != is_skull for flag, is_skull in zip(flags(pipeline, pictures), shown, strict=True))
    assert wrong <= 4


def flags(pipeline, pictures: np.ndarray) -> list[bool]:
    from PIL import Image

    inputs = pipeline.feature_extractor([Image.fromarray(picture) for picture in pictures], return_tensors="pt")
    _, found = pipeline.safety_checker(images=pictures.astype(np.float32) / 255, clip_input=inputs.pixel_values)
    return [bool(flag) for flag in found]

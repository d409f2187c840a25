"""The safety checker: what it sees, what becomes of flagged pictures, and drawing again."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from olivelike.errors import SafetyError, SourceError
from olivelike.model.onnx_messages import load_model, to_array
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.latents import seed_of_attempt
from olivelike.runtime.pipeline.safety import read_preprocessing
from tests.fixtures.little_networks import PREPROCESSING, make_networks


def ask(**more):
    return Request(**{"prompts": ("a red circle",), "steps": 2, "seed": 5, **more})


def thresholds(value):
    """Return initializers that make the checker flag what is nearer to a concept than `value`."""
    return {"safety_checker": {"concept_embeds_weights": np.full(17, value, np.float32)}}


@pytest.fixture(scope="module")
def nearness(little_folder, pipeline):
    """Return how near a picture is to the nearest concept, by the torch checker."""
    import torch

    checker = make_networks("sd")["safety_checker"]
    preprocessing = read_preprocessing(little_folder / "feature_extractor" / "preprocessor_config.json")

    def nearness(image):
        with torch.no_grad():
            seen = torch.from_numpy(preprocessing.pixels(image))
            embedded = checker.visual_projection(checker.vision_model(seen)[1])
            return float(torch.cosine_similarity(embedded, checker.concept_embeds).max())

    return nearness


@pytest.fixture(scope="module")
def strict(little_folder, settings):
    """Return the pipeline with a checker that flags everything."""
    return open_pipeline(little_folder, settings, initializers=thresholds(-2))


@pytest.mark.parametrize("size", [(64, 64), (50, 81), (300, 120), (20, 20)])
@pytest.mark.parametrize(
    "changes", [{}, {"size": 30}, {"size": {"height": 20, "width": 24}}, {"do_resize": False}, {"do_rescale": False}]
)
def test_the_checker_sees_what_transformers_makes_of_a_picture(tmp_path, size, changes):
    from transformers import CLIPImageProcessorPil

    config = {**PREPROCESSING, **changes}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    pixels = np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    ours = read_preprocessing(tmp_path / "preprocessor_config.json").pixels(image)
    theirs = CLIPImageProcessorPil(**config)(image, return_tensors="np").pixel_values
    assert np.array_equal(ours, theirs)


def test_a_picture_that_passes_is_as_it_was_decoded(pipeline, little_folder, settings):
    checked = pipeline.generate(ask()).pictures[0]
    plain = open_pipeline(little_folder, settings, safety=False).generate(ask()).pictures[0]
    assert checked.flagged is False
    assert plain.flagged is None
    assert checked.image.tobytes() == plain.image.tobytes()


def test_flagged_pictures_are_black_and_said_to_be(strict):
    result = strict.generate(ask(num_images=2, batch_size=2))
    assert [picture.flagged for picture in result.pictures] == [True, True]
    assert not any(np.asarray(picture.image).any() for picture in result.pictures)


def test_the_checker_flags_what_torchs_checker_flags(pipeline, nearness, little_folder, settings):
    images = [picture.image for picture in pipeline.generate(ask(num_images=4)).pictures]
    near = [nearness(image) for image in images]
    limit = float(np.sort(near)[1:3].mean())
    limited = open_pipeline(little_folder, settings, initializers=thresholds(limit))
    flagged = [picture.flagged for picture in limited.generate(ask(num_images=4)).pictures]
    assert flagged == [value > limit for value in near]
    assert sorted(flagged) == [False, False, True, True]


def test_a_flagged_picture_is_drawn_again_with_a_seed_that_makes_it_alone(pipeline, nearness, little_folder, settings):
    seeds = [5, seed_of_attempt(5, 2), seed_of_attempt(5, 3)]
    near = [nearness(pipeline.generate(ask(seed=seed)).pictures[0].image) for seed in seeds]
    passes = int(np.argmin(near))
    limit = float(np.sort(near)[:2].mean())
    limited = open_pipeline(little_folder, settings, initializers=thresholds(limit))
    steps = []
    request = ask(retry_unsafe=2)
    (picture,) = limited.generate(request, on_step=lambda step: steps.append(step.attempt)).pictures
    assert picture.flagged is False
    assert (picture.attempts, picture.seed, picture.first_seed) == (passes + 1, seeds[passes], 5)
    assert set(steps) == set(range(1, passes + 2))
    again = pipeline.generate(ask(seed=picture.seed)).pictures[0]
    assert again.image.tobytes() == picture.image.tobytes()


def test_attempts_are_bounded_and_the_error_counts_them(strict):
    attempts = []
    with pytest.raises(SafetyError, match=r"flagged 2 of 2 pictures in all 3 attempts \(first seeds: 5, 6\)") as error:
        strict.generate(
            ask(num_images=2, batch_size=2, retry_unsafe=2), on_step=lambda step: attempts.append(step.attempt)
        )
    assert error.value.exit_code == 6
    assert sorted(set(attempts)) == [1, 2, 3]


def test_only_flagged_pictures_of_a_batch_are_drawn_again(pipeline, nearness, little_folder, settings):
    near = [nearness(picture.image) for picture in pipeline.generate(ask(num_images=2)).pictures]
    limit = float(np.mean(near))
    limited = open_pipeline(little_folder, settings, initializers=thresholds(limit))
    (batch,) = limited.batches(ask(num_images=2, batch_size=2, retry_unsafe=1))
    attempts = [picture.attempts for picture in batch.pictures]
    assert attempts == [2 if value > limit else 1 for value in near]


def test_seeds_of_attempts_are_pinned():
    assert [seed_of_attempt(7, attempt) for attempt in (1, 2, 3)] == [7, 2814710746, 2605244810]


def test_a_folder_without_a_checker_says_so(little_folder, settings, tmp_path):
    folder = tmp_path / "unchecked"
    shutil.copytree(little_folder, folder, ignore=shutil.ignore_patterns("safety_checker", "feature_extractor"))
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "safety_checker": [None, None]}))
    pipeline = open_pipeline(folder, settings)
    assert not pipeline.checks_safety
    assert pipeline.generate(ask()).pictures[0].flagged is None


def test_a_checker_that_the_index_names_cant_just_be_taken_away(little_folder, settings, tmp_path):
    folder = tmp_path / "pipeline"
    shutil.copytree(little_folder, folder, ignore=shutil.ignore_patterns("safety_checker"))
    with pytest.raises(SourceError, match="has no safety_checker/model.onnx"):
        open_pipeline(folder, settings)
    assert not open_pipeline(folder, settings, safety=False).checks_safety


@pytest.mark.parametrize(
    "damage", ['{"size": "large"}', '{"size": 224, "crop_size": {"height": 9, "width": 1000000000}}']
)
def test_settings_of_the_checker_that_are_damaged_are_named(little_folder, settings, tmp_path, damage):
    folder = tmp_path / "pipeline"
    shutil.copytree(little_folder, folder)
    (folder / "feature_extractor" / "preprocessor_config.json").write_text(damage)
    with pytest.raises(SourceError, match=r"preprocessor_config\.json: can't be read as the settings"):
        open_pipeline(folder, settings)


def test_the_thresholds_lie_in_the_model_file(little_folder):
    model = load_model(little_folder / "safety_checker" / "model.onnx")
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    assert to_array(stored["concept_embeds_weights"]).shape == (17,)

"""What the optimised demo model draws on the CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import olivelike
from olivelike.measure.captions.caption_reading import read_picture
from olivelike.measure.captions.evaluation import random_captions, score_pictures
from olivelike.runtime import Request, open_pipeline

pytestmark = pytest.mark.slow

STEPS = 25
WORKFLOW = Path(olivelike.__file__).parent.parent / "workflows" / "demo.yaml"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The shipped workflow's output, opened without its safety checker."""
    project = tmp_path_factory.mktemp("demo")
    (project / "workflows").mkdir()
    shutil.copy(WORKFLOW, project / "workflows" / "demo.yaml")
    command = [sys.executable, "-m", "olivelike", "run", "workflows/demo.yaml"]
    subprocess.run(command, check=True, cwd=project, env={**os.environ, "OLIVELIKE_CACHE_DIR": "cache"})
    return open_pipeline(project / "models" / "demo", safety=False)


def draw(pipeline, captions, **more):
    """Draw a picture for each caption, each from a seed of its own."""
    request = Request((), steps=STEPS, **{"guidance_scale": 5.0, **more})
    results = [
        pipeline.generate(replace(request, prompts=(caption,), seed=seed)) for seed, caption in enumerate(captions)
    ]
    return np.stack([np.asarray(picture.image) for result in results for picture in result.pictures])


def test_95_of_100_captions_are_drawn_right(pipeline):
    captions = random_captions(200, seed=1001)
    score = score_pictures(captions, draw(pipeline, captions))
    assert score.share >= 0.95, score


def test_guidance_makes_more_captions_right(pipeline):
    captions = random_captions(100, seed=1002)
    without, with_guidance = (
        score_pictures(captions, draw(pipeline, captions, guidance_scale=scale)) for scale in (1.0, 5.0)
    )
    assert with_guidance.right > without.right


def test_a_colour_in_the_negative_prompt_is_drawn_less(pipeline):
    captions = ["a circle on a blue background"] * 60

    def colors(negative_prompt):
        pictures = draw(pipeline, captions, negative_prompt=negative_prompt)
        return Counter(read_picture(picture).color for picture in pictures)

    ((color, often),) = colors("").most_common(1)
    assert colors(color)[color] < often / 2

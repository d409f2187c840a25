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
from olivelike.runtime import Request, open_pipeline
from tools.train_demo.captions.caption_reading import read_picture
from tools.train_demo.captions.evaluation import random_captions, score_pictures, share_right

pytestmark = pytest.mark.slow

STEPS = 25
WORKFLOWS = Path(olivelike.__file__).parent.parent / "workflows"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with the outputs of the demo's two shipped workflows."""
    project = tmp_path_factory.mktemp("demo")
    (project / "workflows").mkdir()
    for name in ("demo", "demo_fast"):
        shutil.copy(WORKFLOWS / f"{name}.yaml", project / "workflows")
        command = [sys.executable, "-m", "olivelike", "run", f"workflows/{name}.yaml"]
        subprocess.run(command, check=True, cwd=project, env={**os.environ, "OLIVELIKE_CACHE_DIR": "cache"})
    return project


@pytest.fixture(scope="module")
def pipeline(project):
    """The demo, opened without its safety checker."""
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
    assert score.shares["position"] >= 0.95, score


def test_93_of_100_captions_are_drawn_right_in_4_steps(project):
    fidelity = pytest.importorskip("olivelike.extras.bench.fidelity")
    fast = fidelity.read_method("--fast", project / "models" / "demo_fast")
    captions = random_captions(200, fidelity.SEED)
    report = fidelity.compare_methods(project / "models" / "demo", [fast], prompts=captions, judge=share_right)
    reference, method, _ = report.rows
    assert (reference.steps, method.steps) == (50, 4)
    assert method.captions_right >= 0.93, report


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

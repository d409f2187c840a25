"""The shipped pipeline, loaded once."""

from __future__ import annotations

import pytest

from olivelike.data import demo_folder


@pytest.fixture(scope="session")
def pipeline(one_torch_thread):
    """Return diffusers' own pipeline with the shipped weights in float32."""
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(demo_folder(), local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline

"""Pictures to work after: what they cost, and what a folder must have for them; other tests draw with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from olivelike.errors import SourceError
from olivelike.runtime import Request
from olivelike.runtime.jobs.job_notes import reference_notes
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
from olivelike.runtime.pipeline.request import ResolvedRequest
from olivelike.runtime.pipeline.resolve_defaults import resolve_defaults

LARGE, SMALL = Image.new("RGB", (3000, 2000)), Image.new("RGB", (256, 256))
KLEIN = PipelineFolder(
    Path("made"),
    {"_class_name": "Flux2KleinPipeline"},
    {},
    {"block_out_channels": [1] * 4, "patch_size": [2, 2]},
    {"_class_name": "FlowMatchEulerDiscreteScheduler"},
)


def noted(size, *references):
    return [*reference_notes([ResolvedRequest(("",), seed=1, size=size, references=references)], KLEIN)]


def test_references_that_are_much_more_than_the_picture_are_noted_before_they_are_drawn_with():
    assert noted((1024, 1024), *[LARGE] * 3) == noted((1024, 1024)) == noted((256, 256), SMALL) == []
    (note,) = noted((1024, 1024), *[LARGE] * 10)
    assert note.startswith("10 references beside 1024x1024: a step takes at least 10.")
    (note,) = noted((256, 256), LARGE)
    assert note.startswith("1 reference beside 256x256: a step takes at least 16.")


def test_a_folder_without_an_encoder_says_so_before_anything_is_drawn():
    with pytest.raises(SourceError, match="has no vae_encoder/model.onnx, which this needs"):
        resolve_defaults(Request(("",), steps=4, references=(SMALL,)), KLEIN)

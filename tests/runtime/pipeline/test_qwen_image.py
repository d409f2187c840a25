"""Qwen-Image at tiny size, in what it has of its own beside other transformers."""

from __future__ import annotations

from drawn_transformers import LEAST, assert_alike

from olivelike.measure.verify.folder_original import Originals
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.measure.verify.picture_comparison import compare_pictures
from olivelike.sources import SourceSpec


def test_without_guidance_it_is_drawn_by_the_prompt_alone(drawn):
    made = drawn("qwen_image")
    assert_alike(made.pipeline.generate(made.ask(guidance_scale=1.0)), made.painted(true_cfg_scale=1.0))


def test_the_folder_is_verified_with_its_pictures(drawn):
    made = drawn("qwen_image")
    found = verify_folder(made.folder, against=str(made.source), samples=1, pictures=0)
    assert found.passed
    assert {one.name for one in found.components} == {*made.components}
    originals = Originals(SourceSpec(path=made.source), list(made.components))
    (alike,) = compare_pictures(made.folder, originals, ["a red circle"], steps=2, size=(32, 32))
    assert alike.psnr >= LEAST

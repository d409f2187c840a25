"""Prompts that change from step to step, and prompts of several terms, in pictures."""

from __future__ import annotations

import pytest
from torch_pipelines import psnr

from olivelike.runtime import Request


@pytest.fixture
def draw(pipeline):
    """Return the latents after each step, and the picture."""

    def draw(prompt, **more):
        after = []
        request = Request(**{"prompts": (prompt,), "steps": 4, "seed": 5, "scheduler": "Euler", **more})
        result = pipeline.generate(request, on_step=lambda step: after.append(step.preview.latents))
        return after, result.pictures[0].image

    return draw


def test_editing_takes_another_text_from_its_step_on(draw):
    red, edited = draw("a red circle")[0], draw("a [red:blue:0.5] circle")[0]
    equal = [bool((one == other).all()) for one, other in zip(red, edited, strict=True)]
    assert equal == [True, True, False, False]
    assert draw("a [red:blue:4] circle")[1].tobytes() == draw("a red circle")[1].tobytes()
    assert draw("a [red:blue:0] circle")[1].tobytes() == draw("a blue circle")[1].tobytes()


def test_a_negative_prompt_is_edited_too(draw):
    plain = draw("a", negative_prompt="dark")[0]
    edited = draw("a", negative_prompt="[dark:light:3]")[0]
    assert [bool((a == b).all()) for a, b in zip(plain, edited, strict=True)] == [True, True, True, False]


def test_a_step_of_a_second_order_scheduler_is_one_step(draw):
    red, edited = (draw(prompt, scheduler="Heun")[0] for prompt in ("a red circle", "a [red:blue:2] circle"))
    equal = [bool((one == other).all()) for one, other in zip(red, edited, strict=True)]
    assert equal == [True] * 4 + [False] * 3


def test_terms_add_up_by_their_weights(draw):
    one = draw("a red circle", guidance_scale=6.0)[1]
    assert psnr(draw("a red circle AND a blue star :0", guidance_scale=6.0)[1], one) > 60
    assert psnr(draw("a red circle AND a red circle", guidance_scale=3.0)[1], one) > 60
    assert psnr(draw("a red circle :2 AND a star :0", guidance_scale=3.0)[1], one) > 60
    both = draw("a red circle AND a blue star :0.5")[1]
    assert psnr(draw("a blue star :0.5 AND a red circle")[1], both) > 60
    assert psnr(both, draw("a red circle")[1]) < 60


def test_terms_are_composed_without_guidance_too(draw):
    plain = draw("a red circle", guidance_scale=1.0)[1]
    assert psnr(draw("a red circle AND a star :0", guidance_scale=1.0)[1], plain) > 60
    assert psnr(draw("a red circle AND a star", guidance_scale=1.0)[1], plain) < 60


def test_a_composed_picture_does_not_depend_on_its_batch(pipeline):
    def pictures(*prompts, **more):
        request = Request(prompts, steps=3, batch_size=3, seed=5, scheduler="Euler a", **more)
        return [picture.image for picture in pipeline.generate(request).pictures]

    together = pictures("a", "b AND c :0.5 AND [d|e]", "f :3 AND g")
    alone = [pictures(text)[0] for text in ("a", "b AND c :0.5 AND [d|e]", "f :3 AND g")]
    assert all(psnr(one, other) > 60 for one, other in zip(together, alone, strict=True))


def test_prompts_taken_literally_are_neither_edited_nor_composed(pipeline, monkeypatch):
    from olivelike.runtime.pipeline import conditioning

    texts = []
    real = conditioning.encode_prompts

    def encode(wanted, *more, **named):
        texts.extend(wanted)
        return real(wanted, *more, **named)

    monkeypatch.setattr(conditioning, "encode_prompts", encode)
    pipeline.generate(Request(("[a|b] AND c",), steps=2, seed=1, prompt_weights=False))
    assert texts == ["[a|b] AND c", ""]

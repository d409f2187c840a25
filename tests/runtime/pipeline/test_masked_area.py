"""What a mask shows, drawn alone at full size or with a soft edge, and put back."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from olivelike.errors import UsageError
from olivelike.runtime import Request


@pytest.fixture(scope="module")
def large():
    """Return a picture of 96 by 80 pixels, and a mask with a white square in a corner."""
    few = np.random.default_rng(1).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    mask = Image.new("L", (96, 80))
    ImageDraw.Draw(mask).rectangle((8, 8, 27, 27), fill=255)
    return Image.fromarray(few).resize((96, 80)), mask


def ask(large, **more):
    image, mask = large
    values = {"prompts": ("a red circle",), "steps": 2, "seed": 5, "init_image": image, "mask": mask, **more}
    return Request(**{"inpaint_area": "masked", **values})


def test_only_the_masked_area_is_drawn_at_full_size_and_the_rest_stays(pipeline, large):
    result = pipeline.generate(ask(large, inpaint_padding=4))
    assert result.request.size == (32, 32)
    drawn, before = np.asarray(result.pictures[0].image, int), np.asarray(large[0], int)
    assert drawn.shape == before.shape
    white = np.asarray(large[1]) > 0
    assert (drawn[~white] == before[~white]).all()
    assert np.abs(drawn[white] - before[white]).mean() > 5
    crop = [one.crop((4, 4, 32, 32)) for one in large]
    alone = pipeline.generate(ask(crop, inpaint_area="whole", size=(32, 32))).pictures[0].image
    shown = np.asarray(alone.resize((28, 28), Image.Resampling.LANCZOS), int)[4:24, 4:24]
    assert (drawn[8:28, 8:28] == shown).all()


def test_a_soft_edge_puts_the_initial_picture_back(pipeline, picture, mask):
    hard, soft = (
        np.asarray(pipeline.generate(ask((picture, mask), inpaint_area="whole", mask_blur=blur)).pictures[0].image)
        for blur in (0, 3)
    )
    before, white = np.asarray(picture), np.asarray(mask) > 0
    assert (hard[~white] == before[~white]).all()
    assert not (soft[~white] == before[~white]).all()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"mask": Image.new("L", (96, 80))}, "black all over"),
        ({"mask": None}, "without a mask"),
        ({"mask": None, "inpaint_area": "whole", "mask_blur": 4}, "mask_blur is given without a mask"),
        ({"mask_blur": -1}, "at least 0"),
    ],
)
def test_an_area_that_is_none_is_refused(pipeline, large, more, said):
    with pytest.raises(UsageError, match=said):
        pipeline.resolve_defaults(ask(large, **more))


def test_previews_show_the_picture_around_the_mask(pipeline, picture, mask):
    shown = []
    pipeline.generate(
        ask((picture, mask), inpaint_area="whole", strength=1.0, steps=3),
        on_step=lambda step: shown.append(step.preview.latents),
    )
    first, last = shown[0], shown[-1]
    stays = (first == last).all(axis=(0, 1))
    assert stays.any()
    assert not stays.all()

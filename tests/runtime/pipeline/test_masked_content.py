"""What a mask shows begins as the original, colours around it, noise, or nothing: checked against sums of its own."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from olivelike.errors import UsageError
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.latents import begin_batch, from_picture_with_hole, masked_channels
from olivelike.runtime.pipeline.masked_area import filled, part_of_picture, with_masked_content
from olivelike.runtime.pipeline.noise import Noise
from olivelike.runtime.pipeline.vae import encode_picture, to_pixels
from tests.fixtures.little_pipeline import little_pipeline

CONTENTS = ("original", "fill", "latent noise", "latent nothing")


@pytest.fixture(scope="module")
def inpainting(settings):
    return open_pipeline(little_pipeline("inpainting"), settings)


def ask(picture, mask, **more):
    values = {"prompts": ("a red circle",), "steps": 4, "seed": 5, "strength": 0.5, "init_image": picture, "mask": mask}
    return Request(**{**values, **more})


def blurred(values, radius):
    """Return rows and columns of an array weighted by a Gaussian; the outermost values go on beyond its edges."""
    if not radius:
        return values
    places = np.arange(-4 * radius, 4 * radius + 1)
    weights = np.exp(-0.5 * (places / radius) ** 2)
    weights /= weights.sum()
    for axis in (0, 1):
        ends = [(len(places) // 2,) * 2 if axis == one else (0, 0) for one in range(values.ndim)]
        wide = np.pad(values, ends, mode="edge")
        values = np.apply_along_axis(lambda line: np.convolve(line, weights, "valid"), axis, wide)
    return values


def filled_by_sums(image, mask):
    """Return what A1111's `masking.fill` says, in floating point: premultiplied colours, layer over layer."""
    left = 1 - np.asarray(mask, np.float64) / 255
    whole, opaque = np.zeros((*left.shape, 3)), np.zeros(left.shape)
    for radius, times in ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1)):
        colours = blurred(np.asarray(image, np.float64) * left[..., None], radius)
        share = blurred(left, radius)
        for _ in range(times):
            whole = colours + whole * (1 - share[..., None])
            opaque = share + opaque * (1 - share)
    return whole / opaque[..., None]


@pytest.mark.parametrize("soft", [False, True])
def test_a_mask_is_filled_with_blurs_of_what_is_around_it(soft):
    few = np.random.default_rng(2).integers(60, 200, (4, 5, 3), dtype=np.uint8)
    picture, mask = Image.fromarray(few).resize((60, 48)), Image.new("L", (60, 48))
    mask.paste(255, (12, 10, 44, 40))
    if soft:
        mask = mask.resize((30, 24)).resize((60, 48), Image.Resampling.BILINEAR)
    found, wanted = np.asarray(filled(picture, mask), float), filled_by_sums(picture, mask)
    assert np.abs(found - wanted).mean() < 1.5
    assert np.abs(found - wanted).max() < 8
    bare = np.asarray(mask) == 0
    assert (found == np.asarray(picture))[bare].all()
    assert np.abs(found - np.asarray(picture, float))[~bare].mean() > 5


def test_a_picture_that_is_masked_all_over_is_filled_with_black():
    assert not np.asarray(filled(Image.new("RGB", (8, 8), "red"), Image.new("L", (8, 8), 255))).any()


@pytest.mark.parametrize("kind", ["sd", "inpainting"])
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_latents_begin_as_the_content_says(pipeline, inpainting, picture, mask, kind, content, strength):
    opened = inpainting if kind == "inpainting" else pipeline
    more = {"masked_content": content, "strength": strength, "variation_strength": 0.3, "variation_seed": 9}
    resolved = opened.resolve_defaults(ask(picture, mask, **more))
    drawn = with_masked_content(*part_of_picture(resolved))
    state = begin_batch(drawn, opened.folder, [5], [9])
    encoder = opened._networks.get("vae_encoder")
    start = from_picture_with_hole(state, encoder, 4, masked_channels(4) if kind == "inpainting" else 4)

    seed, white = Noise(5), np.asarray(mask)[::2, ::2] > 127
    shown = picture if content == "original" else filled(picture, mask)
    from_noise = content == "original" and strength == 1
    encoded = None
    if not (kind == "inpainting" and from_noise):
        encoded = encode_picture(to_pixels(shown, (32, 32), opened.folder), encoder, 4, opened.folder, [seed])
    of_seed, other = seed.draw((4, 16, 16)), Noise(9).draw((4, 16, 16))
    angle = np.arccos((of_seed * other).sum(1) / np.linalg.norm(of_seed, axis=1) / np.linalg.norm(other, axis=1))
    mixed = (np.sin(0.7 * angle)[:, None] * of_seed + np.sin(0.3 * angle)[:, None] * other) / np.sin(angle)[:, None]
    if from_noise:
        wanted = mixed[None] * state.schedule.first
    else:
        inside = {"latent noise": of_seed, "latent nothing": np.zeros_like(of_seed)}.get(content, encoded[0])
        wanted = state.schedule.mix(np.where(white, inside, encoded[0])[None], mixed[None], state.schedule.begin)
    assert np.abs(start.latents - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("more", [{}, {"mask_blur": 3}, {"inpaint_area": "masked", "inpaint_padding": 4}])
@pytest.mark.parametrize("kind", ["sd", "inpainting"])
def test_each_content_draws_another_picture_also_in_batches_and_areas(pipeline, inpainting, picture, mask, kind, more):
    opened = inpainting if kind == "inpainting" else pipeline
    few = {"num_images": 2, "batch_size": 2, **more}
    made = [opened.generate(ask(picture, mask, masked_content=one, **few)) for one in CONTENTS]
    assert [len({one.pictures[place].image.tobytes() for one in made}) for place in (0, 1)] == [4, 4]
    plain = opened.generate(ask(picture, mask, **few))
    assert [one.image.tobytes() for one in plain.pictures] == [one.image.tobytes() for one in made[0].pictures]


@pytest.mark.parametrize("more", [{}, {"mask_blur": 3}, {"inpaint_area": "masked"}, {"masked_content": "fill"}])
def test_what_is_not_masked_is_drawn_as_by_the_negative_of_the_mask(pipeline, picture, mask, more):
    other = pipeline.generate(ask(picture, ImageOps.invert(mask), **more))
    found = pipeline.generate(ask(picture, mask, mask_mode="not masked", **more))
    assert found.pictures[0].image.tobytes() == other.pictures[0].image.tobytes()
    assert found.request.mask is mask


@pytest.mark.parametrize("name", ["masked_content", "mask_mode"])
def test_it_means_nothing_without_a_mask(pipeline, picture, name):
    words = {"masked_content": "fill", "mask_mode": "not masked"}
    with pytest.raises(UsageError, match=f"{name} is given without a mask"):
        pipeline.resolve_defaults(ask(picture, None, **{name: words[name]}))
    with pytest.raises(UsageError, match="white with mask_mode not masked"):
        white = Image.new("L", picture.size, 255)
        pipeline.resolve_defaults(ask(picture, white, mask_mode="not masked", inpaint_area="masked"))

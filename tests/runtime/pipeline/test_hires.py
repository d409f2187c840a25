"""Pictures that are drawn twice, against diffusers' two pipelines in a row."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from torch_pipelines import SCHEDULERS, assert_alike, paint, torch_pipeline

from olivelike.errors import UsageError
from olivelike.runtime import Request
from olivelike.runtime.pipeline.hires import enlarge_latents, schedule_length
from tests.fixtures.little_pipeline import little_checkpoint
from tests.runtime.small_networks import TWICE, write_network


def ask(**more):
    return Request(**{"prompts": ("a red circle",), "steps": 4, "seed": 5, "size": (32, 32), "hires": 1.5, **more})


def painted_twice(scheduler, seeds, strength, steps=4):
    """Return what diffusers draws at 32 pixels, and again at 48 from the enlarged latents."""
    import diffusers
    import torch

    drawn = paint("StableDiffusionPipeline", scheduler, seeds, height=32, width=32, output_type="latent")
    larger = torch.nn.functional.interpolate(drawn, size=(24, 24), mode="bilinear")
    pipeline = torch_pipeline("StableDiffusionImg2ImgPipeline")
    published = diffusers.PNDMScheduler.load_config(little_checkpoint("sd"), subfolder="scheduler")
    pipeline.scheduler = getattr(diffusers, SCHEDULERS[scheduler]).from_config(published)
    sources = [torch.Generator().manual_seed(seed) for seed in seeds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(
            ["a red circle"] * len(seeds), image=larger, strength=strength, num_inference_steps=steps, generator=sources
        ).images


@pytest.mark.parametrize("scheduler", ["DDIM", "Euler a", "Heun"])
def test_two_passes_give_what_two_pipelines_of_torch_give(pipeline, scheduler):
    steps = []
    result = pipeline.generate(
        ask(num_images=2, batch_size=2, scheduler=scheduler, hires_strength=0.75), on_step=steps.append
    )
    assert_alike(result, painted_twice(scheduler, [5, 6], 0.75))
    assert [step.number for step in steps] == [*range(1, steps[0].total + 1)]
    assert {picture.image.size for picture in result.pictures} == {(48, 48)}


def test_steps_of_the_second_pass_all_run(pipeline):
    steps = []
    result = pipeline.generate(ask(scheduler="DDIM", hires_strength=0.5, hires_steps=6), on_step=steps.append)
    assert_alike(result, painted_twice("DDIM", [5], 0.5, steps=12))
    assert steps[-1].total == 4 + 6
    assert [schedule_length(*one) for one in ((14, 0.7), (10, 0.7), (5, 1.0), (20, 1e-6))] == [20, 14, 5, 1000]


@pytest.mark.parametrize("vae", [{}, {"patch_size": [2, 2], "latent_channels": 3}], ids=["apart", "in squares"])
@pytest.mark.parametrize("size", [(9, 4), (24, 28)])
def test_latents_are_enlarged_as_torch_does_it_squares_of_them_by_what_is_in_them(vae, size):
    import torch

    latents = np.random.default_rng(3).standard_normal((2, 12, 6, 7), np.float32)
    state = SimpleNamespace(latent_size=size, folder=SimpleNamespace(vae=vae))
    side = 2 if vae else 1
    apart = torch.nn.functional.pixel_shuffle(torch.from_numpy(latents), side)
    wanted = torch.nn.functional.interpolate(apart, size=(size[0] * side, size[1] * side), mode="bilinear")
    found = enlarge_latents(latents, state)
    assert np.allclose(found, torch.nn.functional.pixel_unshuffle(wanted, side), atol=1e-6)


def test_an_upscaler_stands_between_the_passes_or_at_the_end(pipeline, tmp_path):
    upscaler = write_network(tmp_path, TWICE)
    drawn = pipeline.generate(ask(hires=None)).pictures[0].image
    between = pipeline.generate(ask(hires=1.5, hires_strength=0.25, upscaler=upscaler)).pictures[0].image
    at_the_end = pipeline.generate(ask(hires=None, upscaler=upscaler)).pictures[0].image
    assert at_the_end.tobytes() == drawn.resize((64, 64), 0).tobytes()
    again = pipeline.generate(
        ask(hires=None, size=(48, 48), init_image=drawn.resize((64, 64), 0).resize((48, 48), 1), strength=0.25)
    )
    assert between.tobytes() == again.pictures[0].image.tobytes()


@pytest.mark.parametrize(("upscaler", "method"), [("Lanczos", 1), ("Nearest", 0)])
def test_pixels_are_enlarged_between_the_passes_without_a_network_too(pipeline, upscaler, method):
    drawn = pipeline.generate(ask(hires=None)).pictures[0].image
    between = pipeline.generate(ask(hires_strength=0.25, upscaler=upscaler)).pictures[0].image
    large = drawn.resize((48, 48), method)
    again = pipeline.generate(ask(hires=None, size=(48, 48), init_image=large, strength=0.25)).pictures[0].image
    assert between.tobytes() == again.tobytes()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hires": None, "upscaler": "Lanczos"}, "upscaler Lanczos: it says no size"),
        ({"hires": 1.0}, "not above 1"),
        ({"hires": 9.0}, "at most 8"),
        ({"hires_strength": 0.0}, "not above 0"),
        ({"hires_strength": 0.1}, "leaves no step"),
        ({"hires_steps": 1001, "scheduler": "DDIM"}, "refuses 1001 steps"),
    ],
)
def test_a_second_pass_that_cant_be_is_refused(pipeline, more, said):
    with pytest.raises(UsageError, match=said):
        pipeline.resolve_defaults(ask(**more))


def test_a_picture_to_start_from_is_not_drawn_twice(pipeline, picture):
    with pytest.raises(UsageError, match="for pictures from a prompt alone"):
        pipeline.resolve_defaults(ask(init_image=picture))

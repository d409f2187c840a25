"""What all little transformers have in common: converted as any checkpoint, and drawn as diffusers' pipelines draw."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
import torch
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from drawn_transformers import LEAST, assert_alike
from PIL import Image
from torch_pipelines import psnr

from olivelike._extras import place_of
from olivelike.errors import OlivelikeError, UsageError
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.runtime import open_pipeline
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.prompts.wildcards import Wildcards

LONG = "a red circle in a blue square, a large dog with a small cat on the white tree " * 9

WEB = ["web"] if place_of("PACKAGES", "web") else []


def cases(default, slow=()):
    """Return parameters, of which some are of the slow suite."""
    return [*default, *(pytest.param(*one, marks=pytest.mark.slow) for one in slow)]


@pytest.mark.parametrize(
    ("family", "variant", "size", "prompt"),
    cases(
        [
            ("flux", "", (32, 32), "a red circle"), ("flux", "dev", (24, 40), "a red circle"),
            ("flux", "", (32, 32), "a red circle, " * 100), ("flux2", "", (64, 64), "a red circle"),
            ("flux2", "base", (24, 40), "a red circle"), ("sd3", "", (24, 40), "a red circle"),
            ("sd3", "", (32, 32), ""), ("z_image", "", (32, 32), "a red circle"), ("z_image", "", (24, 40), ""),
            ("z_image", "", (32, 32), LONG), ("qwen_image", "", (32, 32), "a red circle"),
            ("qwen_image", "", (24, 40), ""), ("qwen_image", "", (64, 16), LONG),
        ],
        [
            ("flux", "", (24, 40), "a red circle"), ("flux", "dev", (32, 32), "a red circle"),
            ("flux2", "", (24, 40), "a red circle"), ("flux2", "base", (64, 64), "a red circle"),
            ("sd3", "", (32, 32), "a red circle"), ("z_image", "", (24, 40), "a red circle"),
            ("z_image", "", (32, 32), ""), ("z_image", "", (24, 40), LONG),
        ],
    ),
)  # fmt: skip
def test_text_gives_the_picture_of_torch(drawn, family, variant, size, prompt):
    made = drawn(family, variant)
    assert made.pipeline.folder.size_unit == 4
    if family != "qwen_image":  # Its class has no size of its own.
        assert made.pipeline.folder.default_size == (32, 32)
    result = made.pipeline.generate(made.ask(prompts=(prompt,), size=size))
    assert result.scheduler == "FlowMatchEulerDiscreteScheduler"
    assert_alike(result, made.painted(prompt=prompt, width=size[0], height=size[1]))


@pytest.mark.parametrize("family", ["flux", "z_image"])
def test_brackets_are_text_as_in_diffusers(drawn, family):
    made, prompt = drawn(family), "a (red:1.5) circle AND a [blue] square BREAK"
    assert_alike(made.pipeline.generate(made.ask(prompts=(prompt,))), made.painted(prompt=prompt))


@pytest.mark.parametrize("family", ["flux", "z_image"])
def test_choices_are_those_of_every_model_and_what_was_drawn_is_recorded(drawn, tmp_path, family):
    folder, wildcards = drawn(family).folder, Wildcards([tmp_path], named=True)
    (tmp_path / "colour.txt").write_text("red\nblue\n")
    line = PromptLine(r"a {big|small} (__colour__:1.2) circle \{x|y\} \__init__ BREAK")
    (job,) = plan_jobs(folder, [line], {"seed": 1, "num_images": 8}, wildcards=wildcards).jobs
    prompts = [prompt for prompt, _ in job.request.seeded_prompts]
    ways = {f"a {size} ({colour}:1.2) circle {{x|y}} __init__ BREAK"
            for size in ("big", "small") for colour in ("red", "blue")}  # fmt: skip
    assert 1 < len(set(prompts)) <= len(ways)
    assert set(prompts) <= ways
    for prompt, written in job.written.items():
        (again,) = plan_jobs(folder, [PromptLine(written)], {"seed": 1}, wildcards=wildcards).jobs
        assert again.request.seeded_prompts == [(prompt, 1)]
        assert again.written == {prompt: written}
    with pytest.raises(UsageError, match="there is no wildcard __nope__"):
        plan_jobs(folder, [PromptLine("a __nope__")], wildcards=wildcards)
    (note,) = plan_jobs(folder, [PromptLine("a __nope__ <hypernet:x:1>")]).notes
    assert "taken as words: __nope__ (" in note


@pytest.mark.parametrize(
    ("family", "variant", "strength"),
    cases(
        [
            ("flux", "", 0.5), ("flux", "dev", 0.6), ("flux", "dev", 1.0), ("sd3", "", 0.5), ("z_image", "", 0.6),
            ("qwen_image", "", 0.5), ("qwen_image", "", 1.0),
        ],
        [
            ("flux", "dev", 0.5), ("flux", "", 0.6), ("flux", "", 1.0), ("z_image", "", 0.5), ("z_image", "", 1.0),
        ],
    ),
)  # fmt: skip
def test_a_picture_gives_the_picture_of_torch(drawn, family, variant, strength):
    made = drawn(family, variant)
    image = drawn(family).picture()
    # Z-Image's is without guidance otherwise.
    ours, theirs = ({"guidance_scale": 3.0}, {"guidance_scale": 2.0}) if family == "z_image" else ({}, {})
    result = made.pipeline.generate(made.ask(init_image=image, strength=strength, **ours))
    assert_alike(result, made.painted("Img2Img", image=image, strength=strength, **theirs))


def half_mask(side):
    """Return a mask whose lower half is white."""
    return Image.fromarray(np.repeat(np.arange(side, dtype=np.uint8)[:, None] // (side // 2) * 255, side, axis=1))


@pytest.mark.parametrize(
    ("family", "variant", "strength"),
    cases(
        [("flux", "", 0.75), ("flux2", "base", 0.75), ("z_image", "", 0.75), ("qwen_image", "", 0.75)],
        [("flux2", "", 0.75), ("z_image", "", 1.0)],
    ),
)
def test_a_mask_gives_the_picture_of_torch(drawn, family, variant, strength):
    made = drawn(family, variant)
    image = made.picture()
    mask = half_mask(image.width)
    result = made.pipeline.generate(made.ask(init_image=image, mask=mask, strength=strength))
    assert_alike(result, made.painted("Inpaint", image=image, mask_image=mask, strength=strength))


@pytest.mark.parametrize(("family", "variant"), [("flux", "dev"), ("flux2", "base"), ("sd3", "")])
def test_pictures_of_a_batch_are_those_that_are_drawn_alone(drawn, family, variant):
    made = drawn(family, variant)
    together = made.pipeline.generate(made.ask(num_images=2, batch_size=2)).pictures
    for picture, seed in zip(together, (5, 6), strict=True):
        assert psnr(picture.image, made.pipeline.generate(made.ask(seed=seed)).pictures[0].image) >= LEAST


@pytest.mark.parametrize(("family", "variant"), [("flux", "dev"), ("sd3", ""), ("z_image", "")])
def test_the_folder_is_verified_with_its_pictures(drawn, family, variant):
    made = drawn(family, variant)
    found = verify_folder(made.folder, against=str(made.source), samples=1, pictures=1, steps=2, min_psnr=LEAST)
    assert found.passed
    assert {one.name for one in found.components} == {*made.components}


@pytest.mark.parametrize("family", ["flux", "sd3", "z_image"])
def test_half_precision_draws_nearly_the_same(drawn, family):
    made = drawn(family)
    folders = made.folder, made.converted(precision="fp16")
    # T5's streams stay, its weights do not.
    for name in {"transformer", "text_encoder_2" if family == "flux" else "text_encoder_3"} & {*made.components}:
        whole, half = (sum(file.stat().st_size for file in (folder / name).iterdir()) for folder in folders)
        assert half < 0.7 * whole, name
    latents = [pipeline.latents(made.ask()) for pipeline in (made.pipeline, open_pipeline(folders[1]))]
    assert np.isfinite(latents[1]).all()
    assert np.linalg.norm(latents[1] - latents[0]) / np.linalg.norm(latents[0]) < 0.05


@pytest.mark.parametrize(
    ("family", "wrong", "said"),
    [
        *((family, {"scheduler": "DPM++ 2M Karras"}, "trained for flow matching; take Euler")
          for family in ("flux", "flux2", "sd3", "z_image", "qwen_image")),
        *((family, {"size": (30, 32)}, "multiples of 4 pixels")
          for family in ("flux", "flux2", "sd3", "z_image", "qwen_image")),
        ("flux", {"negative_prompt": "a dark dog"}, "negative_prompt has no meaning for FLUX.1: "),
        ("flux2", {"negative_prompt": "a dark dog"}, "negative_prompt has no meaning for FLUX.2-klein: "),
        ("flux", {"clip_layer": 2}, "clip_layer has no meaning for FLUX.1: "),
        ("flux2", {"clip_layer": 2}, "clip_layer has no meaning for FLUX.2-klein: "),
        ("z_image", {"clip_layer": 2}, "clip_layer has no meaning for Z-Image: "),
        ("flux", {"guidance_interval": (0.2, 0.8)}, "there is no guidance that runs in steps of its own"),
        ("flux2", {"references": (Image.new("RGB", (40, 90)),)}, "a reference of 40x90 pixels is none to work after"),
        ("flux2", {"references": (Image.new("RGB", (64, 64)),) * 11},
         "11 references are given; FLUX.2-klein takes at most 10"),
    ],
)  # fmt: skip
def test_what_it_has_no_meaning_for_is_refused_in_a_sentence(drawn, family, wrong, said):
    # Negative prompts have a meaning where there is guidance.
    made = drawn(family, "dev" if family == "flux" else "")
    with pytest.raises(OlivelikeError, match=said.replace("+", r"\+")) as caught:
        made.pipeline.resolve_defaults(made.ask(**wrong))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "variant", "steps", "guidance"),
    [
        ("flux", "", 4, 0.0), ("flux", "dev", 28, 3.5), ("flux2", "", 4, 1.0), ("flux2", "base", 50, 4.0),
        ("sd3", "", 28, 7.0), ("z_image", "", 8, 1.0), ("qwen_image", "", 50, 4.0),
    ],
)  # fmt: skip
def test_a_request_that_names_neither_has_the_steps_and_guidance_of_its_pipeline(
    drawn, family, variant, steps, guidance
):
    folder = drawn(family, variant).folder
    plan = plan_jobs(folder, [PromptLine("a red circle")])
    (job,) = plan.jobs
    assert (job.request.steps, job.request.guidance_scale) == (steps, guidance)
    assert (job.record.sampler, job.record.scheduler) == ("Euler", None)
    assert job.request.prompt_weights == (family == "sd3")
    assert plan.notes == ()
    (job,) = plan_jobs(folder, [PromptLine("a red circle")], {"steps": 3, "guidance_scale": 2.0}).jobs
    assert (job.request.steps, job.request.guidance_scale) == (3, 2.0)


@pytest.mark.parametrize(
    ("family", "layout", "said"),
    [
        *(("sd3", layout, f"layout {layout} is for pipelines with a UNet")
          for layout in ("csharp", "single", "single-ids", "triton", *WEB)),
        ("z_image", "optimum", "optimum has no pipeline of Z-Image; take layout diffusers, which"),
        ("z_image", "csharp", "for pipelines with a UNet, and this one has a transformer; take layout diffusers$"),
        ("z_image", "onnxstack", "for pipelines with a UNet, and this one has a transformer; take layout diffusers$"),
    ],
)  # fmt: skip
def test_layouts_whose_clients_do_not_know_it_are_refused(drawn, family, layout, said):
    with pytest.raises(UsageError, match=said) as caught:
        drawn(family).converted(layout=layout)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "classes", "inputs"),
    [
        ("flux", {"text_encoder_2": "ORTTextEncoder"}, None),
        (
            "sd3",
            {"text_encoder_3": "ORTTextEncoder"},
            # Its loop gives a timestep to each row.
            {"hidden_states": 4, "timestep": 1, "encoder_hidden_states": 3, "pooled_projections": 2},
        ),
    ],
)
def test_optimum_s_layout_has_its_classes_and_the_names_of_its_inputs(drawn, family, classes, inputs):
    made = drawn(family)
    folder = made.converted(layout="optimum")
    index = json.loads((folder / "model_index.json").read_bytes())
    assert index["_class_name"] == {"flux": "ORTFluxPipeline", "sd3": "ORTStableDiffusion3Pipeline"}[family]
    for name, found in {"transformer": "ORTTransformer", **classes}.items():
        assert index[name][1] == found
    if inputs is not None:
        session = onnxruntime.InferenceSession(folder / "transformer" / "model.onnx")
        assert {one.name: len(one.shape) for one in session.get_inputs()} == inputs
    assert np.array_equal(open_pipeline(folder).latents(made.ask()), made.pipeline.latents(made.ask()))


def enlarged(latents, times=1.5):
    return torch.nn.functional.interpolate(latents, scale_factor=times, mode="bilinear")


def drawn_again(made, side, strength):
    """Return what diffusers' pipelines draw from a text, and then from what is between the latents of that."""
    text, larger = made.torch_pipeline(""), {"width": side * 3 // 2, "height": side * 3 // 2}
    # Z-Image's are without guidance otherwise.
    guided = {"guidance_scale": 2.0} if made.family == "z_image" else {}
    latents = made.painted(output_type="latent", **guided)[None]
    if made.family != "flux2":
        if made.family in ("flux", "qwen_image"):
            latents = text._unpack_latents(latents, side, side, text.vae_scale_factor).reshape(1, 16, side // 2, -1)
        return made.painted("Img2Img", image=enlarged(latents), strength=strength, **larger, **guided)
    # It has no pipeline for it, but takes latents and levels of noise.
    statistics, unpacked = text.vae.bn, text._patchify_latents(latents)
    mean, deviation = (one.view(1, -1, 1, 1) for one in (statistics.running_mean, statistics.running_var))
    deviation = torch.sqrt(deviation + text.vae.config.batch_norm_eps)
    again = text._patchify_latents(enlarged(text._unpatchify_latents((unpacked - mean) / deviation)))
    levels = np.linspace(1.0, 0.25, 4)[round(4 * (1 - strength)) :]
    text.scheduler.set_timesteps(sigmas=list(levels), mu=compute_empirical_mu(again.shape[2] * again.shape[3], 4))
    level, noise = text.scheduler.sigmas[0], torch.randn(again.shape, generator=torch.Generator().manual_seed(5))
    return made.painted(latents=(1 - level) * again + level * noise, sigmas=list(levels), **larger)


@pytest.mark.parametrize(
    ("family", "variant"),
    cases(
        [("flux", ""), ("flux2", ""), ("sd3", ""), ("z_image", "")],
        [("flux", "dev"), ("flux2", "base"), ("qwen_image", "")],
    ),
)
@pytest.mark.filterwarnings("ignore:Passing `image` as torch tensor")
def test_hires_fix_gives_what_two_pipelines_of_torch_give(drawn, family, variant):
    made = drawn(family, variant)
    guided = {"guidance_scale": 3.0} if family == "z_image" else {}
    request = made.ask(hires=1.5, hires_strength=0.75, **guided)
    with torch.no_grad():
        expected = drawn_again(made, request.size[0], 0.75)
    result = made.pipeline.generate(request)
    assert result.pictures[0].image.size == expected.size
    assert_alike(result, expected)

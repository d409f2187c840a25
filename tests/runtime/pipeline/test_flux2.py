"""FLUX.2-klein at tiny size: converted as any checkpoint, and drawn as diffusers' pipelines draw it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers.pipelines.flux2 import pipeline_flux2_klein
from PIL import Image
from torch_pipelines import psnr

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import UsageError
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.testing.models import lend_graphs, load_model
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_flux2 import LAYERS, little_flux2
from tests.fixtures.no_torch import forbid_torch

COMPONENTS = ("text_encoder", "transformer", "vae_encoder", "vae_decoder")
LEAST = 60.0
"""PSNR in dB of 8-bit pictures that are equal but for a few roundings."""
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return what opens an output of the distilled pipeline or of its base."""
    root = tmp_path_factory.mktemp("flux2")

    @cache
    def open_output(*, distilled):
        source = little_flux2(distilled=distilled)
        lend_graphs(root / "cache", [load_model(source, name).architecture for name in COMPONENTS])
        folder = root / ("distilled" if distilled else "base")
        place, options = draft(ConvertRequest(str(source), "cpu", folder), Options(cache_dir=root / "cache"))
        run(place, options, executor=InlineExecutor)
        return open_pipeline(folder)

    return open_output


@cache
def torch_pipeline(class_name, *, distilled):
    import diffusers

    made = getattr(diffusers, class_name).from_pretrained(little_flux2(distilled=distilled))
    made.set_progress_bar_config(disable=True)
    return made


def painted(class_name="Flux2KleinPipeline", seed=5, *, distilled=True, **arguments):
    arguments = {"prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 3.5, **arguments}
    arguments = {"width": 64, "height": 64, "text_encoder_out_layers": LAYERS, **arguments}
    pipeline = torch_pipeline(class_name, distilled=distilled)
    return pipeline(generator=torch.Generator().manual_seed(seed), **arguments).images[0]


def ask(**more):
    return Request(
        **{"prompts": ("a red circle",), "steps": 4, "seed": 5, "guidance_scale": 3.5, "size": (64, 64), **more}
    )


def assert_alike(result, image):
    assert np.asarray(image).std() > 20
    assert psnr(result.pictures[0].image, image) >= LEAST


@pytest.mark.parametrize(
    ("distilled", "size"),
    [
        (True, (64, 64)),
        (False, (24, 40)),
        *(pytest.param(*one, marks=slow) for one in ((True, (24, 40)), (False, (64, 64)))),
    ],
    ids=str,
)
def test_text_gives_the_picture_of_torch(opened, distilled, size):
    pipeline = opened(distilled=distilled)
    assert (pipeline.folder.default_size, pipeline.folder.size_unit) == ((32, 32), 4)
    assert_alike(pipeline.generate(ask(size=size)), painted(distilled=distilled, width=size[0], height=size[1]))


@pytest.mark.parametrize(
    ("steps", "prompt"),
    [
        (1, ""),
        (4, "a (red:1.5) cat BREAK AND a large dog " * 90),
        *(pytest.param(*one, marks=slow) for one in ((1, "a dog"), (7, ""))),
    ],
)
def test_any_number_of_steps_and_any_text_give_the_picture_of_torch(opened, steps, prompt):
    result = opened(distilled=False).generate(ask(prompts=(prompt,), steps=steps))
    assert_alike(result, painted(distilled=False, prompt=prompt, num_inference_steps=steps))


@pytest.mark.parametrize(
    ("distilled", "strength"),
    [(True, 0.5), (False, 1.0), *(pytest.param(*one, marks=slow) for one in ((True, 1.0), (False, 0.5)))],
)
def test_a_picture_gives_the_picture_of_torch(opened, distilled, strength):
    image = painted(seed=9)
    theirs = torch_pipeline("Flux2KleinPipeline", distilled=distilled)
    # It has no option for it, but takes latents and levels of noise, which it bends.
    levels = np.linspace(1.0, 0.25, 4)[round(4 * (1 - strength)) :]
    noise = torch.randn((1, 32, 16, 16), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        encoded = theirs._encode_vae_image(theirs.image_processor.preprocess(image, 64, 64), None)
    theirs.scheduler.set_timesteps(sigmas=list(levels), mu=pipeline_flux2_klein.compute_empirical_mu(256, 4))
    level = theirs.scheduler.sigmas[0]
    expected = painted(distilled=distilled, latents=(1 - level) * encoded + level * noise, sigmas=list(levels))
    result = opened(distilled=distilled).generate(ask(init_image=image, strength=strength))
    assert_alike(result, expected)


ONE, TWO = [(96, 72)], [(70, 64), (64, 88)]
"""Sizes of references."""


@pytest.mark.parametrize(
    ("distilled", "sizes"),
    [
        (False, TWO),
        *(pytest.param(*one, marks=slow) for one in ((True, ONE), (True, TWO), (False, ONE))),
    ],
)  # fmt: skip
def test_references_give_the_picture_of_torch(opened, distilled, sizes):
    pictures = [painted(seed=9 + number, width=96, height=96).resize(size) for number, size in enumerate(sizes)]
    result = opened(distilled=distilled).generate(ask(references=tuple(pictures)))
    plain = opened(distilled=distilled).generate(ask())
    assert_alike(result, painted(distilled=distilled, image=pictures))
    assert psnr(result.pictures[0].image, plain.pictures[0].image) < LEAST - 5


def test_a_picture_of_a_reference_has_its_size(opened):
    (image,) = opened(distilled=True).generate(ask(references=(Image.new("RGB", (90, 67)),), size=None)).pictures
    assert image.image.size == painted(image=Image.new("RGB", (90, 67)), width=None, height=None).size == (88, 64)
    large = Image.new("RGB", (2100, 1200))
    resolved = opened(distilled=True).resolve_defaults(ask(references=(large,), size=None))
    assert resolved.size == (1352, 772)


@pytest.mark.parametrize("distilled", [False, pytest.param(True, marks=slow)])
def test_a_mask_gives_the_picture_of_torch(opened, distilled):
    image = painted(seed=9)
    mask = Image.fromarray(np.repeat(np.arange(64, dtype=np.uint8)[:, None] // 32 * 255, 64, axis=1))
    result = opened(distilled=distilled).generate(ask(init_image=image, mask=mask, strength=0.75))
    more = {"image": image, "mask_image": mask, "strength": 0.75}
    assert_alike(result, painted("Flux2KleinInpaintPipeline", distilled=distilled, **more))


def test_a_negative_prompt_leads_away_in_the_base(opened):
    plain, led = (opened(distilled=False).latents(ask(negative_prompt=text)) for text in (None, "a dark dog"))
    assert not np.allclose(plain, led, atol=1e-3)


def test_pictures_of_a_batch_are_those_that_are_drawn_alone(opened):
    pipeline = opened(distilled=False)
    together = pipeline.generate(ask(num_images=2, batch_size=2)).pictures
    assert psnr(together[0].image, pipeline.generate(ask()).pictures[0].image) >= LEAST
    assert psnr(together[1].image, pipeline.generate(ask(seed=6)).pictures[0].image) >= LEAST


def test_a_second_checkpoint_converts_nothing_and_imports_no_torch(opened, tmp_path, monkeypatch):
    first = opened(distilled=True).folder.path
    source = shutil.copytree(little_flux2(), tmp_path / "second")
    for file in source.rglob("*.safetensors"):
        data = file.read_bytes()
        file.write_bytes(data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    forbid_torch(monkeypatch)
    place, options = draft(
        ConvertRequest(str(source), "cpu", tmp_path / "out"), Options(cache_dir=first.parent / "cache")
    )
    events = []
    run(place, options, events.append, executor=InlineExecutor)
    ran = {event.data["node"] for event in events if event.name == "node_finished"}
    assert ran - {"pipeline.assets"} == {f"{name}.materialize" for name in COMPONENTS}
    for component in COMPONENTS:
        assert (tmp_path / "out" / component / "model.onnx").is_file()


def test_the_text_encoder_is_closed_once_prompts_are_known(opened):
    pipeline = opened(distilled=True)
    pipeline.generate(ask())
    assert "text_encoder" not in pipeline._networks
    assert "transformer" in pipeline._networks
    assert pipeline.provider == "CPUExecutionProvider"
    assert "text_encoder" not in pipeline._networks


def test_steps_are_shown_by_decoding(opened):
    shown = []
    opened(distilled=True).generate(ask(), on_step=lambda step: shown.extend(step.preview.show()))
    assert [image.size for image in shown] == [(64, 64)] * 4
    assert np.asarray(shown[-1]).std() > 20


def test_a_large_picture_is_read_and_decoded_in_strips(opened):
    request = ask(init_image=painted(seed=9), strength=0.5)
    whole, strips = (opened(distilled=True).generate(replace(request, tiled_vae=tiled)) for tiled in (False, True))
    assert_alike(strips, whole.pictures[0].image)


@pytest.mark.parametrize("distilled", [True, pytest.param(False, marks=slow)])
def test_the_folder_is_verified_with_its_pictures_and_guidance(opened, monkeypatch, distilled):
    warned = []
    monkeypatch.setattr(pipeline_flux2_klein.logger, "warning", warned.append)
    folder = opened(distilled=distilled).folder.path
    assert json.loads((folder / "model_index.json").read_bytes())["is_distilled"] is distilled
    source = str(little_flux2(distilled=distilled))
    found = verify_folder(folder, against=source, samples=1, pictures=1, steps=3, min_psnr=LEAST)
    assert (found.passed, warned) == (True, [])
    assert {one.name for one in found.components} == set(COMPONENTS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"negative_prompt": "a dark dog"}, "negative_prompt has no meaning for FLUX.2-klein: "),
        ({"clip_skip": 1}, "clip_skip has no meaning for FLUX.2-klein: "),
        ({"scheduler": "DPM++ 2M Karras"}, "trained for flow matching; take Euler"),
        ({"references": (Image.new("RGB", (40, 90)),)}, "a reference of 40x90 pixels is none to work after"),
        ({"references": (Image.new("RGB", (64, 64)),) * 11}, "11 references are given; FLUX.2-klein takes at most 10"),
        ({"size": (30, 32)}, "multiples of 4 pixels"),
    ],
    ids=["negative prompt", "clip skip", "sampler", "narrow reference", "too many references", "size"],
)
def test_what_it_has_no_meaning_for_is_refused_in_a_sentence(opened, wrong, said):
    with pytest.raises(UsageError, match=said.replace("+", r"\+")) as caught:
        opened(distilled=True).resolve_defaults(ask(**wrong))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("distilled", "steps", "guidance"), [(True, 4, 1.0), (False, 50, 4.0)])
def test_a_request_that_names_neither_has_the_steps_and_guidance_of_its_pipeline(opened, distilled, steps, guidance):
    (job,) = plan_jobs(opened(distilled=distilled).folder.path, [PromptLine("a red circle")]).jobs
    assert (job.request.steps, job.request.guidance_scale) == (steps, guidance)


def test_a_tag_of_a_lora_is_none_of_the_text_in_which_brackets_are(opened):
    named = []

    class Files:
        def tagged(self, written, name, text_weight, unet_weight):
            named.append((written, name, text_weight, unet_weight))
            return SimpleNamespace(name=name, hash="", unet_weight=unet_weight, few_steps=None)

    folder = opened(distilled=True).folder.path
    (job,) = plan_jobs(folder, [PromptLine("a (red) {circle|cat} <lora:ink:0.8>")], lora_files=Files()).jobs
    assert {*named} == {("<lora:ink:0.8>", "ink", 0.8, 0.8)}
    assert job.request.prompts == ("a (red) {circle|cat} ",)
    assert [lora.name for lora in job.loras] == ["ink"]

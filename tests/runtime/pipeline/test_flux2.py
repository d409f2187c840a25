"""FLUX.2-klein at tiny size, in what it has of its own beside other transformers."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers.pipelines.flux2 import pipeline_flux2_klein
from drawn_transformers import LEAST, assert_alike
from PIL import Image
from torch_pipelines import psnr

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.runtime.pipeline.networks import weight_bytes
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.no_torch import forbid_torch

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def klein(drawn):
    return drawn("flux2")


@pytest.fixture(scope="module")
def base(drawn):
    return drawn("flux2", "base")


@pytest.mark.parametrize(
    ("steps", "prompt"),
    [
        (1, ""),
        (4, "a (red:1.5) cat BREAK AND a large dog " * 90),
        *(pytest.param(*one, marks=slow) for one in ((1, "a dog"), (7, ""))),
    ],
)
def test_any_number_of_steps_and_any_text_give_the_picture_of_torch(base, steps, prompt):
    result = base.pipeline.generate(base.ask(prompts=(prompt,), steps=steps))
    assert_alike(result, base.painted(prompt=prompt, num_inference_steps=steps))


@pytest.mark.parametrize(
    ("variant", "strength"),
    [("", 0.5), ("base", 1.0), *(pytest.param(*one, marks=slow) for one in (("", 1.0), ("base", 0.5)))],
)
def test_a_picture_gives_the_picture_of_torch(drawn, variant, strength):
    made = drawn("flux2", variant)
    image = drawn("flux2").picture()
    theirs = made.torch_pipeline("")
    # It has no option for it, but takes latents and levels of noise, which it bends.
    levels = np.linspace(1.0, 0.25, 4)[round(4 * (1 - strength)) :]
    noise = torch.randn((1, 32, 16, 16), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        encoded = theirs._encode_vae_image(theirs.image_processor.preprocess(image, 64, 64), None)
    theirs.scheduler.set_timesteps(sigmas=list(levels), mu=pipeline_flux2_klein.compute_empirical_mu(256, 4))
    level = theirs.scheduler.sigmas[0]
    expected = made.painted(latents=(1 - level) * encoded + level * noise, sigmas=list(levels))
    assert_alike(made.pipeline.generate(made.ask(init_image=image, strength=strength)), expected)


ONE, TWO = [(96, 72)], [(70, 64), (64, 88)]
"""Sizes of references."""


@pytest.mark.parametrize(
    ("variant", "sizes"),
    [("base", TWO), *(pytest.param(*one, marks=slow) for one in (("", ONE), ("", TWO), ("base", ONE)))],
)
def test_references_give_the_picture_of_torch(drawn, klein, variant, sizes):
    made = drawn("flux2", variant)
    pictures = [klein.painted(seed=9 + number, width=96, height=96).resize(size) for number, size in enumerate(sizes)]
    result = made.pipeline.generate(made.ask(references=tuple(pictures)))
    assert_alike(result, made.painted(image=pictures))
    plain = made.pipeline.generate(made.ask())
    assert psnr(result.pictures[0].image, plain.pictures[0].image) < LEAST - 5


def test_a_picture_of_a_reference_has_its_size(klein):
    reference = Image.new("RGB", (90, 67))
    (image,) = klein.pipeline.generate(klein.ask(references=(reference,), size=None)).pictures
    assert image.image.size == klein.painted(image=reference, width=None, height=None).size == (88, 64)
    large = Image.new("RGB", (2100, 1200))
    assert klein.pipeline.resolve_defaults(klein.ask(references=(large,), size=None)).size == (1352, 772)


def test_a_negative_prompt_leads_away_in_the_base(base):
    plain, led = (base.pipeline.latents(base.ask(negative_prompt=text)) for text in (None, "a dark dog"))
    assert not np.allclose(plain, led, atol=1e-3)


def test_a_second_checkpoint_converts_nothing_and_imports_no_torch(klein, tmp_path, monkeypatch):
    assert klein.folder.is_dir()
    source = shutil.copytree(klein.source, tmp_path / "second")
    for file in source.rglob("*.safetensors"):
        data = file.read_bytes()
        file.write_bytes(data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    forbid_torch(monkeypatch)
    place, options = draft(ConvertRequest(str(source), "cpu", tmp_path / "out"), Options(cache_dir=klein.store))
    events = []
    run(place, options, events.append, executor=InlineExecutor)
    ran = {event.data["node"] for event in events if event.name == "node_finished"}
    assert ran - {"pipeline.assets"} == {f"{name}.materialize" for name in klein.components}
    assert all((tmp_path / "out" / name / "model.onnx").is_file() for name in klein.components)


def test_the_text_encoder_is_closed_once_prompts_are_known(klein):
    klein.pipeline.generate(klein.ask())
    assert "text_encoder" not in klein.pipeline._networks
    assert "transformer" in klein.pipeline._networks
    assert klein.pipeline.provider == "CPUExecutionProvider"
    assert "text_encoder" not in klein.pipeline._networks


def test_texts_of_a_batch_before_are_encoded_once_and_the_picture_is_the_same(klein):
    klein.pipeline.forget_texts()
    first = klein.pipeline.generate(klein.ask())
    opened = []
    real, klein.pipeline._networks._open = klein.pipeline._networks._open, lambda *args: opened.append(args[1])
    try:
        again = klein.pipeline.generate(klein.ask())
    finally:
        klein.pipeline._networks._open = real
    assert opened == []
    assert again.pictures[0].image.tobytes() == first.pictures[0].image.tobytes()
    other = klein.pipeline.generate(klein.ask(prompts=("something else",)))
    assert other.pictures[0].image.tobytes() != first.pictures[0].image.tobytes()


@pytest.mark.parametrize(("times", "open_then"), [(None, False), (1.5, False), (2.5, True)])
def test_the_text_encoder_stays_open_where_the_device_has_twice_the_memory(klein, monkeypatch, times, open_then):
    folder = klein.pipeline.folder
    weights = sum(weight_bytes(folder, name) for name in ("text_encoder", "transformer", "vae_decoder"))
    memory = None if times is None else int(weights * times)
    monkeypatch.setattr("olivelike.runtime.sessions.devices.total_memory", lambda provider, device: memory)
    pipeline = klein.pipeline.with_initializers({})
    pipeline.generate(klein.ask())
    assert ("text_encoder" in pipeline._networks) is open_then


def test_steps_are_shown_by_decoding_where_a_vae_has_other_channels(klein):
    shown = []
    klein.pipeline.generate(klein.ask(), on_step=lambda step: shown.extend(step.preview.show()))
    assert [image.size for image in shown] == [(64, 64)] * 4
    assert np.asarray(shown[-1]).std() > 20


def test_a_large_picture_is_read_and_decoded_in_strips(klein):
    request = {"init_image": klein.picture(), "strength": 0.5}
    whole, strips = (klein.pipeline.generate(klein.ask(tiled_vae=tiled, **request)) for tiled in (False, True))
    assert_alike(strips, whole.pictures[0].image)


@pytest.mark.parametrize("variant", ["", pytest.param("base", marks=slow)])
def test_the_folder_is_verified_with_its_pictures_and_guidance(drawn, monkeypatch, variant):
    made, warned = drawn("flux2", variant), []
    monkeypatch.setattr(pipeline_flux2_klein.logger, "warning", warned.append)
    assert json.loads((made.folder / "model_index.json").read_bytes())["is_distilled"] is (variant != "base")
    found = verify_folder(made.folder, against=str(made.source), samples=1, pictures=1, steps=3, min_psnr=LEAST)
    assert (found.passed, warned) == (True, [])
    assert {one.name for one in found.components} == {*made.components}


def test_a_tag_of_a_lora_is_none_of_the_text_in_which_brackets_are(klein):
    named = []

    class Files:
        def tagged(self, written, name, text_weight, unet_weight):
            named.append((written, name, text_weight, unet_weight))
            return SimpleNamespace(name=name, hash="", unet_weight=unet_weight, few_steps=None)

    (job,) = plan_jobs(klein.folder, [PromptLine("a (red) circle [cat] <lora:ink:0.8>")], lora_files=Files()).jobs
    assert {*named} == {("<lora:ink:0.8>", "ink", 0.8, 0.8)}
    assert job.request.prompts == ("a (red) circle [cat] ",)
    assert [lora.name for lora in job.loras] == ["ink"]

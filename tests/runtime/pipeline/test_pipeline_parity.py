"""Pictures against those of diffusers' torch pipelines: same networks, same seeds, same schedulers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from torch_pipelines import SCHEDULERS, assert_alike, paint, psnr, torch_pipeline

from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.latents import begin_batch, from_noise, from_picture
from olivelike.runtime.sessions.providers import find_provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings
from tests.fixtures.little_pipeline import little_pipeline
from tests.fixtures.their_schedulers import their_scheduler

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")

TEXT, PICTURE, INPAINT = (f"StableDiffusion{name}Pipeline" for name in ("", "Img2Img", "Inpaint"))


def ask(**more):
    """Return a request for two pictures at once."""
    return Request(**{"prompts": ("a red circle",), "num_images": 2, "batch_size": 2, "steps": 4, "seed": 5, **more})


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_text_gives_the_picture_of_torch(pipeline, scheduler):
    result = pipeline.generate(ask(scheduler=scheduler, negative_prompt="dark"))
    assert_alike(result, paint(TEXT, scheduler, [5, 6], negative_prompt="dark"))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_picture_gives_the_picture_of_torch(pipeline, scheduler, picture):
    result = pipeline.generate(ask(scheduler=scheduler, init_image=picture, strength=0.6))
    assert_alike(result, paint(PICTURE, scheduler, [5, 6], image=picture, strength=0.6))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_mask_on_a_plain_unet_gives_the_picture_of_torch(pipeline, scheduler, picture, mask):
    result = pipeline.generate(ask(scheduler=scheduler, init_image=picture, mask=mask, strength=0.6))
    assert_alike(
        result, paint(INPAINT, scheduler, [5, 6], image=picture, mask_image=mask, strength=0.6, height=32, width=32)
    )


@pytest.mark.parametrize("strength", [None, 0.6])
def test_an_inpainting_unet_gives_the_picture_of_torch(settings, picture, mask, strength):
    pipeline = open_pipeline(little_pipeline("inpainting"), settings)
    result = pipeline.generate(ask(scheduler="Euler a", init_image=picture, mask=mask, strength=strength))
    more = {"image": picture, "mask_image": mask, "strength": strength or 1.0, "height": 32, "width": 32}
    assert_alike(result, paint(INPAINT, "Euler a", [5, 6], kind="inpainting", **more))


def test_a_mask_over_all_of_the_strength_starts_from_noise_alone(pipeline, picture, mask):
    result = pipeline.generate(ask(scheduler="Euler a", init_image=picture, mask=mask))
    more = {"image": picture, "mask_image": mask, "strength": 1.0, "height": 32, "width": 32}
    assert_alike(result, paint(INPAINT, "Euler a", [5, 6], **more))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"guidance_scale": 1.0}, {"guidance_scale": 1.0}),
        ({"guidance_rescale": 0.7}, {"guidance_rescale": 0.7}),
        ({"size": (24, 40)}, {"width": 24, "height": 40}),
        ({"prompts": ("",)}, {"prompt": ""}),
    ],
    ids=str,
)
def test_each_option_means_what_it_means_in_diffusers(pipeline, ours, theirs):
    assert_alike(pipeline.generate(ask(**ours)), paint(TEXT, "PLMS", [5, 6], **theirs))


@pytest.mark.parametrize("scheduler", ["DDIM", "Euler"])
def test_a_network_that_predicts_velocity_gives_the_picture_of_torch(little_folder, settings, tmp_path, scheduler):
    folder = shutil.copytree(little_folder, tmp_path / "velocity")
    path = folder / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "prediction_type": "v_prediction"}))
    result = open_pipeline(folder, settings).generate(ask(scheduler=scheduler))
    assert_alike(result, paint(TEXT, scheduler, [5, 6], prediction_type="v_prediction"))


@pytest.mark.parametrize("skipped", [1, 2])
def test_clip_skip_takes_an_earlier_layer_for_both_prompts(pipeline, skipped):
    import torch

    torch_one = torch_pipeline(TEXT)

    def encode(text):
        # Diffusers 0.42 can't do this with transformers 5, which has no `text_model` within the encoder.
        ids = torch_one.tokenizer(text, padding="max_length", max_length=77, return_tensors="pt").input_ids
        with torch.no_grad():
            states = torch_one.text_encoder(ids, output_hidden_states=True).hidden_states[-1 - skipped]
            return torch_one.text_encoder.final_layer_norm(states).repeat(2, 1, 1)

    embeddings = {"prompt_embeds": encode("a red circle"), "negative_prompt_embeds": encode("dark")}
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    images = torch_one(generator=generators, num_inference_steps=4, **embeddings).images
    result = pipeline.generate(ask(clip_layer=1 + skipped, negative_prompt="dark"))
    assert_alike(result, images)
    plain = pipeline.generate(ask(negative_prompt="dark"))
    assert psnr(plain.pictures[0].image, result.pictures[0].image) < 50


@pytest.mark.parametrize("scheduler", ["PLMS", "Euler a"])
def test_the_initial_latents_are_those_of_torch(pipeline, scheduler):
    import torch

    request = pipeline.resolve_defaults(ask(scheduler=scheduler))
    state = begin_batch(request, pipeline.folder, [5, 6])
    theirs = torch_pipeline(TEXT)
    theirs.scheduler = their_scheduler(scheduler, pipeline.folder.scheduler)
    theirs.scheduler.set_timesteps(request.steps)
    generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    expected = theirs.prepare_latents(2, 4, 32, 32, torch.float32, torch.device("cpu"), generators)
    np.testing.assert_allclose(from_noise(state, 4).latents, expected, rtol=1e-6, atol=0)


def test_the_sample_of_an_encoded_picture_is_drawn_before_the_noise(pipeline, picture):
    import torch

    request = pipeline.resolve_defaults(ask(init_image=picture, strength=0.5))
    state = begin_batch(request, pipeline.folder, [5, 6])
    from_picture(state, pipeline._networks.get("vae_encoder"), 4)
    generator = torch.Generator().manual_seed(6)
    torch.randn((2, 1, 4, 16, 16), generator=generator)
    assert torch.equal(torch.from_numpy(state.sources[1].draw((16,))), torch.randn(16, generator=generator))


def test_openvino_gives_the_pictures_of_torch(little_folder, picture, mask):
    pytest.importorskip("openvino")
    choice = ProviderChoice(find_provider("openvino"), {"INFERENCE_PRECISION_HINT": "f32"})
    pipeline = open_pipeline(little_folder, SessionSettings((choice,), intra_threads=1))
    result = pipeline.generate(ask(scheduler="Euler a", negative_prompt="dark"))
    assert_alike(result, paint(TEXT, "Euler a", [5, 6], negative_prompt="dark"))
    result = pipeline.generate(ask(scheduler="DDIM", init_image=picture, strength=0.6))
    assert_alike(result, paint(PICTURE, "DDIM", [5, 6], image=picture, strength=0.6))
    result = pipeline.generate(ask(scheduler="DDIM", init_image=picture, mask=mask, strength=0.6))
    more = {"image": picture, "mask_image": mask, "strength": 0.6, "height": 32, "width": 32}
    assert_alike(result, paint(INPAINT, "DDIM", [5, 6], **more))


def test_an_encoder_without_a_sample_serves_inpainting(little_folder, settings, picture, mask, tmp_path):
    import onnx

    folder = shutil.copytree(little_folder, tmp_path / "distribution")
    path = folder / "vae_encoder" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    kept = [value for value in model.graph.output if value.name == "latent_parameters"]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    kept[0].type.tensor_type.shape.dim[1].dim_param = "planes"
    onnx.save(model, path)
    result = open_pipeline(folder, settings).generate(
        ask(scheduler="DDIM", init_image=picture, mask=mask, strength=0.6)
    )
    more = {"image": picture, "mask_image": mask, "strength": 0.6, "height": 32, "width": 32}
    assert_alike(result, paint(INPAINT, "DDIM", [5, 6], **more))


def test_half_precision_is_close_to_torch_in_float32(settings):
    result = open_pipeline(little_pipeline(half=True), settings).generate(ask())
    assert_alike(result, paint(TEXT, "PLMS", [5, 6]), least=30.0)


@pytest.mark.slow
@pytest.mark.parametrize("negative", [None, "dark"])
def test_sdxl_gives_the_pictures_of_torch(settings, picture, negative):
    pipeline = open_pipeline(little_pipeline("xl"), settings)
    more = {"kind": "xl", "negative_prompt": negative, "guidance_scale": 7.5}
    result = pipeline.generate(ask(scheduler="Euler a", negative_prompt=negative))
    assert_alike(result, paint("StableDiffusionXLPipeline", "Euler a", [5, 6], **more, height=32, width=32))
    result = pipeline.generate(ask(scheduler="Euler", negative_prompt=negative, init_image=picture, strength=0.6))
    images = paint("StableDiffusionXLImg2ImgPipeline", "Euler", [5, 6], **more, image=picture, strength=0.6)
    assert_alike(result, images)


@pytest.mark.parametrize(
    ("kind", "class_name"), [("lcm", "LatentConsistencyModelPipeline"), ("lcm_xl", "StableDiffusionXLPipeline")]
)
@pytest.mark.parametrize("guidance", [1.0, 8.5])
def test_a_unet_that_takes_the_guidance_gives_the_picture_of_torch(settings, kind, class_name, guidance):
    pipeline = open_pipeline(little_pipeline(kind), settings)
    result = pipeline.generate(ask(scheduler="LCM", guidance_scale=guidance))
    assert_alike(result, paint(class_name, "LCM", [5, 6], kind=kind, guidance_scale=guidance))


def test_terms_and_negative_prompts_leave_the_guidance_an_input(settings):
    pipeline = open_pipeline(little_pipeline("lcm"), settings)
    alone, led_away = (
        pipeline.generate(ask(scheduler="LCM", negative_prompt=negative)).pictures[0].image for negative in (None, "x")
    )
    assert alone == led_away
    together = pipeline.generate(ask(scheduler="LCM", prompts=("a red circle AND a blue square",)))
    assert psnr(together.pictures[0].image, alone) < 50

"""What a pipeline does beyond giving torch's pictures: buffers, batches, seeds, previews, cancelling."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from torch_pipelines import psnr

from olivelike.errors import Interrupted
from olivelike.model.onnx_messages import load_model
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.sessions.session import Network


def ask(**more):
    return Request(**{"prompts": ("a red circle",), "steps": 3, "seed": 5, **more})


@pytest.fixture
def prepared(monkeypatch):
    """Return the calls that networks are prepared for, as they come: component and shapes of inputs."""
    calls = []
    prepare = Network.prepare

    def spy(self, inputs, outputs, **buffers):
        calls.append((self.component, inputs))
        return prepare(self, inputs, outputs, **buffers)

    monkeypatch.setattr(Network, "prepare", spy)
    return calls


def shapes_of(calls, component, name):
    return [inputs[name] for called, inputs in calls if called == component]


def test_guidance_is_one_call_of_twice_the_batch(pipeline, prepared):
    pipeline.generate(ask(num_images=2, batch_size=2))
    assert shapes_of(prepared, "unet", "sample") == [(4, 4, 16, 16)]
    assert shapes_of(prepared, "unet", "encoder_hidden_states") == [(4, 77, 32)]


def test_without_guidance_the_batch_is_not_doubled(pipeline, prepared):
    pipeline.generate(ask(num_images=2, batch_size=2, guidance_scale=1.0))
    assert shapes_of(prepared, "unet", "sample") == [(2, 4, 16, 16)]


def test_equal_prompts_are_encoded_once(pipeline, prepared):
    pipeline.forget_texts()
    pipeline.generate(ask(num_images=3, batch_size=3, negative_prompt="dark"))
    assert shapes_of(prepared, "text_encoder", "input_ids") == [(2, 77)]


def test_buffers_are_made_once_for_a_size_and_used_again(pipeline):
    def buffers():
        pipeline.generate(ask(num_images=3, batch_size=2))
        calls = list(pipeline.denoiser._calls.values())[-2:]
        return {array.ctypes.data for call in calls for array in (*call.inputs.values(), *call.outputs.values())}

    first = buffers()
    assert buffers() == first
    for side in (24, 32, 40, 48):
        pipeline.generate(ask(size=(side, side), steps=1))
    assert len(pipeline.denoiser._calls) == 2


def test_earlier_predictions_are_not_overwritten_by_later_ones(pipeline):
    """Without guidance the network's own buffer is what a multistep scheduler would keep."""
    kept = []
    pipeline.generate(
        ask(guidance_scale=1.0, scheduler="PLMS", steps=5), on_step=lambda step: kept.append(step.preview.latents)
    )
    assert len({array.ctypes.data for array in kept}) == len(kept)


def test_a_picture_of_a_batch_is_the_picture_of_its_own_seed(pipeline):
    batch = pipeline.generate(ask(num_images=3, batch_size=2, scheduler="Euler a"))
    assert [picture.seed for picture in batch.pictures] == [5, 6, 7]
    alone = pipeline.generate(ask(seed=6, scheduler="Euler a"))
    assert psnr(batch.pictures[1].image, alone.pictures[0].image) > 60


def test_each_prompt_gets_its_pictures_with_the_same_seeds(pipeline):
    result = pipeline.generate(ask(prompts=("a", "b"), num_images=2, batch_size=3))
    made = [(picture.prompt, picture.seed) for picture in result.pictures]
    assert made == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]


def test_a_seed_that_is_not_given_is_drawn_and_told(pipeline):
    result = pipeline.generate(ask(seed=None))
    again = pipeline.generate(ask(seed=result.request.seed))
    assert result.pictures[0].image.tobytes() == again.pictures[0].image.tobytes()


def test_decoding_singly_gives_the_same_pictures(pipeline, prepared):
    together = pipeline.generate(ask(num_images=2, batch_size=2))
    singly = pipeline.generate(ask(num_images=2, batch_size=2, decode_singly=True))
    for first, second in zip(together.pictures, singly.pictures, strict=True):
        assert psnr(first.image, second.image) > 60
    assert shapes_of(prepared, "vae_decoder", "latent_sample") == [(2, 4, 16, 16), (1, 4, 16, 16)]


def test_a_prompt_of_many_chunks_reaches_the_unet_whole(pipeline, prepared):
    pipeline.generate(ask(prompts=("circle " * 200,)))
    ((pictures, tokens, width),) = shapes_of(prepared, "unet", "encoder_hidden_states")
    assert (pictures, tokens % 77, width) == (2, 0, 32)
    assert tokens >= 3 * 77


def test_weights_of_words_change_the_picture_and_can_be_switched_off(pipeline):
    pictures = [
        pipeline.generate(ask(prompts=(prompt,), prompt_weights=weights)).pictures[0].image
        for prompt, weights in (("a (red:1.9) circle", True), ("a red circle", True), ("a (red:1.9) circle", False))
    ]
    assert len({picture.tobytes() for picture in pictures}) == 3


def test_each_step_is_told_with_previews_on_demand(pipeline):
    steps, rough, decoded = [], [], []

    def on_step(step):
        steps.append((step.batch, step.batches, step.number, step.total, step.timestep))
        rough.append(step.preview.rough()[0])
        decoded.append(step.preview.decode()[0])

    result = pipeline.generate(ask(scheduler="DDIM", num_images=2), on_step=on_step)
    assert [step[:4] for step in steps] == [(batch, 2, number, 3) for batch in (1, 2) for number in (1, 2, 3)]
    assert [step[4] for step in steps[:3]] == sorted((step[4] for step in steps[:3]), reverse=True)
    assert {picture.size for picture in rough} == {(16, 16)}
    assert {picture.size for picture in decoded} == {(32, 32)}
    # DDIM's last guess is about the finished picture.
    assert psnr(decoded[2], result.pictures[0].image) > 40


def test_previews_do_not_change_the_picture(pipeline):
    plain = pipeline.generate(ask())
    watched = pipeline.generate(ask(), on_step=lambda step: step.preview.decode())
    assert plain.pictures[0].image.tobytes() == watched.pictures[0].image.tobytes()


def test_cancelling_stops_before_the_next_step_and_leaves_the_pipeline_usable(pipeline):
    cancel = threading.Event()

    def on_step(step):
        if step.number == 2:
            cancel.set()

    with pytest.raises(Interrupted, match="after 2 of 5 steps"):
        pipeline.generate(ask(steps=5, scheduler="Euler"), on_step=on_step, cancel=cancel)
    expected = pipeline.generate(ask())
    assert np.asarray(expected.pictures[0].image).std() > 20


def test_finished_batches_are_handed_out_before_a_cancelled_one(pipeline):
    cancel = threading.Event()
    done = []
    with pytest.raises(Interrupted):
        for batch in pipeline.batches(ask(num_images=3), cancel=cancel):
            done.append(batch)
            if batch.number == 2:
                cancel.set()
    assert [batch.number for batch in done] == [1, 2]


def test_initializers_take_the_place_of_the_folders(little_folder, settings, pipeline):
    model = load_model(little_folder / "vae_decoder" / "model.onnx")
    name = next(stored.name for stored in model.graph.initializer if stored.name.endswith("conv_out.bias"))
    bright = {"vae_decoder": {name: np.full(3, 9.0, np.float32)}}
    other = open_pipeline(little_folder, settings, initializers=bright)
    assert np.asarray(other.generate(ask()).pictures[0].image).mean() > 200
    assert np.asarray(pipeline.generate(ask()).pictures[0].image).mean() < 200


def test_an_eta_adds_noise_to_ddim(pipeline):
    plain, noisy = (pipeline.generate(ask(scheduler="DDIM", eta=eta)).pictures[0].image for eta in (0.0, 1.0))
    assert psnr(plain, noisy) < 40

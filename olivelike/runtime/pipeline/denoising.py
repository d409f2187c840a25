"""The loop around the UNet, with classifier-free guidance (https://arxiv.org/abs/2207.12598) by one term or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.errors import Interrupted, SourceError
from olivelike.runtime.pipeline.vae import Preview
from olivelike.runtime.schedulers.make_scheduler import seed_noise, taken_in_steps

if TYPE_CHECKING:
    from threading import Event

    import torch

    from olivelike.runtime.pipeline.conditioning import Conditioning, Conditions
    from olivelike.runtime.pipeline.latents import BatchState, Start
    from olivelike.runtime.sessions.session import Call, Network


@dataclass(frozen=True, eq=False)
class Step:
    """A step that is done."""

    batch: int
    """From 1."""
    batches: int
    attempt: int
    """1, and more where flagged pictures are drawn again."""
    number: int
    """From 1."""
    total: int
    timestep: float
    preview: Preview


@dataclass(frozen=True)
class DenoisingCallbacks:
    """What is called after each step of a batch, and what may stop it."""

    batch: int
    batches: int
    attempt: int
    on_step: Callable[[Step], None] | None
    cancel: Event | None


def denoise(
    start: Start,
    conditioning: Conditioning,
    state: BatchState,
    unet: Network,
    decoder: Network,
    callbacks: DenoisingCallbacks,
) -> torch.Tensor:
    """Run the UNet on each timestep.

    Raises `Interrupted` if `callbacks.cancel` is set, and `SessionError` if the engine fails.

    Args:
        start: latents and timesteps to begin with.
        decoder: `vae_decoder`, for previews.

    Returns:
        Latents of shape (pictures, channels, height, width), float32, on the UNet's device.
    """
    request, scheduler, latents = state.request, state.scheduler, start.latents
    pictures, channels = latents.shape[:2]
    shown, guided, terms = conditioning.at(0), conditioning.guided, conditioning.terms
    of_prompts = range(pictures) if terms is None else terms.pictures
    rows = [*range(pictures), *of_prompts] if guided else [*of_prompts]
    prepared = _prepare(unet, start, shown, rows)
    call = _show(unet, prepared, shown)
    sample, timestep = call.inputs["sample"], call.inputs["timestep"]
    (output,) = call.outputs.values()
    # Both halves of the guided batch are the same latents: one write each, no tensor in between.
    parts = [part[:, :channels] for part in sample.split(pictures)] if terms is None else []
    scale = request.guidance_scale if request.guided and shown.guidance is None else 1.0
    extras = _step_arguments(state, latents)
    for number, moment in enumerate(start.timesteps):
        if callbacks.cancel is not None and callbacks.cancel.is_set():
            raise Interrupted(f"cancelled after {number} of {len(start.timesteps)} steps")
        if (wanted := conditioning.at(number // scheduler.order)) is not shown:
            shown, call = wanted, _show(unet, prepared, wanted)
        scaled = scheduler.scale_model_input(latents, moment)
        for part in parts:
            part.copy_(scaled)
        if terms is not None:
            sample[:, :channels].copy_(scaled[rows])
        timestep.copy_(moment if timestep.is_floating_point() else moment.round())
        call.run()
        # Schedulers keep predictions of earlier steps, so the buffer itself must not reach them.
        prediction = output.to(latents.dtype)
        if guided:
            prediction = guide(prediction, scale, request.guidance_rescale, terms)
        elif prediction is output:
            prediction = output.clone()
        stepped = scheduler.step(prediction, moment, latents, **extras)
        latents = stepped.prev_sample
        if start.blend is not None:
            latents = start.blend.apply(latents, number, scheduler)
        if callbacks.on_step is not None:
            guess = getattr(stepped, "pred_original_sample", None)
            preview = Preview(latents if guess is None else guess, decoder, state.folder)
            place = (callbacks.batch, callbacks.batches, callbacks.attempt)
            callbacks.on_step(Step(*place, number + 1, len(start.timesteps), float(moment), preview))
    return latents


def _prepare(unet: Network, start: Start, conditions: Conditions, rows: list[int]) -> Call:
    """Return the UNet's call for rows of these pictures, with what an inpainting UNet takes beside the latents."""
    _, channels, height, width = start.latents.shape
    batch = len(rows)
    more = 0 if start.channels is None else start.channels.shape[1]
    leading = _leading(conditions)
    known = {"sample", "timestep", *leading}
    if unknown := [name for name in unet.session.inputs if name not in known]:
        raise SourceError(f"unet/model.onnx: takes {', '.join(unknown)}, which this pipeline has nothing for")
    shape = (batch, channels + more, height, width)
    call = unet.prepare(
        {
            "sample": shape,
            "timestep": (1,) * len(unet.input("timestep").dims),
            **{name: tuple(value.shape) for name, value in leading.items()},
        },
        {next(iter(unet.session.outputs)): (batch, channels, height, width)},
    )
    if start.channels is not None:
        call.inputs["sample"][:, channels:].copy_(start.channels[rows])
    return call


def _show(unet: Network, call: Call, conditions: Conditions) -> Call:
    """Return the call with other conditions, which stay until the next ones are shown."""
    leading = _leading(conditions)
    for name, value in leading.items():
        call.inputs[name].copy_(value)
    return unet.hold(call, tuple(leading))


def _leading(conditions: Conditions) -> dict[str, torch.Tensor]:
    leading = {"encoder_hidden_states": conditions.states}
    if conditions.pooled is not None and conditions.times is not None:
        leading |= {"text_embeds": conditions.pooled, "time_ids": conditions.times}
    if conditions.guidance is not None:
        leading["timestep_cond"] = conditions.guidance
    return leading


def _step_arguments(state: BatchState, latents: torch.Tensor) -> dict[str, Any]:
    seed_noise(state.scheduler, state.seeds, latents)
    taken = taken_in_steps(state.scheduler)
    arguments: dict[str, Any] = {}
    if "generator" in taken:
        # One generator as such: not every scheduler takes a list.
        arguments["generator"] = state.sources if len(state.sources) > 1 else state.sources[0]
    if "eta" in taken:
        arguments["eta"] = state.request.eta
    return arguments


@dataclass(frozen=True)
class Terms:
    """Rows of prompts, where a picture has several, or one with a weight."""

    weights: tuple[float, ...]
    pictures: tuple[int, ...]
    """Which picture each row belongs to."""


def terms_of(weights: Sequence[Sequence[float]]) -> Terms | None:
    """Return the rows for the weights of each picture's terms; `None` if each has one, of weight 1."""
    if all(list(own) == [1.0] for own in weights):
        return None
    owners = tuple(picture for picture, own in enumerate(weights) for _ in own)
    return Terms(tuple(weight for own in weights for weight in own), owners)


def guide(prediction: torch.Tensor, scale: float, rescale: float, terms: Terms | None = None) -> torch.Tensor:
    """Combine predictions on the negative prompts and on the prompts.

    Args:
        prediction: of shape (pictures + rows of prompts, channels, height, width): first the negative prompts.
        rescale: share of the result whose deviation is brought to that of the prompts' prediction (section 3.4 of
            https://arxiv.org/abs/2305.08891).
        terms: rows of prompts that add up to what leads a picture: each by its difference from the negative prompt,
            times its weight (equation 11 of https://arxiv.org/abs/2206.01714).

    Returns:
        A new tensor with a row for each picture.
    """
    if terms is None:
        negative, positive = prediction.chunk(2)
    else:
        negative, positive = _add_up(prediction, terms)
    guided = negative + scale * (positive - negative)
    if rescale == 0:
        return guided
    dims = list(range(1, guided.ndim))
    rescaled = guided * (positive.std(dims, keepdim=True) / guided.std(dims, keepdim=True))
    return rescale * rescaled + (1 - rescale) * guided


def _add_up(prediction: torch.Tensor, terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the negative prompts predict, and the sum of what the terms of each picture do."""
    import torch

    owners = torch.tensor(terms.pictures, device=prediction.device)
    weights = torch.tensor(terms.weights, dtype=prediction.dtype, device=prediction.device)
    negative = prediction[: len(prediction) - len(owners)]
    differences = (prediction[len(negative) :] - negative[owners]) * weights[:, None, None, None]
    return negative, negative.index_add(0, owners, differences)

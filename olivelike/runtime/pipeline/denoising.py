"""The loop around the denoiser; classifier-free guidance (https://arxiv.org/abs/2207.12598) by one term or several."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.errors import Interrupted
from olivelike.runtime.pipeline.cheap_steps import GuidanceCalls, guided_steps, runs_whole
from olivelike.runtime.pipeline.denoiser_calls import DenoiserCalls, DenoiserNetworks
from olivelike.runtime.pipeline.latents import BatchState, Start, step_noise
from olivelike.runtime.pipeline.vae import Preview

if TYPE_CHECKING:
    from threading import Event

    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pipeline.conditioning import Conditioning, Terms
    from olivelike.runtime.sessions.session import Network


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
    """Functions that are called after each step of a batch, and one that may stop it."""

    batch: int
    batches: int
    attempt: int
    on_step: Callable[[Step], None] | None
    cancel: Event | None
    previewer: Callable[[], Network | None] = lambda: None
    """Opens the tiny decoder that shows steps, if there is one."""


def denoise(
    start: Start,
    conditioning: Conditioning,
    state: BatchState,
    networks: DenoiserNetworks,
    decoder: Callable[[], Network],
    callbacks: DenoisingCallbacks,
) -> Array:
    """Run the denoiser on each timestep; steps without its deep layers take what those made in an earlier step.

    Returns latents of shape (pictures, channels, height, width), float32. Raises `Interrupted` if `callbacks.cancel` is
    set, and `SessionError` if the engine fails.

    Args:
        start: latents to begin with.
        networks: the denoiser, and its shallow part for the steps between whole ones.
        decoder: opens `vae_decoder`, for previews.
    """
    import numpy as np

    request, schedule, latents, kept = state.request, state.schedule, start.latents, state.schedule.kept
    guided, terms = conditioning.guided, conditioning.terms
    folder = state.folder
    calls = DenoiserCalls(networks, folder, start, conditioning)
    total = len(schedule.calls)
    # Schedules of order 2 call the denoiser twice in a step.
    order, steps = schedule.order, -(-total // schedule.order)
    within = guided_steps(request, steps)
    facts = networks.whole.session.provider, *latents.shape
    halves = GuidanceCalls(request.guidance_calls, folder.model(folder.family.denoiser), facts)
    embedded = folder.takes_guidance
    noise = step_noise(state, tuple(latents.shape[1:]))
    for number, call in enumerate(schedule.calls):
        if callbacks.cancel is not None and callbacks.cancel.is_set():
            raise Interrupted(f"cancelled after {number} of {total} steps")
        step = number // order
        # Terms are differences from the negative prompt, at any scale.
        runs_negative = guided and (step in within or terms is not None)
        moment = np.array(schedule.timesteps[call], np.float32)
        scaled, conditions = schedule.scaled(latents, call), conditioning.at(step)
        reuse = not runs_whole(step, steps, request)
        guides = [guide for guide in networks.guides.controls if guide.is_active(number, total)]
        with halves.timed() if runs_negative else nullcontext():
            output = calls.predict(
                scaled, moment, conditions, guided=runs_negative, reuse=reuse, apart=halves.apart, guides=guides
            )
        # Predictions may be kept for later steps, so the buffer itself must not be.
        prediction = output.astype(np.float32)
        if runs_negative:
            scale = request.guidance_scale if request.guided and not embedded and step in within else 1.0
            prediction = guide(prediction, scale, request.guidance_rescale, terms, folder.form.guided)
        latents, kept, foretold = schedule.advance(call, latents, kept, prediction, noise(call))
        if start.blend is not None:
            latents = start.blend.apply(latents, call, schedule)
        if callbacks.on_step is not None:
            if start.blend is not None:
                foretold = start.blend.foretell(foretold)
            preview = Preview(foretold, decoder, state.folder, callbacks.previewer)
            place = (callbacks.batch, callbacks.batches, callbacks.attempt)
            callbacks.on_step(Step(*place, number + 1, total, float(moment), preview))
    return latents


def guide(
    prediction: Array,
    scale: float,
    rescale: float,
    terms: Terms | None = None,
    of_family: Callable[[Array, Array], Array] = lambda guided, _: guided,
) -> Array:
    """Combine predictions on the negative prompts and on the prompts.

    Returns a new array with a row for each picture.

    Args:
        prediction: of shape (pictures + rows of prompts, channels, height, width): first the negative prompts.
        rescale: share of the result whose deviation is brought to that of the prompts' prediction (section 3.4 of
            https://arxiv.org/abs/2305.08891).
        terms: rows of prompts that add up to what leads a picture: each by its difference from the negative prompt,
            times its weight (equation 11 of https://arxiv.org/abs/2206.01714).
        of_family: what the family makes of the result, and of the prompts' prediction.
    """
    import numpy as np

    if terms is None:
        negative, positive = np.split(prediction, 2)
    else:
        negative, positive = _add_up(prediction, terms)
    guided: Array = of_family(negative + scale * (positive - negative), positive)
    if rescale == 0:
        return guided
    wanted, there = (
        values.std(axis=(1, 2, 3), keepdims=True, ddof=1, dtype=np.float64) for values in (positive, guided)
    )
    rescaled = guided * (wanted / there).astype(np.float32)
    made: Array = rescale * rescaled + (1 - rescale) * guided
    return made


def _add_up(prediction: Array, terms: Terms) -> tuple[Array, Array]:
    """Return what the negative prompts predict, and the sum of what the terms of each picture do."""
    import numpy as np

    owners, weights = np.array(terms.pictures), np.array(terms.weights, np.float32)
    negative = prediction[: len(prediction) - len(owners)]
    differences = (prediction[len(negative) :] - negative[owners]) * weights[:, None, None, None]
    total = negative.copy()
    np.add.at(total, owners, differences)
    return negative, total

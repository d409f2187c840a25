"""Drawing twice: at the size that a UNet was trained on, then again at a larger one, from what was drawn enlarged.

As A1111's "hires. fix": diffusers' `StableDiffusionPipeline`, then `StableDiffusionImg2ImgPipeline` with generators of
the same seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.model.components import latents_in_square
from olivelike.runtime.pipeline.request import RESAMPLED
from olivelike.runtime.pipeline.vae import apart, decode_latents, encode_picture, to_images, to_pixels

if TYPE_CHECKING:
    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pictures.upscaling import Upscaler
    from olivelike.runtime.pipeline.denoising import DenoisingCallbacks, Step
    from olivelike.runtime.pipeline.latents import BatchState
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request, ResolvedRequest
    from olivelike.runtime.sessions.session import Network


_MOST_STEPS: Final = 1000
"""Steps of a schedule, however small a share of it runs: as many as networks are trained on."""


def check_hires(request: Request) -> None:
    """Check whether a request can be drawn twice, if it asks for that. Raises `UsageError`."""
    if request.hires is None:
        if str(request.upscaler) in RESAMPLED:
            raise UsageError(
                f"upscaler {request.upscaler}: it says no size; give hires, or the file of a network that enlarges"
            )
        return
    strength = request.hires_strength
    if not request.hires_steps and int(request.steps * strength) < 1:
        raise UsageError(
            f"hires with strength {strength:g} of {request.steps} steps leaves no step; "
            f"take at least strength {1 / request.steps:.2g}, more steps, or hires_steps"
        )
    if request.init_image is not None:
        raise UsageError(
            "hires is for pictures from a prompt alone; give a larger size in its place, or leave the initial picture "
            "out"
        )


def hires_size(request: Request, folder: PipelineFolder) -> tuple[int, int]:
    """Return width and height of what is drawn in the end: the nearest that there is to the enlarged size."""
    size, unit = request.size or folder.default_size, folder.least_unit
    if request.hires is None:
        return size
    width, height = (round(side * request.hires / unit) * unit for side in size)
    return width, height


def second_pass(request: ResolvedRequest, folder: PipelineFolder) -> ResolvedRequest:
    """Return what is drawn of what the request draws first; of its `steps`, `hires_steps` run if there are some."""
    strength = request.hires_strength
    steps = schedule_length(request.hires_steps, strength) if request.hires_steps else request.steps
    return replace(request, size=hires_size(request, folder), steps=steps, strength=strength, hires=None)


def schedule_length(runs: int, strength: float) -> int:
    """Return of how many steps so many are the share, as `setup_img2img_steps` of A1111's `sd_samplers_common.py`."""
    return max(runs, min(int(runs / min(strength, 0.999)), _MOST_STEPS))


def enlarge_latents(latents: Array, state: BatchState) -> Array:
    """Return latents of the size of a batch, between them by bilinear interpolation, as A1111's "Latent".

    Squares of latents that are one to the denoiser are taken apart for it: what is between two squares is not what is
    between their corners.
    """
    side = latents_in_square(state.folder.vae)
    pictures, channels = latents.shape[:2]
    height, width = state.latent_size
    larger = between(between(apart(latents, side), height * side, 2), width * side, 3)
    squares = larger.reshape(pictures, -1, height, side, width, side).transpose(0, 1, 3, 5, 2, 4)
    return squares.reshape(pictures, channels, height, width)


def between(values: Array, size: int, axis: int) -> Array:
    """Return so many values along an axis, each between the two that are nearest to its place."""
    import numpy as np

    given = values.shape[axis]
    scale = float(np.float32(given / size))
    places = ((np.arange(size) + 0.5) * scale - 0.5).astype(np.float32).clip(0)
    first = places.astype(np.int64)
    share = (places - first).astype(np.float32).reshape(-1, *[1] * (values.ndim - 1 - axis))
    before, behind = values.take(first, axis), values.take(np.minimum(first + 1, given - 1), axis)
    found: Array = before * (1 - share) + behind * share
    return found


def enlarge_by(
    upscaler: Upscaler | None, latents: Array, state: BatchState, networks: tuple[Network, Network]
) -> Array:
    """Decode latents, enlarge the pictures to the size of a batch, and draw a sample of what they encode to.

    `upscaler` is `None` where the request names one of `RESAMPLED`; `networks` are the VAE's decoder and encoder.
    """
    import numpy as np
    from PIL import Image

    decoder, encoder = networks
    size, folder = state.request.size, state.folder
    drawn = to_images(decode_latents(latents, decoder, folder, singly=state.request.decode_singly), latents, folder)
    nearest = upscaler is None and str(state.request.upscaler) == "Nearest"
    method = Image.Resampling.NEAREST if nearest else Image.Resampling.LANCZOS
    large = [(image if upscaler is None else upscaler.enlarge(image)).resize(size, method) for image in drawn]
    return np.concatenate(
        [
            encode_picture(to_pixels(image, size, folder), encoder, latents.shape[1], folder, [source])
            for image, source in zip(large, state.sources, strict=True)
        ]
    )


def in_turn(callbacks: DenoisingCallbacks, passes: Sequence[range]) -> list[DenoisingCallbacks]:
    """Return the callbacks of each pass, with steps counted through all; `passes` are their calls."""
    total = sum(map(len, passes))
    return [_counted(callbacks, sum(map(len, passes[:number])), total) for number in range(len(passes))]


def _counted(callbacks: DenoisingCallbacks, before: int, total: int) -> DenoisingCallbacks:
    told = callbacks.on_step
    if told is None:
        return callbacks

    def on_step(step: Step) -> None:
        told(replace(step, number=before + step.number, total=total))

    return replace(callbacks, on_step=on_step)

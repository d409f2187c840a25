"""Drawing twice: at the size that a UNet was trained on, then again at a larger one, from what was drawn enlarged.

As A1111's "hires. fix": diffusers' `StableDiffusionPipeline`, then `StableDiffusionImg2ImgPipeline` with generators of
the same seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from olivelike.runtime.pipeline.resolve_defaults import hires_size
from olivelike.runtime.pipeline.vae import decode_latents, encode_picture, to_images, to_pixels

if TYPE_CHECKING:
    import torch

    from olivelike.runtime.pictures.upscaling import Upscaler
    from olivelike.runtime.pipeline.denoising import DenoisingCallbacks, Step
    from olivelike.runtime.pipeline.latents import BatchState
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import ResolvedRequest
    from olivelike.runtime.sessions.session import Network


def second_pass(request: ResolvedRequest, folder: PipelineFolder) -> ResolvedRequest:
    """Return what is drawn of what the request draws first."""
    return replace(request, size=hires_size(request, folder), strength=request.hires_strength, hires=None)


def enlarge_latents(latents: torch.Tensor, state: BatchState) -> torch.Tensor:
    """Return latents of the size of a batch, between them by bilinear interpolation, as A1111's "Latent"."""
    from torch.nn.functional import interpolate

    enlarged: torch.Tensor = interpolate(latents, size=state.latent_size, mode="bilinear")
    return enlarged


def enlarge_by(
    upscaler: Upscaler, latents: torch.Tensor, state: BatchState, networks: tuple[Network, Network]
) -> torch.Tensor:
    """Decode latents, enlarge the pictures to the size of a batch, and draw a sample of what they encode to.

    `networks` are the VAE's decoder and encoder.
    """
    import torch
    from PIL import Image

    decoder, encoder = networks
    size, folder = state.request.size, state.folder
    drawn = to_images(decode_latents(latents, decoder, folder, singly=state.request.decode_singly), latents, folder)
    large = [upscaler.enlarge(image).resize(size, Image.Resampling.LANCZOS) for image in drawn]
    return torch.cat(
        [
            encode_picture(to_pixels(image, size, folder), encoder, latents.shape[1], folder, [source])
            for image, source in zip(large, state.sources, strict=True)
        ]
    )


def in_turn(callbacks: DenoisingCallbacks, passes: Sequence[torch.Tensor]) -> list[DenoisingCallbacks]:
    """Return the callbacks of each pass, with steps counted through all; `passes` are their timesteps."""
    total = sum(map(len, passes))
    return [_counted(callbacks, sum(map(len, passes[:number])), total) for number in range(len(passes))]


def _counted(callbacks: DenoisingCallbacks, before: int, total: int) -> DenoisingCallbacks:
    told = callbacks.on_step
    if told is None:
        return callbacks

    def on_step(step: Step) -> None:
        told(replace(step, number=before + step.number, total=total))

    return replace(callbacks, on_step=on_step)

"""What denoising starts from: noise, a picture with noise, or a picture with a hole.

After `StableDiffusionPipeline`, `StableDiffusionImg2ImgPipeline` and `StableDiffusionInpaintPipeline` of diffusers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.runtime.pipeline import noise
from olivelike.runtime.pipeline.masks import Blend, masked_channels, shrink, to_mask
from olivelike.runtime.pipeline.vae import encode_picture, to_pixels

if TYPE_CHECKING:
    import torch

    from olivelike.runtime.pipeline.batch_state import Drawing
    from olivelike.runtime.sessions.network import Network


@dataclass(frozen=True, eq=False)
class Start:
    """Where the loop begins."""

    latents: torch.Tensor
    """Of shape (pictures, channels, height, width), float32."""
    timesteps: torch.Tensor
    """Those that are left to run."""
    channels: torch.Tensor | None = None
    """Mask and masked picture, which an inpainting UNet takes after the latents: (pictures, 5, height, width)."""
    blend: Blend | None = None
    """What keeps the rest of the picture, for a UNet that knows no masks."""


def from_noise(drawing: Drawing, channels: int) -> Start:
    """Start from noise alone, in so many channels."""
    drawn = noise.draw((channels, *drawing.latent_size), drawing.sources).to(drawing.device)
    scheduler = drawing.scheduler
    if drawing.folder.is_xl:
        _begin_at(drawing, 0)
    return Start(drawn * scheduler.init_noise_sigma, scheduler.timesteps)


def from_picture(drawing: Drawing, encoder: Network, channels: int) -> Start:
    """Start from the request's picture in so many channels, with as much noise as its strength says."""
    request = drawing.request
    assert request.init_image is not None
    assert request.size is not None
    timesteps = _last_timesteps(drawing)
    pixels = to_pixels(request.init_image, request.size, drawing.folder)
    encoded = encode_picture(pixels, encoder, channels, drawing.folder, drawing.sources)
    drawn = noise.draw(tuple(encoded.shape[1:]), drawing.sources)
    latents = _add_noise(drawing, encoded.to(drawing.device), drawn.to(drawing.device), timesteps)
    return Start(latents, timesteps)


def from_picture_with_hole(drawing: Drawing, encoder: Network, channels: int, unet_channels: int) -> Start:
    """Start from the request's picture, of which only what the mask shows white is painted.

    Args:
        drawing: the batch.
        encoder: `vae_encoder`.
        channels: of latents.
        unet_channels: a UNet of nine takes mask and masked picture; with four, the picture is put back in each step.
    """
    request = drawing.request
    assert request.init_image is not None
    assert request.mask is not None
    assert request.size is not None
    timesteps = _last_timesteps(drawing)
    pixels = to_pixels(request.init_image, request.size, drawing.folder)
    mask = to_mask(request.mask, request.size, drawing.folder)
    knows_masks = unet_channels == masked_channels(channels)
    from_scratch = request.strength == 1.0
    encoded = None
    if not (knows_masks and from_scratch):
        encoded = encode_picture(pixels, encoder, channels, drawing.folder, drawing.sources).to(
            drawing.device
        )
    shape = (channels, *drawing.latent_size)
    drawn = noise.draw(shape, drawing.sources).to(drawing.device)
    if from_scratch:
        latents = drawn * drawing.scheduler.init_noise_sigma
    else:
        assert encoded is not None
        latents = _add_noise(drawing, encoded, drawn, timesteps)
    small_mask = shrink(mask, drawing.latent_size)
    if not knows_masks:
        assert encoded is not None
        # Diffusers encodes the masked picture here too, without use; what it draws moves the later draws.
        noise.draw(shape, drawing.sources)
        return Start(
            latents, timesteps, blend=Blend(encoded, drawn, small_mask.to(drawing.device), timesteps)
        )
    masked = encode_picture(pixels * (mask < 0.5), encoder, channels, drawing.folder, drawing.sources)
    return Start(latents, timesteps, channels=_join(small_mask, masked).to(drawing.device))


def _last_timesteps(drawing: Drawing) -> torch.Tensor:
    """Return the timesteps that `strength` leaves, and tell the scheduler where it begins."""
    steps, strength = drawing.request.steps, drawing.request.strength
    assert strength is not None
    first = (steps - min(int(steps * strength), steps)) * drawing.scheduler.order
    _begin_at(drawing, first)
    timesteps: torch.Tensor = drawing.scheduler.timesteps[first:]
    return timesteps


def _begin_at(drawing: Drawing, index: int) -> None:
    if hasattr(drawing.scheduler, "set_begin_index"):
        drawing.scheduler.set_begin_index(index)


def _add_noise(
    drawing: Drawing, latents: torch.Tensor, drawn: torch.Tensor, timesteps: torch.Tensor
) -> torch.Tensor:
    noisy: torch.Tensor = drawing.scheduler.add_noise(latents, drawn, timesteps[:1].repeat(len(latents)))
    return noisy


def _join(mask: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([mask.expand(len(masked), -1, -1, -1), masked], dim=1)

"""Painting inside a mask: white is painted, black stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivelike.runtime.pipeline.vae import upright

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder


@dataclass(frozen=True, eq=False)
class Blend:
    """The picture around the mask, put back after each step with the noise of the next one.

    After step 9 of diffusers' `StableDiffusionInpaintPipeline`, where the UNet has four channels.
    """

    original: torch.Tensor
    """Latents of the picture, of shape (pictures, channels, height, width)."""
    noise: torch.Tensor
    """The initial noise, of the same shape."""
    mask: torch.Tensor
    """1 where to paint, of shape (1, 1, height, width)."""
    timesteps: torch.Tensor

    def apply(self, latents: torch.Tensor, step: int, scheduler: Any) -> torch.Tensor:
        """Return the latents of a step, counted from 0, with all but the mask as in the picture."""
        around = self.original
        if step + 1 < len(self.timesteps):
            around = scheduler.add_noise(around, self.noise, self.timesteps[step + 1 : step + 2])
        return (1 - self.mask) * around + self.mask * latents


def to_mask(image: Image, size: tuple[int, int], folder: PipelineFolder) -> torch.Tensor:
    """Return a mask as zeros and ones of shape (1, 1, height, width), resized and cut at half as in diffusers."""
    from diffusers.image_processor import VaeImageProcessor

    processor: Any = VaeImageProcessor(
        vae_scale_factor=folder.vae_factor,
        do_normalize=False,
        do_binarize=True,
        do_convert_grayscale=True,
    )
    mask: torch.Tensor = processor.preprocess(upright(image), height=size[1], width=size[0])
    return mask


def shrink(mask: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return a mask in the height and width of latents."""
    from torch.nn.functional import interpolate

    shrunk: torch.Tensor = interpolate(mask, size=size)
    return shrunk


def masked_channels(channels: int) -> int:
    """Return how many channels a UNet has that knows masks: latents, mask, latents of the masked picture."""
    return 2 * channels + 1

"""Pictures of what is not finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.runtime.pipeline.vae import decode_latents, to_images

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.sessions.network import Network

# One row per latent channel: what it adds to red, green and blue.
_SD: Final = (
    (0.3512, 0.2297, 0.3227),
    (0.3250, 0.4974, 0.2350),
    (-0.2829, 0.1762, 0.2721),
    (-0.2120, -0.2616, -0.7177),
)
_XL: Final = (
    (0.3920, 0.4054, 0.4549),
    (-0.2634, -0.0196, 0.0653),
    (0.0568, 0.1687, -0.0755),
    (-0.3112, -0.2359, -0.2076),
)


@dataclass(frozen=True, eq=False)
class Preview:
    """What the latents of a step look like; nothing is computed until it is asked for."""

    latents: torch.Tensor
    """What the scheduler takes the finished latents to be, or the noisy ones if it does not say."""
    decoder: Network
    folder: PipelineFolder

    def rough(self) -> list[Image]:
        """Return a picture of one pixel per latent: a linear fit to what the VAEs of SD and SDXL decode.

        The fit is that of https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204.
        """
        import torch

        factors = torch.tensor(_XL if self.folder.is_xl else _SD, device=self.latents.device)
        pixels = torch.einsum("bchw,cr->brhw", self.latents[:, : len(factors)].float(), factors)
        return to_images(pixels.cpu().clamp(-1, 1))

    def decode(self) -> list[Image]:
        """Return what the VAE decodes: as large as the finished picture, and about as long as a step to wait for."""
        return to_images(decode_latents(self.latents, self.decoder, self.folder, singly=True))

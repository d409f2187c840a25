"""Latents that denoising starts from: noise, a picture with noise, or a picture with a hole, where the mask is white.

After `StableDiffusionPipeline`, `StableDiffusionImg2ImgPipeline` and `StableDiffusionInpaintPipeline` of diffusers.

`BatchState` is a batch in the making: its scheduler, and all chance in it, fresh for each. Each picture has noise
of its own. The order of draws is that of those pipelines with a list of generators: sample of the encoded
picture, initial noise, sample of the masked picture, then what each step draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import UsageError
from olivelike.runtime.pipeline.request import DRAWN_SEEDS, ResolvedRequest
from olivelike.runtime.pipeline.vae import encode_picture, to_pixels, to_shares, upright
from olivelike.runtime.schedulers.flow_matching import shift_by_size
from olivelike.runtime.schedulers.make_scheduler import Scheduler, make_scheduler

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from olivelike.runtime.pipeline.noise import Noise
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.sessions.session import Network


_HALF: Final = 0.5
_ALIKE: Final = 0.9995
"""Cosine above which two vectors have no arc between them to speak of."""


@dataclass(frozen=True, eq=False)
class BatchState:
    """Values that every part of drawing a batch needs."""

    request: ResolvedRequest
    folder: PipelineFolder
    scheduler: Scheduler
    """Scheduler of diffusers, with its timesteps set."""
    seeds: tuple[int, ...]
    """One for each picture."""
    variations: tuple[int, ...]
    """One for each picture, if the request has a `variation_strength`."""
    sources: list[Noise]
    """Noise of these seeds."""

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of the latents."""
        width, height = self.request.size
        return height // self.folder.vae_factor, width // self.folder.vae_factor


def begin_batch(
    request: ResolvedRequest, folder: PipelineFolder, seeds: Sequence[int], variations: Sequence[int] = ()
) -> BatchState:
    """Make generators and scheduler of a batch, whose pictures may have variation seeds.

    Raises `UsageError` for a scheduler that there is none of, or a number of steps that it refuses, and `SourceError`
    if the folder's own is for networks of another kind, or its config is damaged.
    """
    scheduler = make_scheduler(request.scheduler, folder.scheduler, flow=folder.is_of_flow)
    try:
        shift = shift_by_size(scheduler.config, folder.patches(request.size))
        scheduler.set_timesteps(request.steps, device="cpu", **shift)
    except (ValueError, IndexError, OverflowError) as error:
        name = type(scheduler).__name__
        raise UsageError(
            f"{name} refuses {request.steps} steps: {error}; take another number of steps, or another scheduler"
        ) from error
    return BatchState(request, folder, scheduler, tuple(seeds), tuple(variations), generators(seeds))


def generators(seeds: Sequence[int]) -> list[Noise]:
    """Return the noise of each seed."""
    from olivelike.runtime.pipeline.noise import Noise

    return [Noise(seed) for seed in seeds]


def draw_noise(shape: tuple[int, ...], sources: Sequence[Noise]) -> torch.Tensor:
    """Draw standard normal noise, each picture's from its own seed.

    Args:
        shape: of one picture: (channels, height, width).

    Returns:
        Noise of shape (pictures, channels, height, width), float32, on the CPU.
    """
    import numpy as np
    import torch

    return torch.from_numpy(np.stack([source.draw(shape) for source in sources]))


def initial_noise(state: BatchState, channels: int) -> torch.Tensor:
    """Draw what denoising begins with: each seed's noise, or a point on the way to that of its variation seed.

    The way is the arc between the two along each column of each channel, as in A1111's `modules/rng.py`.
    """
    import torch

    shape = (channels, *state.latent_size)
    drawn = draw_noise(shape, state.sources)
    if not state.variations:
        return drawn
    share, other = state.request.variation_strength, draw_noise(shape, generators(state.variations))
    cosine = torch.cosine_similarity(drawn, other, dim=2).unsqueeze(2).clamp(-1, 1)
    angle = torch.acos(cosine)
    mixed = (torch.sin((1 - share) * angle) * drawn + torch.sin(share * angle) * other) / torch.sin(angle)
    return torch.where(cosine > _ALIKE, torch.lerp(drawn, other, share), mixed)


def seed_of_attempt(seed: int, attempt: int) -> int:
    """Return the seed that a picture is drawn with when its first `attempt - 1` drawings were flagged."""
    if attempt == 1:
        return seed
    digest = hashlib.sha256(f"olivelike retry/{seed}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % DRAWN_SEEDS


@dataclass(frozen=True, eq=False)
class Start:
    """Beginning of the denoising loop."""

    latents: torch.Tensor
    """Float32 of shape (pictures, channels, height, width)."""
    timesteps: torch.Tensor
    """Timesteps that are left to run."""
    channels: torch.Tensor | None = None
    """Mask and masked picture, which an inpainting denoiser takes after the latents: (pictures, 5, height, width)."""
    blend: Blend | None = None
    """Blending that keeps the rest of the picture, for a denoiser that knows no masks."""


def from_noise(state: BatchState, channels: int) -> Start:
    """Start from noise alone, in so many channels."""
    drawn = initial_noise(state, channels)
    scheduler = state.scheduler
    if state.folder.family.begins_at_once:
        _begin_at(state, 0)
    return Start(drawn * scheduler.init_noise_sigma, scheduler.timesteps)


def from_picture(state: BatchState, encoder: Network, channels: int) -> Start:
    """Start from the request's picture in so many channels, with as much noise as its strength says."""
    request = state.request
    assert request.init_image is not None
    pixels = to_pixels(request.init_image, request.size, state.folder)
    return from_latents(state, encode_picture(pixels, encoder, channels, state.folder, state.sources))


def from_latents(state: BatchState, encoded: torch.Tensor) -> Start:
    """Start from latents of pictures, with as much noise as the request's strength says."""
    timesteps = last_timesteps(state)
    drawn = initial_noise(state, encoded.shape[1])
    return Start(_add_noise(state, encoded, drawn, timesteps), timesteps)


def from_picture_with_hole(state: BatchState, encoder: Network, channels: int, taken_channels: int) -> Start:
    """Start from the request's picture, of which only what the mask shows white is painted.

    One of nine `taken_channels` takes mask and masked picture; with four, the picture is put back in each step.
    """
    import torch
    from torch.nn.functional import interpolate

    request = state.request
    assert request.init_image is not None
    assert request.mask is not None
    timesteps = last_timesteps(state)
    pixels = to_pixels(request.init_image, request.size, state.folder)
    mask = to_mask(request.mask, request.size, state.folder)
    knows_masks = taken_channels == masked_channels(channels)
    from_scratch = request.strength == 1.0
    encoded = None
    if not (knows_masks and from_scratch):
        encoded = encode_picture(pixels, encoder, channels, state.folder, state.sources)
    drawn = initial_noise(state, channels)
    if from_scratch:
        latents = drawn * state.scheduler.init_noise_sigma
    else:
        assert encoded is not None
        latents = _add_noise(state, encoded, drawn, timesteps)
    small_mask: torch.Tensor = interpolate(mask, size=state.latent_size)
    if not knows_masks:
        assert encoded is not None
        if not state.folder.has_tiny_vae:
            # Diffusers encodes the masked picture here too, without use; what it draws moves the later draws.
            draw_noise((channels, *state.latent_size), state.sources)
        return Start(latents, timesteps, blend=Blend(encoded, drawn, small_mask, timesteps))
    masked = encode_picture(pixels * (mask.numpy() < 0.5), encoder, channels, state.folder, state.sources)
    taken = torch.cat([small_mask.expand(len(masked), -1, -1, -1), masked], dim=1)
    return Start(latents, timesteps, channels=taken)


def last_timesteps(state: BatchState) -> torch.Tensor:
    """Return the timesteps that `strength` leaves, and tell the scheduler where it begins."""
    steps, strength = state.request.steps, state.request.strength
    assert strength is not None
    first = (steps - min(int(steps * strength), steps)) * state.scheduler.order
    _begin_at(state, first)
    timesteps: torch.Tensor = state.scheduler.timesteps[first:]
    return timesteps


def _begin_at(state: BatchState, index: int) -> None:
    if hasattr(state.scheduler, "set_begin_index"):
        state.scheduler.set_begin_index(index)


def _add_noise(state: BatchState, latents: torch.Tensor, drawn: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    noisy: torch.Tensor = state.scheduler.add_noise(latents, drawn, timesteps[:1].repeat(len(latents)))
    return noisy


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
    import torch

    return torch.from_numpy((to_shares(upright(image), size, folder.vae_factor, "L") >= _HALF).astype("float32"))


def masked_channels(channels: int) -> int:
    """Return how many channels a denoiser has that knows masks: latents, mask, latents of the masked picture."""
    return 2 * channels + 1

"""Latents that denoising starts from: noise, a picture with noise, or a picture with a hole, where the mask is white.

After `StableDiffusionPipeline`, `StableDiffusionImg2ImgPipeline` and `StableDiffusionInpaintPipeline` of diffusers.

`BatchState` is a batch in the making: its schedule, and all chance in it, fresh for each. Each picture has noise
of its own. The order of draws is that of those pipelines with a list of generators: sample of the encoded
picture, initial noise, sample of the masked picture, then what each step draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.runtime.pictures.pixels import to_shares, upright
from olivelike.runtime.pipeline.request import DRAWN_SEEDS, ResolvedRequest
from olivelike.runtime.pipeline.vae import encode_picture, to_pixels
from olivelike.runtime.schedulers.class_settings import scheduler_settings

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pipeline.noise import Noise
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.schedulers.schedule import Schedule
    from olivelike.runtime.sessions.session import Network


_HALF: Final = 0.5
_TINY: Final = 1e-8
_ALIKE: Final = 0.9995
"""Cosine above which two vectors have no arc between them to speak of."""


@dataclass(frozen=True, eq=False)
class BatchState:
    """Values that every part of drawing a batch needs."""

    request: ResolvedRequest
    folder: PipelineFolder
    schedule: Schedule
    """Its calls are those that run."""
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
    request: ResolvedRequest,
    folder: PipelineFolder,
    seeds: Sequence[int],
    variations: Sequence[int] = (),
    *,
    begun: bool = False,
) -> BatchState:
    """Make generators and schedule of a batch, whose pictures may have variation seeds.

    `begun` says that it goes on with latents, if not from the request's picture: the second pass of Hires fix.

    Raises `UsageError` for a scheduler that there is none of, or a number of steps that it refuses, and `SourceError`
    if the folder's own is for networks of another kind, or its config is damaged.
    """
    from olivelike.runtime.schedulers.schedule import make_schedule, shift_by_size

    chosen = scheduler_settings(request.scheduler, folder.scheduler, flow=folder.is_of_flow)
    strength = request.strength if begun or request.init_image is not None else None
    shift = shift_by_size(chosen.settings, folder.patches(request.size), request.steps, folder.family.flow_shift)
    schedule = make_schedule(
        chosen, request.steps, strength=strength, runs=request.hires_steps if begun else 0, eta=request.eta,
        shift=shift, even=folder.family.even_sigmas, aligned=folder.family.aligned_levels,
    )  # fmt: skip
    return BatchState(request, folder, schedule, tuple(seeds), tuple(variations), generators(seeds))


def generators(seeds: Sequence[int]) -> list[Noise]:
    """Return the noise of each seed."""
    from olivelike.runtime.pipeline.noise import Noise

    return [Noise(seed) for seed in seeds]


def draw_noise(shape: tuple[int, ...], sources: Sequence[Noise]) -> Array:
    """Draw standard normal noise, each picture's from its own seed.

    Returns noise of shape (pictures, channels, height, width), float32.

    Args:
        shape: of one picture: (channels, height, width).
    """
    import numpy as np

    return np.stack([source.draw(shape) for source in sources])


def step_noise(state: BatchState, shape: tuple[int, ...]) -> Callable[[int], Array | float]:
    """Return what draws the noise of a call; 0 where the schedule of the batch draws none.

    Args:
        state: the batch.
        shape: that of one picture's latents.
    """
    import numpy as np

    from olivelike.runtime.pipeline.noise import BrownianPath

    draws, spans = state.schedule.draws, state.schedule.spans
    if spans is None:
        return lambda call: draw_noise(shape, state.sources) if draws[call] else 0.0
    levels = spans[draws].astype(np.float32)
    ends = (float(levels.min()), float(levels.max())) if draws.any() else (0.0, 0.0)
    paths = [BrownianPath(seed, *ends, shape) for seed in state.seeds]

    def draw(call: int) -> Array | float:
        if not draws[call]:
            return 0.0
        high, low = spans[call].astype(np.float32).tolist()
        # As `BrownianTreeNoiseSampler` of k-diffusion, whose times fall.
        drawn: Array = np.stack([path.between(low, high) for path in paths]) / -((high - low) ** 0.5)
        return drawn

    return draw


def initial_noise(state: BatchState, channels: int) -> Array:
    """Draw what denoising begins with: each seed's noise, or a point on the way to that of its variation seed."""
    return _varied(draw_noise((channels, *state.latent_size), state.sources), state)


def _varied(drawn: Array, state: BatchState) -> Array:
    """Return noise on the way to that of the variation seeds, if the batch has some.

    The way is the arc between the two along each column of each channel, as in A1111's `modules/rng.py`.
    """
    import numpy as np

    if not state.variations:
        return drawn
    share, other = state.request.variation_strength, draw_noise(drawn.shape[1:], generators(state.variations))
    lengths = [np.sqrt(np.square(one, dtype=np.float64).sum(axis=2, keepdims=True)) for one in (drawn, other)]
    product = np.multiply(drawn, other, dtype=np.float64).sum(axis=2, keepdims=True)
    cosine = (product / np.maximum(lengths[0] * lengths[1], _TINY)).clip(-1, 1)
    angle = np.arccos(cosine)
    with np.errstate(divide="ignore", invalid="ignore"):  # The arc of vectors that are alike is not taken.
        mixed = (np.sin((1 - share) * angle) * drawn + np.sin(share * angle) * other) / np.sin(angle)
    return np.where(cosine > _ALIKE, drawn + share * (other - drawn), mixed).astype(np.float32)


def seed_of_attempt(seed: int, attempt: int) -> int:
    """Return the seed that a picture is drawn with when its first `attempt - 1` drawings were flagged."""
    if attempt == 1:
        return seed
    digest = hashlib.sha256(f"olivelike retry/{seed}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % DRAWN_SEEDS


@dataclass(frozen=True, eq=False)
class Start:
    """Beginning of the denoising loop."""

    latents: Array
    """Float32 of shape (pictures, channels, height, width)."""
    channels: Array | None = None
    """Mask and masked picture, which an inpainting denoiser takes after the latents: (pictures, 5, height, width)."""
    references: tuple[Array, ...] = ()
    """Latents of pictures that the denoiser is shown, each of shape (1, channels, height, width)."""
    blend: Blend | None = None
    """Blending that keeps the rest of the picture, for a denoiser that knows no masks."""


def from_noise(state: BatchState, channels: int) -> Start:
    """Start from noise alone, in so many channels."""
    return Start(initial_noise(state, channels) * state.schedule.first)


def from_picture(state: BatchState, encoder: Network, channels: int) -> Start:
    """Start from the request's picture in so many channels, with as much noise as its strength says."""
    request = state.request
    assert request.init_image is not None
    pixels = to_pixels(request.init_image, request.size, state.folder)
    return from_latents(state, encode_picture(pixels, encoder, channels, state.folder, state.sources))


def from_latents(state: BatchState, encoded: Array) -> Start:
    """Start from latents of pictures, with as much noise as the request's strength says."""
    drawn = initial_noise(state, encoded.shape[1])
    return Start(state.schedule.mix(encoded, drawn, state.schedule.begin))


def from_picture_with_hole(state: BatchState, encoder: Network, channels: int, taken_channels: int) -> Start:
    """Start from the request's picture, of which only what the mask shows white is painted.

    One of nine `taken_channels` takes mask and masked picture; with four, the picture is put back in each step.
    At strength 1 nothing of the picture is left in the latents, unless `masked_content` is to lead them from there.
    """
    import numpy as np

    request = state.request
    assert request.init_image is not None
    assert request.mask is not None
    pixels = to_pixels(request.init_image, request.size, state.folder)
    mask = to_mask(request.mask, request.size, state.folder)
    knows_masks = taken_channels == masked_channels(channels)
    content = request.masked_content
    from_scratch = request.strength == 1.0 and content == "original"
    small_mask = _nearest(_nearest(mask, state.latent_size[0], 2), state.latent_size[1], 3)
    encoded = None
    if not (knows_masks and from_scratch):
        encoded = encode_picture(pixels, encoder, channels, state.folder, state.sources)
    of_seeds = draw_noise((channels, *state.latent_size), state.sources)
    drawn = _varied(of_seeds, state)
    if from_scratch:
        latents = drawn * state.schedule.first
    else:
        assert encoded is not None
        if content in ("latent noise", "latent nothing"):
            # The noise of the seed itself, of which more is added by its strength, as in A1111.
            encoded = encoded * (1 - small_mask) + (of_seeds * small_mask if content == "latent noise" else 0)
        latents = state.schedule.mix(encoded, drawn, state.schedule.begin)
    if not knows_masks:
        assert encoded is not None
        if not state.folder.has_tiny_vae:
            # Diffusers encodes the masked picture here too, without use; what it draws moves the later draws.
            draw_noise((channels, *state.latent_size), state.sources)
        return Start(latents, blend=Blend(encoded, drawn, small_mask))
    masked = encode_picture(pixels * (mask < _HALF), encoder, channels, state.folder, state.sources)
    taken = np.concatenate([np.repeat(small_mask, len(masked), axis=0), masked], axis=1)
    return Start(latents, channels=taken)


def _nearest(values: Array, size: int, axis: int) -> Array:
    """Return so many values along an axis, each the one at its place, as diffusers makes masks small."""
    import numpy as np

    given = values.shape[axis]
    places = (np.arange(size, dtype=np.float32) * np.float32(given / size)).astype(np.int64)
    found: Array = values.take(places, axis)
    return found


@dataclass(frozen=True, eq=False)
class Blend:
    """The picture around the mask, put back after each step with the noise of the next one.

    After step 9 of diffusers' `StableDiffusionInpaintPipeline`, where the UNet has four channels.
    """

    original: Array
    """Latents of the picture, of shape (pictures, channels, height, width)."""
    noise: Array
    """The initial noise, of the same shape."""
    mask: Array
    """1 where to paint, of shape (1, 1, height, width)."""

    def apply(self, latents: Array, call: int, schedule: Schedule) -> Array:
        """Return the latents behind a call of the denoiser, with all but the mask as in the picture."""
        around = self.original
        if call + 1 in schedule.calls:
            around = schedule.mix(around, self.noise, call + 1)
        return self._around(around, latents)

    def foretell(self, foretold: Array) -> Array:
        """Return what the denoiser foretells, with all but the mask as in the picture: for previews."""
        return self._around(self.original, foretold)

    def _around(self, around: Array, latents: Array) -> Array:
        blended: Array = (1 - self.mask) * around + self.mask * latents
        return blended


def to_mask(image: Image, size: tuple[int, int], folder: PipelineFolder) -> Array:
    """Return a mask as zeros and ones of shape (1, 1, height, width), resized and cut at half as in diffusers."""
    mask: Array = (to_shares(upright(image), size, folder.vae_factor, "L") >= _HALF).astype("float32")
    return mask


def masked_channels(channels: int) -> int:
    """Return how many channels a denoiser has that knows masks: latents, mask, latents of the masked picture."""
    return 2 * channels + 1

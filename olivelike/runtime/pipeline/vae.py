"""Between pictures and latents, finished or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from olivelike.model.components import PREVIEW, latents_in_square
from olivelike.runtime.pictures.pixels import to_pictures, to_shares, upright

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.errors import SessionError
    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pipeline.noise import Noise
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.sessions.session import Network


def encode_picture(
    pixels: Array, encoder: Network, channels: int, folder: PipelineFolder, sources: Sequence[Noise]
) -> Array:
    """Encode a picture, and draw a sample of its latents for each of the sources.

    Returns latents of shape (pictures, channels, height, width), float32.

    Args:
        pixels: of shape (1, 3, height, width), in [-1, 1].
        encoder: `vae_encoder`. One that has only the mean, as other exporters write it, draws nothing.
    """
    import numpy as np

    sampled = "latent_parameters" in encoder.session.outputs
    # A distribution has a mean and a variance for each channel.
    output, planes = ("latent_parameters", 2 * channels) if sampled else ("latent_sample", channels)
    tiles = _Tiles.over(pixels.shape[-2:], (folder.vae_factor, 1), folder)
    found = tiles.in_strips(encoder, pixels, ("sample", 3), (output, planes))
    if found is None:
        found = _encode_tiles(encoder, pixels, tiles, output, planes)
    latents = draw_latents(found, sources) if sampled else np.repeat(found, len(sources), axis=0)
    if folder.shift_factor:
        latents = latents - folder.shift_factor
    if (statistics := folder.latents_mean_and_std) is None:
        return latents * folder.scaling_factor
    mean, std = (np.array(values, np.float32).reshape(1, -1, 1, 1) for values in statistics)
    scaled: Array = (latents - mean) * folder.scaling_factor / std
    return scaled


def draw_latents(distribution: Array, sources: Sequence[Noise]) -> Array:
    """Draw a sample for each of the sources, as diffusers' `DiagonalGaussianDistribution` does.

    That class is imported with all VAEs of diffusers, which takes longer than a small picture.

    Args:
        distribution: means and logarithms of variances, of shape (1, 2 * channels, height, width).
        sources: noise of each picture.
    """
    import numpy as np

    mean, logarithm = np.split(distribution, 2, axis=1)
    deviation = np.exp(0.5 * logarithm.clip(-30.0, 20.0), dtype=np.float64).astype(np.float32)
    drawn: Array = mean + deviation * np.stack([source.draw(mean.shape[1:]) for source in sources])
    return drawn


def _encode_tiles(encoder: Network, pixels: Array, tiles: _Tiles, output: str, planes: int) -> Array:
    (height, width), (rows, columns) = tiles.given, tiles.made
    call = encoder.prepare({"sample": (1, 3, height, width)}, {output: (1, planes, rows, columns)})

    def encode(part: Array) -> Array:
        call.inputs["sample"][...] = part
        call.run()
        return call.outputs[output].astype("float32")

    return tiles.join(pixels, planes, encode)


def decode_latents(latents: Array, decoder: Network, folder: PipelineFolder, *, singly: bool = False) -> Array:
    """Decode latents of shape (pictures, channels, height, width).

    Returns pixels of shape (pictures, 3, height, width), about [-1, 1], float32.

    Args:
        latents: scaled as the denoiser has them.
        singly: one picture at a time, in buffers for one.
    """
    with decoder.turn:  # A preview may be decoded beside it.
        return _decoded(latents, decoder, folder, singly=singly)


def _decoded(latents: Array, decoder: Network, folder: PipelineFolder, *, singly: bool) -> Array:
    import numpy as np

    unscaled: Array
    if (statistics := folder.latents_mean_and_std) is None:
        unscaled = latents / folder.scaling_factor
    else:
        mean, std = (np.array(values, np.float32).reshape(1, -1, 1, 1) for values in statistics)
        unscaled = latents * std / folder.scaling_factor + mean
    if folder.shift_factor:
        unscaled = unscaled + folder.shift_factor
    pictures, channels, height, width = latents.shape
    tiles = _Tiles.over((height, width), (1, folder.vae_factor), folder)
    decoded = tiles.in_strips(decoder, unscaled, ("latent_sample", channels), ("sample", 3))
    if decoded is not None:
        return decoded
    at_once = 1 if singly else pictures
    call = decoder.prepare({"latent_sample": (at_once, channels, *tiles.given)}, {"sample": (at_once, 3, *tiles.made)})

    def decode(part: Array) -> Array:
        call.inputs["latent_sample"][...] = part
        call.run()
        return call.outputs["sample"]

    decoded = np.empty((pictures, 3, height * folder.vae_factor, width * folder.vae_factor), np.float32)
    for first in range(0, pictures, at_once):
        some = slice(first, first + at_once)
        tiles.join(unscaled[some], 3, decode, decoded[some])
    return decoded


@dataclass(frozen=True)
class _Tiles:
    """Parts of one size that cover a picture and overlap by a quarter; one part, if it is no larger."""

    corners: tuple[tuple[int, int], ...]
    """First row and column of each part, in latents."""
    size: tuple[int, int]
    """Height and width of each, in latents."""
    scales: tuple[int, int]
    """Pixels or latents per latent, of what the VAE takes and of what it makes."""

    @classmethod
    def over(cls, sides: Sequence[int], scales: tuple[int, int], folder: PipelineFolder) -> _Tiles:
        """Return the parts of what the VAE takes, of this height and width."""
        latents = [side // scales[0] for side in sides]
        size = [min(side, folder.vae_tile or side) for side in latents]
        starts = [_starts(side, part) for side, part in zip(latents, size, strict=True)]
        return cls(tuple((row, column) for row in starts[0] for column in starts[1]), (size[0], size[1]), scales)

    @property
    def given(self) -> tuple[int, int]:
        """Height and width of what the VAE takes at once."""
        return self.size[0] * self.scales[0], self.size[1] * self.scales[0]

    @property
    def made(self) -> tuple[int, int]:
        """Height and width of what it makes of that."""
        return self.size[0] * self.scales[1], self.size[1] * self.scales[1]

    def in_strips(self, network: Network, whole: Array, taken: tuple[str, int], made: tuple[str, int]) -> Array | None:
        """Return what a network makes of pictures that are larger than a part, as if it took them whole.

        `None` if they are no larger, or the network can't be cut for that. `taken` and `made` are name and channels of
        what it takes and makes.
        """
        if len(self.corners) == 1 or network.session.opened is None:
            return None
        import numpy as np

        from olivelike.runtime.pipeline.strips import CutError, find_cut, run_in_strips

        opened, (height, width) = network.session.opened, whole.shape[-2:]
        try:
            cut = find_cut(opened.path, taken, made, (height, width), opened.initializers)
        except CutError:
            return None
        sides = (side // self.scales[0] * self.scales[1] for side in (height, width))
        joined = np.empty((len(whole), made[1], *sides), np.float32)
        for number in range(len(whole)):
            run_in_strips(network, cut, whole[number : number + 1], joined[number : number + 1])
        return joined

    def join(self, whole: Array, channels: int, run: Callable[[Array], Array], into: Array | None = None) -> Array:
        """Return what `run` makes of each part, in one; where parts overlap, one fades into the other."""
        import numpy as np

        if len(self.corners) == 1:
            if into is None:
                return run(whole)
            into[...] = run(whole)
            return into
        (given, made), (height, width) = self.scales, whole.shape[-2:]
        across = (len(whole), channels, height // given * made, width // given * made)
        joined = np.empty(across, np.float32) if into is None else into
        joined.fill(0)
        weights = np.zeros(across[-2:], np.float32)
        fade = np.outer(*(_fade(side) for side in self.made))
        for row, column in self.corners:
            taken, placed = (
                (..., slice(row * scale, row * scale + part[0]), slice(column * scale, column * scale + part[1]))
                for scale, part in ((given, self.given), (made, self.made))
            )
            joined[placed] += run(whole[taken]) * fade
            weights[placed[1:]] += fade
        joined /= weights
        return joined


def _starts(side: int, part: int) -> list[int]:
    """Return where parts begin that cover a side and overlap by at least a quarter."""
    count = 1 if side == part else -(-(side - part // 4) // (part - part // 4))
    return [round(number * (side - part) / max(count - 1, 1)) for number in range(count)]


def _fade(side: int) -> Array:
    """Return weights of a part: where it overlaps another, they rise in the middle of the overlap.

    The outermost pixels are those that know least of what is beside them; the picture's own edges have no other.
    """
    import numpy as np

    place = np.arange(side, dtype=np.float32) + 0.5
    faded: Array = ((np.minimum(place, side - place) - side / 16) / (side / 8)).clip(1e-6, 1.0)
    return faded


def apart(latents: Array, side: int) -> Array:
    """Return latents with those of a square, `side` along each side, beside each other and no longer as channels."""
    pictures, _, height, width = latents.shape
    squares = latents.reshape(pictures, -1, side, side, height, width).transpose(0, 1, 4, 2, 5, 3)
    return squares.reshape(pictures, -1, height * side, width * side)


def to_images(pixels: Array, latents: Array, folder: PipelineFolder) -> list[Image]:
    """Return pixels of shape (pictures, 3, height, width), in [-1, 1], as 8-bit pictures.

    Raises `SessionError` if there are values that are no numbers: it names weights that are none, or the network that
    is the first to make them, by the `latents` that the pixels were made of.
    """
    import numpy as np

    def refusal() -> SessionError:
        from olivelike.runtime.pipeline.not_finite import not_finite_error

        return not_finite_error(folder, from_latents=not bool(np.isfinite(latents).all()))

    shown = pixels * 0.5
    shown += 0.5
    return to_pictures(shown.clip(0, 1, out=shown).transpose(0, 2, 3, 1), refusal)


def to_pixels(image: Image, size: tuple[int, int], folder: PipelineFolder) -> Array:
    """Return a picture as pixels of shape (1, 3, height, width) in [-1, 1], resized as diffusers resizes."""
    return 2 * to_shares(upright(image), size, folder.vae_factor) - 1


@dataclass(frozen=True, eq=False)
class Preview:
    """Look of a step's latents; nothing is computed until it is asked for."""

    latents: Array
    """Finished latents as the scheduler foresees them, or the noisy ones if it does not."""
    decoder: Callable[[], Network]
    """Opens the VAE's decoder."""
    folder: PipelineFolder
    previewer: Callable[[], Network | None] = lambda: None
    """Opens the decoder of a tiny VAE, if there is one."""

    def show(self) -> list[Image]:
        """Return what a tiny VAE decodes, as large as the finished picture, or `rough` where the folder has none."""
        tiny = self.previewer()
        if tiny is None:
            return self.rough()
        folder = self.folder.for_previews() if self.folder.has(PREVIEW) else self.folder
        decoded = decode_latents(self.latents, tiny, replace(folder, vae_tile=None), singly=True)
        return to_images(decoded, self.latents, self.folder)

    def rough(self) -> list[Image]:
        """Return a picture of one pixel per latent, or what the VAE decodes where no colours of latents are known."""
        import numpy as np

        latents, colours = apart(self.latents, latents_in_square(self.folder.vae)), self.folder.colours
        if colours is None or len(colours.factors) != latents.shape[1]:
            return self.decode()
        factors, bias = (np.array(one, np.float32) for one in (colours.factors, colours.bias))
        pixels: Array = np.einsum("bchw,cr->brhw", latents, factors) + bias[:, None, None]
        return to_images(pixels.clip(-1, 1), self.latents, self.folder)

    def decode(self) -> list[Image]:
        """Return what the VAE decodes: as large as the finished picture, and about as long as a step to wait for."""
        decoded = decode_latents(self.latents, self.decoder(), self.folder, singly=True)
        return to_images(decoded, self.latents, self.folder)

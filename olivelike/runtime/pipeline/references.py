"""Pictures that a denoiser is shown beside the text, to edit or join them, as FLUX.2's pipelines prepare them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.runtime.pictures.pixels import seen_size, upright
from olivelike.runtime.pipeline.vae import encode_picture, to_pixels

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.families.denoiser_forms import Array
    from olivelike.runtime.pipeline.latents import BatchState
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request, ResolvedRequest
    from olivelike.runtime.sessions.session import Network

_AREA: Final = 1024 * 1024
"""Pixels of a picture; larger ones are made smaller."""
_LEAST_SIDE, _MOST_ASPECT = 64, 8


def check_references(request: Request, folder: PipelineFolder) -> None:
    """Refuse more pictures than the folder's denoiser is shown, and what is none to work after. Raises `UsageError`."""
    family, count = folder.family, len(request.references)
    if count > family.most_references:
        raise UsageError(f"{count} references are given; {family.title} takes at most {family.most_references}")
    for image in request.references:
        width, height = seen_size(image)
        if min(width, height) < _LEAST_SIDE or max(width, height) > _MOST_ASPECT * min(width, height):
            raise UsageError(
                f"a reference of {width}x{height} pixels is none to work after: sides are at least {_LEAST_SIDE} "
                f"pixels, and one at most {_MOST_ASPECT} times the other"
            )


def within_area(image: Image) -> Image:
    """Return a picture as it is seen, made smaller if it is larger than a megapixel, as diffusers does."""
    from PIL.Image import Resampling

    image, size = upright(image), shown_size(image)
    return image if image.size == size else image.resize(size, Resampling.LANCZOS)


def shown_size(image: Image) -> tuple[int, int]:
    """Return the size in which a picture is shown, but for what is cut off."""
    width, height = seen_size(image)
    share = min(1.0, math.sqrt(_AREA / (width * height)))
    return int(width * share), int(height * share)


def reference_pixels(request: ResolvedRequest, folder: PipelineFolder) -> list[Array]:
    """Return the pictures that the denoiser is shown, each of shape (1, 3, height, width) in [-1, 1]."""
    shown = []
    if request.mask is not None and request.init_image is not None and folder.family.shows_masked:
        shown.append(to_pixels(request.init_image, request.size, folder))
    for reference in request.references:
        image, unit = within_area(reference), folder.size_unit
        width, height = (side // unit * unit for side in image.size)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        shown.append(to_pixels(image.crop((left, top, left + width, top + height)), (width, height), folder))
    return shown


def encode_references(pictures: Sequence[Array], encoder: Network, state: BatchState) -> tuple[Array, ...]:
    """Return the latents of pictures, each of shape (1, channels, height, width)."""
    channels = state.folder.latent_channels or state.folder.family.latents.channels
    return tuple(encode_picture(one, encoder, channels, state.folder, state.sources[:1]) for one in pictures)

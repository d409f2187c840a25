"""Soft and inverted masks, what they show filled, their surroundings alone: what is done to pictures before and after.

As A1111's `modules/processing.py` does with `mask_blur`, `inpainting_mask_invert`, `inpainting_fill` and "inpaint at
full resolution".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.runtime.pictures.pixels import seen_size, upright

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.runtime.pipeline.request import Request, ResolvedRequest

ASPECT_TOLERANCE: Final = 0.02
"""Share by which the shape of a picture may differ from another's."""
Box = tuple[int, int, int, int]
"""Left, top, right and bottom."""
_FILLING: Final = ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1))
"""Radius of each blur of what is around a mask, and how often it is laid over those before: A1111's `masking.fill`."""


@dataclass(frozen=True, eq=False)
class PutBack:
    """Place of a drawn part in its original."""

    original: Image
    """RGB."""
    mask: Image
    """Grey, of its size: how much of what was drawn is seen."""
    box: Box | None
    """Part of the original that was drawn; `None` for all of it."""

    def apply(self, drawn: Image) -> Image:
        """Return the original with what was drawn; without a box, at the size of that."""
        from PIL import Image

        if self.box is None:
            original, mask = (one.resize(drawn.size, Image.Resampling.LANCZOS) for one in (self.original, self.mask))
            return Image.composite(drawn, original, mask)
        left, top, right, bottom = self.box
        whole = self.original.copy()
        whole.paste(drawn.resize((right - left, bottom - top), Image.Resampling.LANCZOS), (left, top))
        return Image.composite(whole, self.original, self.mask)


def check_mask(request: Request) -> None:
    """Check a mask against the picture that it is of. Raises `UsageError`."""
    image, mask = request.init_image, request.mask
    if mask is None:
        return
    if image is None:
        raise UsageError("a mask is given without an initial picture to paint in; give one, or drop the mask")
    (width, height), (across, down) = seen_size(image), seen_size(mask)
    if abs(width / height * down / across - 1) > ASPECT_TOLERANCE:
        raise UsageError(
            f"the mask's size {across}x{down} has another shape than the initial picture's {width}x{height}; "
            "crop one of them"
        )


def part_of_picture(request: ResolvedRequest) -> tuple[ResolvedRequest, PutBack | None]:
    """Return what is drawn of a request, and what puts it back; `None` if pictures stay as they are drawn.

    Raises `UsageError` if an area is asked for and nothing is masked.
    """
    image, mask = request.init_image, request.mask
    if image is None or mask is None:
        return request, None
    if request.mask_mode == "not masked":
        from PIL import ImageOps

        mask = ImageOps.invert(upright(mask).convert("L"))
        request = replace(request, mask=mask)
    if request.inpaint_area == "whole":
        return request, None if request.mask_blur is None else _soften(image, mask, request.mask_blur)
    area = _around_mask(image, mask, blur=request.mask_blur or 0, padding=request.inpaint_padding, size=request.size)
    assert area.box is not None
    return replace(request, init_image=area.original.crop(area.box), mask=area.mask.crop(area.box)), area


def with_masked_content(drawn: ResolvedRequest, put_back: PutBack | None) -> ResolvedRequest:
    """Return what is drawn with its masked part filled, unless it begins as the original; `part_of_picture` gave both.

    Latents of noise and of nothing take the place of what was filled, as in A1111.
    """
    from PIL.Image import Resampling

    if drawn.masked_content == "original" or drawn.init_image is None or drawn.mask is None:
        return drawn
    soft = drawn.mask if put_back is None or put_back.box else put_back.mask
    image, mask = (upright(one).resize(drawn.size, Resampling.LANCZOS) for one in (drawn.init_image, soft))
    return replace(drawn, init_image=filled(image, mask.convert("L")))


def filled(image: Image, mask: Image) -> Image:
    """Return a picture, in RGB, with blurs of what a grey mask of its size leaves over what the mask shows.

    Blurs weigh each pixel by how little of it is masked: they are of premultiplied colours. All masked is black.
    """
    from PIL import Image, ImageFilter, ImageOps

    around = image.convert("RGBA")
    around.putalpha(ImageOps.invert(mask))
    around = around.convert("RGBa")
    whole = Image.new("RGBA", image.size)
    for radius, times in _FILLING:
        blurred = around.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            whole.alpha_composite(blurred)
    return whole.convert("RGB")


def _soften(image: Image, mask: Image, blur: int) -> PutBack:
    """Return what puts a drawing behind a soft mask; `blur` is in pixels of the picture."""
    from PIL import ImageFilter

    original = upright(image)
    mask = upright(mask).convert("L").resize(original.size)
    return PutBack(original, mask.filter(ImageFilter.GaussianBlur(blur)) if blur else mask, None)


def _around_mask(image: Image, mask: Image, *, blur: int, padding: int, size: tuple[int, int]) -> PutBack:
    """Return what puts the surroundings of a mask back that were drawn at a size.

    Raises `UsageError` if nothing is masked.
    """
    soft = _soften(image, mask, blur)
    found = soft.mask.getbbox()
    if found is None:
        raise UsageError(
            "the mask is black all over, or white with mask_mode not masked, so that there is nothing to paint; paint "
            "white what is to change, or black what is not"
        )
    return PutBack(soft.original, soft.mask, _surroundings(found, soft.original.size, padding, size))


def _surroundings(box: Box, whole: tuple[int, int], padding: int, size: tuple[int, int]) -> Box:
    """Return a box with some room around it, in the shape of a size as far as the picture allows."""
    left, top = max(box[0] - padding, 0), max(box[1] - padding, 0)
    right, bottom = min(box[2] + padding, whole[0]), min(box[3] + padding, whole[1])
    shape = size[0] / size[1]
    if (right - left) / (bottom - top) < shape:
        left, right = _widened(left, right, round((bottom - top) * shape), whole[0])
    else:
        top, bottom = _widened(top, bottom, round((right - left) / shape), whole[1])
    return left, top, right, bottom


def _widened(first: int, last: int, length: int, most: int) -> tuple[int, int]:
    length = min(length, most)
    first = min(max(first - (length - (last - first)) // 2, 0), most - length)
    return first, first + length

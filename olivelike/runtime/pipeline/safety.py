"""The safety checker: each picture through CLIP's vision tower, near which concepts it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import read_json
from olivelike.errors import SourceError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from olivelike.runtime.sessions.session import Network

_FLAGS: Final = "has_nsfw_concepts"
_LARGEST_SIDE: Final = 4096
"""Pixels that a picture is scaled or cropped to; CLIP's have 224 or 336."""


@dataclass(frozen=True)
class Preprocessing:
    """Steps of transformers' `CLIPImageProcessor` on a picture, in its order and with its rounding.

    Written out here because its import takes longer than the demo model needs for a picture.
    """

    resize: int | tuple[int, int] | None
    """Length of the shorter side, or height and width."""
    crop: tuple[int, int] | None
    """Height and width around the centre."""
    resample: int
    rescale: float | None
    mean_and_std: tuple[Sequence[float], Sequence[float]] | None

    def pixels(self, image: Image) -> np.ndarray[Any, Any]:
        """Return a picture as CLIP sees it: float32 of shape (1, 3, height, width)."""
        import numpy as np

        image = image.convert("RGB")
        if self.resize is not None:
            image = image.resize(_new_size(image, self.resize), self.resample)
        if self.crop is not None:
            height, width = self.crop
            top, left = (image.height - height) // 2, (image.width - width) // 2
            image = image.crop((left, top, left + width, top + height))
        values = np.asarray(image)
        if self.rescale is not None:
            values = (values.astype(np.float64) * self.rescale).astype(np.float32)
        if self.mean_and_std is not None:
            mean, std = (np.array(numbers, np.float32) for numbers in self.mean_and_std)
            values = (values.astype(np.float32) - mean) / std
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None], np.float32)


def read_preprocessing(path: Path) -> Preprocessing:
    """Read a `preprocessor_config.json`. Raises `SourceError` if it can't be read, or is of another kind."""
    try:
        config = read_json(path)
        return Preprocessing(
            resize=_edge(config["size"]) if config.get("do_resize", True) else None,
            crop=_pair(config["crop_size"]) if config.get("do_center_crop", True) else None,
            resample=int(config.get("resample", 3)),
            rescale=float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else None,
            mean_and_std=(config["image_mean"], config["image_std"]) if config.get("do_normalize", True) else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{path}: can't be read as the settings of CLIP's image processor: {error!r}; the safety checker needs it: "
            "make the folder again, or switch the checker off"
        ) from error


class SafetyCheck:
    """The checker of a pipeline."""

    def __init__(self, network: Network, preprocessing: Preprocessing) -> None:
        self._network = network
        self._preprocessing = preprocessing

    def flags(self, images: Sequence[Image]) -> list[bool]:
        """Say of each picture whether it is flagged.

        One at a time: older exports of the checker are traced with a batch of one.
        """
        return [self._flag(image) for image in images]

    def _flag(self, image: Image) -> bool:
        seen = self._preprocessing.pixels(image)
        # `images` is what the checker would blacken; a pixel will do, since that output is not asked for.
        shapes = {"clip_input": seen.shape, "images": (1, 1, 1, 3)}
        call = self._network.prepare(shapes, {_FLAGS: (1,)})
        call.inputs["clip_input"][...] = seen
        call.inputs["images"].fill(0)
        call.run()
        return bool(call.outputs[_FLAGS].item())


def black(image: Image) -> Image:
    """Return a black picture of the same size."""
    return image.point(lambda _: 0)


def _new_size(image: Image, wanted: int | tuple[int, int]) -> tuple[int, int]:
    """Return width and height."""
    if not isinstance(wanted, int):
        return wanted[1], wanted[0]
    if image.width <= image.height:
        return wanted, int(wanted * image.height / image.width)
    return int(wanted * image.width / image.height), wanted


def _edge(size: int | Mapping[str, int]) -> int | tuple[int, int]:
    if isinstance(size, int):
        return _side(size)
    return _side(size["shortest_edge"]) if "shortest_edge" in size else _pair(size)


def _pair(size: int | Mapping[str, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else (size["height"], size["width"])
    return _side(height), _side(width)


def _side(pixels: int) -> int:
    if not isinstance(pixels, int) or not 0 < pixels <= _LARGEST_SIDE:
        raise ValueError(f"a side of {pixels} pixels, where 1 to {_LARGEST_SIDE} make sense")
    return pixels

"""Steps of CLIP's image processor as nodes; `olivelike.runtime.pipeline.safety` does it with Pillow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx_ir as ir

from olivelike._untrusted import JsonView
from olivelike.errors import PassError
from olivelike.graphs.editing.arithmetic import Number

_KINDS: Final = {2: "linear", 3: "cubic"}
"""Pillow's number of a filter → what ONNX calls it."""
_CUBIC: Final = -0.5
"""Pillow's coefficient."""


def clip_pixels(pictures: Number, config: JsonView) -> Number:
    """Return pictures as CLIP sees them: float32 of shape (pictures, 3, height, width).

    Raises `PassError` if it can't be read, or asks for a filter that is neither linear nor cubic.

    Args:
        pictures: uint8 of shape (pictures, height, width, 3).
        config: `preprocessor_config.json`.
    """
    writer = pictures.writer
    seen = pictures.apply("Transpose", perm=[0, 3, 1, 2])
    try:
        if config.get("do_resize", True):
            seen = _resized(seen, config["size"], _KINDS[config.get("resample", 3)])
        if config.get("do_center_crop", True):
            seen = _cropped(seen, *_pair(config["crop_size"]))
        values = seen.cast(ir.DataType.FLOAT)
        if config.get("do_rescale", True):
            values = values * float(config.get("rescale_factor", 1 / 255))
        if config.get("do_normalize", True):
            mean, std = (
                writer.constant(np.reshape(np.array(config[name], np.float32), (1, 3, 1, 1)))
                for name in ("image_mean", "image_std")
            )
            values = (values - mean) / std
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise PassError(
            f"layout single: feature_extractor/preprocessor_config.json asks for what is no node here: {error!r}; "
            "leave safety_checker out of `components`, or take another layout"
        ) from error
    return values


def _resized(seen: Number, wanted: int | Mapping[str, int], kind: str) -> Number:
    """Return pictures whose shorter side, or both sides, have a length; filtered as Pillow does."""
    writer = seen.writer
    edge = wanted if isinstance(wanted, int) else wanted.get("shortest_edge")
    if edge is None:
        size = writer.integers(*_pair(wanted))
    else:
        given = writer.op("Shape", seen, start=2)
        shorter = given.apply("ReduceMin", keepdims=1)
        size = writer.integers(edge) * given / shorter
    sizes = writer.op("Concat", writer.op("Shape", seen, end=2), size, axis=0)
    # Pillow rounds to 8 bits behind each direction; half a level at most lies between the two.
    floats = writer.op(
        "Resize", seen.cast(ir.DataType.FLOAT), None, None, sizes, mode=kind, antialias=1, cubic_coeff_a=_CUBIC,
        coordinate_transformation_mode="half_pixel",
    )  # fmt: skip
    return writer.op("Clip", floats.apply("Round"), writer.constant(0.0), writer.constant(255.0))


def _cropped(seen: Number, height: int, width: int) -> Number:
    """Return the middle."""
    writer = seen.writer
    sides = writer.integers(height, width)
    begin = (writer.op("Shape", seen, start=2) - sides) / writer.integers(2)
    return writer.op("Slice", seen, begin, begin + sides, writer.integers(2, 3))


def _pair(size: int | Mapping[str, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size["height"], size["width"])

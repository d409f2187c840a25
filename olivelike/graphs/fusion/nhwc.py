"""Image layouts: NCHW and NHWC, the permutations between them, and one value per channel in either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.graphs.editing.values import Dims, constant_array, producer, rank_of, required

if TYPE_CHECKING:
    import onnx_ir as ir

TO_NHWC = (0, 2, 3, 1)
TO_NCHW = (0, 3, 1, 2)


def to_nhwc_dims(dims: Dims) -> Dims:
    """Return the shape in NHWC of an image of this NCHW shape."""
    return tuple(dims[axis] for axis in TO_NHWC)


def per_channel(value: ir.Value) -> ir.Value | None:
    """Return the (N, C) value that is unsqueezed to (N, C, 1, 1)."""
    unsqueeze = producer(value, "Unsqueeze")
    if unsqueeze is None:
        return None
    axes = constant_array(unsqueeze.inputs[1])
    source = required(unsqueeze, 0)
    spatial = axes is not None and sorted(int(axis) % 4 for axis in axes.reshape(-1)) == [2, 3]
    return source if spatial and rank_of(source) == 2 else None

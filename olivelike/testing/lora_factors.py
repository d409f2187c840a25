"""The factors of each kind of LoRA, as shapes, for a weight of a given shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Shape = tuple[int, ...]


def factor_shapes(kind: str, weight: Shape, rank: int, *, core: bool = False) -> dict[str, Shape]:
    """Return role → shape: `down`, `up`, `mid`, or the names of LyCORIS.

    Args:
        kind: `lora`, `loha` or `lokr`.
        weight: (out, in) or (out, in, height, width).
        rank: of the factors.
        core: whether the kernel of a convolution is a factor of its own.
    """
    out, width, kernel = weight[0], weight[1], weight[2:]
    has_core = core and math.prod(kernel) > 1
    match kind:
        case "lora" if has_core:
            return {"down": (rank, width, 1, 1), "mid": (rank, rank, *kernel), "up": (out, rank, 1, 1)}
        case "lora":
            return {"down": (rank, width, *kernel), "up": (out, rank, *([1] * len(kernel)))}
        case "loha" if has_core:
            pairs = {f"hada_t{i}": (rank, rank, *kernel) for i in (1, 2)}
            return pairs | {
                f"hada_w{i}_{side}": (rank, size) for i in (1, 2) for side, size in (("a", out), ("b", width))
            }
        case "loha":
            columns = width * math.prod(kernel)
            sides: Mapping[str, Shape] = {"a": (out, rank), "b": (rank, columns)}
            return {f"hada_w{i}_{side}": shape for i in (1, 2) for side, shape in sides.items()}
    return _lokr(weight, rank, has_core=has_core)


def _lokr(weight: Shape, rank: int, *, has_core: bool) -> dict[str, Shape]:
    """Return Kronecker factors: the small one whole, the large one in parts if the rank is low enough."""
    (small_out, large_out), (small_in, large_in) = _split(weight[0]), _split(weight[1])
    kernel = weight[2:]
    shapes: dict[str, Shape] = {"lokr_w1": (small_out, small_in)}
    if rank >= max(large_out, large_in) / 2:
        return shapes | {"lokr_w2": (large_out, large_in, *kernel)}
    if has_core:
        return shapes | {
            "lokr_t2": (rank, rank, *kernel),
            "lokr_w2_a": (rank, large_out),
            "lokr_w2_b": (rank, large_in),
        }
    return shapes | {"lokr_w2_a": (large_out, rank), "lokr_w2_b": (rank, large_in * math.prod(kernel))}


def _split(size: int) -> tuple[int, int]:
    """Return the two divisors nearest to each other, the smaller first."""
    small = next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
    return small, size // small

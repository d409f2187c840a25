"""Seeded random inputs of a component."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from olivelike.graphs.interface.component_interface import Input
    from olivelike.model.architecture import Config

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """The sizes of one comparison, in what the component takes: latent cells, or pixels."""

    batch: int
    height: int
    width: int
    sequence: int = 77

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.height}x{self.width}, sequence {self.sequence}"


CASES = (Case(1, 16, 40, 50), Case(3, 24, 8, 9))
"""None is square, and none has height and width, or sequence, that `convert` traces with."""


def random_inputs(inputs: Sequence[Input], case: Case, config: Config, seed: int) -> dict[str, Array]:
    """Return seeded inputs: normal values, token ids, a whole timestep.

    Args:
        inputs: Those of the component's interface.
        case: Sizes of the dynamic dimensions; one timestep serves the whole batch.
        config: The network's, for the number of its tokens.
        seed: Equal seeds give equal inputs.

    Returns:
        Arrays by name: int32 for token ids, else float32.
    """
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in inputs:
        pairs = zip(value.dims, value.example, strict=True)
        shape = tuple(size if dim is None else _size(dim, case) for dim, size in pairs)
        if value.dtype == "int32":
            feeds[value.name] = random.integers(0, config["vocab_size"], shape, dtype=np.int32)
        elif value.name == "timestep":
            feeds[value.name] = random.integers(1, 1000, shape).astype(np.float32)
        else:
            feeds[value.name] = random.standard_normal(shape, dtype=np.float32)
    return feeds


def _size(dim: str, case: Case) -> int:
    if dim == "unet_time_batch":
        return 1
    size: int = getattr(case, dim.rpartition("_")[2])
    return size

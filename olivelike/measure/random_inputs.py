"""Seeded random inputs of any network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from olivelike.graphs.interface.component_interface import Input
    from olivelike.model.architecture import Config

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Case:
    """The sizes of dynamic dimensions, in what a network takes: latent cells, or pixels."""

    batch: int
    height: int
    width: int
    sequence: int = 77

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.height}x{self.width}, sequence {self.sequence}"

    def size(self, value: str, dim: str) -> int | None:
        """Return the size of a dimension whose name says what it is; `None` if it does not.

        Args:
            value: The input; one timestep serves the whole batch.
            dim: Name of its dimension.
        """
        if value == "timestep":
            return 1
        return next((size for word, size in vars(self).items() if word in dim.lower()), None)


CASES = (Case(1, 16, 40, 50), Case(3, 24, 8, 9))
"""None is square, and none has height and width, or sequence, that `convert` traces with."""


def random_inputs(inputs: Sequence[Input], case: Case, config: Config, seed: int) -> dict[str, Array]:
    """Return seeded inputs of a component.

    Args:
        inputs: Those of the component's interface.
        case: Sizes of the dynamic dimensions.
        config: The network's, for the number of its tokens.
        seed: Equal seeds give equal inputs.

    Returns:
        Arrays by name: int32 for token ids, else float32.
    """
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for value in inputs:
        pairs = zip(value.dims, value.example, strict=True)
        sizes = [size if dim is None else case.size(value.name, dim) for dim, size in pairs]
        shapes[value.name] = value.dtype, tuple(size for size in sizes if size is not None)
    return random_values(shapes, config.get("vocab_size", 0), seed)


def random_values(inputs: Mapping[str, tuple[str, tuple[int, ...]]], tokens: int, seed: int = 0) -> dict[str, Array]:
    """Return seeded values of the kinds that networks are used to: noise, token ids, a whole timestep.

    Args:
        inputs: NumPy dtype and shape of each, by name.
        tokens: Ids are below this number.
        seed: Equal seeds give equal values.
    """
    random = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for name, (text, shape) in inputs.items():
        dtype = np.dtype(text)
        if name == "timestep":
            values[name] = random.integers(1, 1000, shape).astype(dtype)
        elif dtype.kind in "iu":
            values[name] = random.integers(0, tokens, shape, dtype=dtype.type)
        elif dtype.kind == "b":
            values[name] = random.integers(0, 2, shape).astype(dtype)
        else:
            values[name] = random.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)
    return values

"""Models as values: architecture, weights and graph, each a facet with its own digest."""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.model.architecture import Architecture
    from olivelike.model.graph import (
        BARRIERS,
        BLOCK_KEY,
        PARAMETER_KEY,
        Graph,
        block_of,
        parameter_inputs,
        real_inputs,
        weight_values,
    )
    from olivelike.model.model import FACETS, Model
    from olivelike.model.weights import Tensor, Weights

__all__ = [
    "BARRIERS", "BLOCK_KEY", "FACETS", "PARAMETER_KEY", "Architecture", "Graph", "Model", "Tensor", "Weights",
    "block_of", "parameter_inputs", "real_inputs", "weight_values",
]  # fmt: skip

__getattr__ = names_from(__name__, __file__)

"""Models as values: architecture, weights and graph, each a facet with its own digest."""

from olivelike.model.architecture import Architecture
from olivelike.model.graph import Graph
from olivelike.model.model import FACETS, Model
from olivelike.model.weights import Tensor, Weights

__all__ = ["FACETS", "Architecture", "Graph", "Model", "Tensor", "Weights"]

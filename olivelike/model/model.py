"""The value that passes take and return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, overload

from olivelike.errors import PassError
from olivelike.model.architecture import Architecture
from olivelike.model.graph import Graph
from olivelike.model.weights import Weights

FACETS: Final[Mapping[str, type[Architecture | Weights | Graph]]] = {
    "architecture": Architecture,
    "weights": Weights,
    "graph": Graph,
}
"""Each facet's name and class; a facet has `digest`, `to_bytes()` and `from_bytes()`."""


@dataclass(frozen=True)
class Model:
    """One component of a pipeline: up to three facets, each with its own digest."""

    component: str
    architecture: Architecture | None = None
    weights: Weights | None = None
    graph: Graph | None = None

    @overload
    def require(self, facet: Literal["architecture"]) -> Architecture: ...
    @overload
    def require(self, facet: Literal["weights"]) -> Weights: ...
    @overload
    def require(self, facet: Literal["graph"]) -> Graph: ...
    def require(self, facet: str) -> Architecture | Weights | Graph:
        """Return a facet that a pass can't do without.

        Raises `PassError` if the model does not have it; the pass's own name comes before the message in logs and
        records.
        """
        found: Architecture | Weights | Graph | None = getattr(self, facet)
        if found is None:
            raise PassError(
                f"the {facet} of {self.component or 'the model'} is needed and not there; add {facet!r} to the pass's "
                f"`reads`, and a step that makes it before this one, such as `convert` for a graph"
            )
        return found

    def replace(self, **facets: Any) -> Self:
        """Return a model with the given facets in place of this one's."""
        return replace(self, **facets)

    def digests(self) -> dict[str, str]:
        """Return the digest of each facet that is present, by facet name."""
        present = {name: getattr(self, name) for name in FACETS}
        return {name: facet.digest for name, facet in present.items() if facet is not None}

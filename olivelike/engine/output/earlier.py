"""Results of an earlier run for one graph: initializers that lie in the output already are copied, not derived anew.

So another LoRA derives what it changes, or what the last one changed, and another checkpoint of which most is the same
derives the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.engine.output.derivation import Expression, parameters

if TYPE_CHECKING:
    from olivelike.engine.output.initializers import Array, Initializers
    from olivelike.model import Weights


@dataclass(frozen=True)
class Earlier:
    """A component as an earlier run wrote it, with the same code."""

    initializers: Initializers
    weights: Weights
    """Weights of which it was made."""
    derivations: Mapping[str, Expression]
    """Per initializer, as `Materialized` has them."""
    lost: Mapping[str, Mapping[str, int]]
    """Number of values of each initializer that were lost, by kind, as `Materialized` has them."""

    def has(self, name: str, expression: Expression, weights: Weights) -> bool:
        """Tell whether an initializer holds what an expression makes of these weights."""
        return self.derivations.get(name) == expression and all(
            self.weights.get(parameter) == weights[parameter] for parameter, _ in parameters(expression)
        )

    def read(self, name: str) -> tuple[Array, dict[str, int]]:
        """Return an initializer's values, and how many of them were lost, by kind."""
        return self.initializers.read(name), {kind: counts.get(name, 0) for kind, counts in self.lost.items()}

"""Which blocks of a network must stay in float for computing in 8 bits to be right."""

from __future__ import annotations

from typing import Any

from olivelike.errors import VerificationError
from olivelike.measure.verify.half_search import HalfSearch, alone, minimal_subset
from olivelike.model.graph import block_of


class RoundingSearch(HalfSearch):
    """Trials of one network with all but some blocks in 8 bits; what is remembered of one is not tried again."""

    precision, step = "int8", "int8"

    def _search(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Rank blocks by what each one costs alone, and leave the fewest in float, the dearest first.

        Raises `VerificationError` when nothing could be in 8 bits.
        """
        rounded = [node for node in self._convert(()).graph if node.op_type == "QuantizeLinear"]
        blocks = dict.fromkeys(block for node in rounded if (block := block_of(node)) is not None)
        patterns = [alone(block, blocks) for block in blocks]
        costs = {one: self._cost(tuple(other for other in patterns if other != one)) for one in patterns}
        ranked = sorted(patterns, key=lambda one: -costs[one])
        chosen = minimal_subset(ranked, self._is_right)
        if chosen is None or len(chosen) == len(ranked):
            nearest = min(costs, key=lambda one: costs[one], default="")
            raise VerificationError(
                f"{self._architecture.component}: with any block in 8 bits further from torch than {self._limit:.1e}; "
                f"nearest is {nearest.lstrip('=')} alone, with {costs.get(nearest, 0):.1e}, and all of them have "
                f"{self._cost(()):.1e}: raise max_relative_error, or leave `int8` out of this chain"
            )
        return chosen, {"errors_alone": {one: costs[one] for one in chosen}}

    def _cost(self, blocks: tuple[str, ...]) -> float:
        error = self._try(blocks)["relative_error"]
        return float("inf") if error is None else float(error)

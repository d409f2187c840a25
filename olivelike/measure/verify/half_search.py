"""Search for the blocks of a network that must stay in float32 for half precision to be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from olivelike.engine.output.derivation import is_float
from olivelike.errors import VerificationError
from olivelike.measure.verify.evaluation import Evaluation
from olivelike.measure.verify.original import Original, parameter_reader
from olivelike.model import Graph
from olivelike.model.graph import block_of
from olivelike.model.half_values import HALF_MAX

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.model import Model
    from olivelike.pass_api import Context

    Array = np.ndarray[Any, Any]
    Convert = Callable[[tuple[str, ...]], ir.Model]
    """Returns the graph in half precision, with some blocks in float32."""

_SINGLE = 4
"""Bytes of a float32; smaller types are widened, since NumPy finds no maximum of those that it does not know."""
_EVERYTHING = ("*",)
"""The pattern of all blocks, and of what lies between them."""


class HalfSearch:
    """Trials of one network in half precision; what is remembered of one is not tried again.

    Torch has the weights of the same place: what earlier passes did to them is not what half precision costs.
    """

    precision, step = "fp16", "float16"
    """Precision that is tried, and the step that does it; other searches have others."""

    def __init__(
        self, model: Model, context: Context, convert: Convert, *, limit: float, samples: int, seed: int
    ) -> None:
        """Set up a search.

        Args:
            model: With architecture, weights, and the graph in float32.
            limit: Largest relative error against torch that is right.
            samples: Number of random inputs of a trial.
            seed: Of the first of them.
        """
        self._architecture, self._weights = model.require("architecture"), model.require("weights")
        self._graph = model.require("graph")
        self._context, self._convert = context, convert
        self._limit, self._samples, self._seed = limit, samples, seed
        self._read = parameter_reader(self._weights, context.tensors)
        self._original_outputs: Original | None = None
        self._tried: dict[tuple[str, ...], Json] = {}

    def run(self) -> tuple[tuple[str, ...], Json]:
        """Find the fewest blocks that must stay in float32.

        Raises `VerificationError` when no choice of blocks is enough.

        Returns:
            The blocks, as `force_fp32_blocks` takes them, and what the run record should hold.
        """
        blocks: tuple[str, ...] = ()
        facts: Json = {}
        if not self._is_right(()):
            if not self._is_right(_EVERYTHING):
                figures = _described(self._try(_EVERYTHING))
                raise VerificationError(
                    f"{self._architecture.component}: further from torch than {self._limit:.1e} before "
                    f"{self.step} already ({figures}); find the step that is wrong with `verify` behind each, or raise "
                    "max_relative_error"
                )
            blocks, found = self._search()
            facts |= found
            facts["without"] = self._try(())
        trials = len(self._tried)
        return blocks, {"kept_fp32_blocks": list(blocks), **self._try(blocks), **facts, "trials": trials}

    def _search(self) -> tuple[tuple[str, ...], Json]:
        """Return the blocks that must stay in float32, and why these were tried first."""
        largest = self._reach()
        reach = {alone(block, largest): value for block, value in largest.items()}
        # Overflow is the usual reason, so the blocks that reach furthest are the likely ones.
        ranked = sorted(reach, key=lambda block: -reach[block])
        blocks = minimal_subset(ranked, self._is_right)
        if blocks is not None:
            return blocks, {"largest_values": {block: reach[block] for block in blocks}}
        high = ", ".join(f"{block} ({reach[block]:.2g})" for block in ranked[:3] if reach[block] > HALF_MAX)
        raise VerificationError(
            f"{self._architecture.component}: in float16, further from torch than {self._limit:.1e} with every block "
            f"in float32, for what lies between the blocks ({high or 'no value is beyond float16'}); "
            "leave `float16` out of this chain"
        )

    def _is_right(self, blocks: tuple[str, ...]) -> bool:
        found = self._try(blocks)
        error = found["relative_error"]
        return not found["nan"] and not found["inf"] and error is not None and error <= self._limit

    def _try(self, blocks: tuple[str, ...]) -> Json:
        """Return the figures of the network with these blocks in float32 and all else in half precision."""
        key = tuple(sorted(blocks))
        if key not in self._tried:
            graph = self._convert(key)

            def compare() -> Json:
                evaluation = Evaluation(graph, parameter=self._read)
                found = self._original().compare(evaluation, self.precision).to_json()
                return {name: found[name] for name in ("relative_error", "worst", "cosine", "nan", "inf")}

            self._tried[key] = self._remembered("trial/1", Graph.from_ir(graph), compare)
            names = ", ".join(key) or "no block"
            self._context.logger.info("%s in float32: %s", names, _described(self._tried[key]))
        return self._tried[key]

    def _reach(self) -> dict[str, float]:
        """Return the largest absolute value in each block of the float32 graph."""
        graph = self._graph

        def watch() -> Json:
            peaks = PeakMagnitude()
            self._original().watch(Evaluation(graph.to_ir(), parameter=self._read), peaks.observe)
            return peaks.largest

        return self._remembered("reach/1", graph, watch)

    def _remembered(self, kind: str, graph: Graph, find: Callable[[], Json]) -> Json:
        digests = [self._architecture.digest, self._weights.digest, graph.digest]
        return self._recalled([kind, *digests, self._samples, self._seed], find)

    def _recalled(self, question: list[Any], find: Callable[[], Json]) -> Json:
        known: Json | None = self._context.cache.get(question)
        if known is None:
            known = find()
            self._context.cache.put(question, known)
        return known

    def _original(self) -> Original:
        """Return what torch makes of the inputs; not computed where every trial is remembered."""
        if self._original_outputs is None:
            self._original_outputs = Original(self._architecture, self._read, samples=self._samples, seed=self._seed)
        return self._original_outputs


def alone(block: str, blocks: Iterable[str]) -> str:
    """Return the pattern for a block that does not mean those inside it."""
    return f"={block}" if any(other.startswith(f"{block}.") for other in blocks) else block


def _described(figures: Json) -> str:
    bad = [f"{figures[kind]} {name}" for kind, name in (("nan", "NaN"), ("inf", "Inf")) if figures[kind]]
    return " and ".join(bad) or f"relative error {figures['relative_error']:.1e}"


class PeakMagnitude:
    """Notes the largest absolute value that each block takes or gives, parameters included."""

    def __init__(self) -> None:
        self.largest: dict[str, float] = {}
        """By block, in the order of the graph."""

    def observe(self, node: ir.Node, operands: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        """Look at one operator; values that are not finite, as in a mask, do not count."""
        block = block_of(node)
        if block is None:
            return
        values = [_largest(array) for array in (*operands, *outputs) if array is not None]
        self.largest[block] = max(self.largest.get(block, 0.0), *values)


def _largest(array: Array) -> float:
    if not is_float(ir.DataType.from_numpy(array.dtype)) or not array.size:
        return 0.0
    size = np.abs(array.astype(np.float32, copy=False) if array.dtype.itemsize < _SINGLE else array)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))


def minimal_subset(candidates: Sequence[str], enough: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...] | None:
    """Return a smallest set that is enough: take one member away, and it is not.

    Each round finds the shortest beginning of the list that is enough together with what is already chosen; its last
    member can't be left out. With k members needed of n, that is about k · log2(n) trials.

    Args:
        candidates: The list, likely members first.
        enough: The condition; a set that holds another one that is enough should be enough too.

    Returns:
        The set; `None` if not even all candidates are enough.
    """
    chosen: tuple[str, ...] = ()
    rest = list(candidates)
    if enough(chosen):
        return chosen
    known = False
    while rest:
        length = _shortest(rest, chosen, enough, known=known)
        if length is None:
            return None
        chosen, rest, known = (*chosen, rest[length - 1]), rest[: length - 1], True
        if enough(chosen):
            return chosen
    return None


def _shortest(
    rest: Sequence[str], chosen: tuple[str, ...], enough: Callable[[tuple[str, ...]], bool], *, known: bool
) -> int | None:
    """Return the length of the shortest beginning of `rest` that is enough with `chosen`.

    With `known`, all of `rest` is known to be enough. Likely members come first, so lengths are doubled before halved.
    """
    low, high = 0, 1
    while not ((known and high >= len(rest)) or enough((*chosen, *rest[:high]))):
        if high >= len(rest):
            return None
        low, high = high, min(2 * high, len(rest))
    high = min(high, len(rest))
    while high - low > 1:
        middle = (low + high) // 2
        if enough((*chosen, *rest[:middle])):
            high = middle
        else:
            low = middle
    return high

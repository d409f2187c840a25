"""Search for the fewest blocks of a network that must stay in float32 for fewer bits elsewhere to be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from olivelike.errors import VerificationError
from olivelike.graphs.inspect.quantised import rounded_to
from olivelike.measure.verify.evaluation import Evaluation
from olivelike.measure.verify.original import Original, parameter_reader
from olivelike.model import Graph
from olivelike.model.finite_values import is_float
from olivelike.model.graph import block_of
from olivelike.model.half_values import HALF_MAX

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike._untrusted import Json
    from olivelike.model import Model
    from olivelike.pass_api import Context

    Array = np.ndarray[Any, Any]
    Convert = Callable[[tuple[str, ...]], ir.Model]
    """Returns the graph in fewer bits, with some blocks in float32."""

Held = Literal["outputs", "latents", "pictures"]
"""Result that is held to a limit."""
_SINGLE = 4
"""Bytes of a float32; smaller types are widened, since NumPy finds no maximum of those that it does not know."""
_EVERYTHING = ("*",)
"""The pattern of all blocks, and of what lies between them."""


def fewest_in_float(
    model: Model, context: Context, convert: Convert, *, of: Held, min_psnr: float, **limits: Any
) -> tuple[tuple[str, ...], Json]:
    """Find the fewest blocks that must stay in float for computing in eight bits; `FloatSearch` has the arguments."""
    step = rounded_to(convert(()).graph) or "int8"
    return FloatSearch(model, context, convert, step=step, of=of, min_psnr=min_psnr, **limits).run()


class FloatSearch:
    """Trials of one network with all but some blocks in fewer bits; what is remembered of one is not tried again.

    Torch has the weights of the same place: what earlier passes did to them is not what fewer bits cost.
    """

    def __init__(
        self, model: Model, context: Context, convert: Convert, *, step: str, limit: float, samples: int, seed: int,
        of: Held = "outputs", min_psnr: float = 0.0,
    ) -> None:  # fmt: skip
        """Set up a search.

        Args:
            model: With architecture, weights, and the graph in float32.
            context: With what draws, if that is held to a limit.
            convert: Returns the graph in fewer bits, with some blocks in float.
            step: Its pass: `float16`, `int8` or `fp8`.
            limit: Largest relative error that is right: of outputs against torch, or of latents.
            samples: Number of random inputs of a trial.
            seed: Of the first of them.
            of: `outputs` or `latents` hold their relative error to `limit`, `pictures` their PSNR to `min_psnr`.
            min_psnr: In dB, of the worst picture.
        """
        self._architecture, self._weights = model.require("architecture"), model.require("weights")
        self._graph = model.require("graph")
        self._context, self._convert, self._step = context, convert, step
        self._precision = "fp16" if step == "float16" else step
        self._limit, self._samples, self._seed = limit, samples, seed
        self._of, self._min_psnr = of, min_psnr
        self._drawing = None if of == "outputs" else context.require_drawing()
        self._read = parameter_reader(self._weights, context.tensors)
        self._original_outputs: Original | None = None
        self._tried: dict[tuple[str, ...], Json] = {}
        self._drawn: dict[tuple[str, ...], Json] = {}

    def run(self) -> tuple[tuple[str, ...], Json]:
        """Find the fewest blocks that must stay in float.

        Returns the blocks, as `force_fp32_blocks` takes them, and what the run record should hold. Raises
        `VerificationError` when no choice of blocks is enough.
        """
        blocks: tuple[str, ...] = ()
        facts: Json = {}
        if not self._is_right(()):
            if not self._is_right(_EVERYTHING):
                figures = _described(self._try(_EVERYTHING))
                raise VerificationError(
                    f"{self._architecture.component}: further from torch than {self._limit:.1e} before "
                    f"{self._step} already ({figures}); find the step that is wrong with `verify` behind each, or "
                    "raise max_relative_error"
                )
            blocks, facts = self._by_reach() if self._step == "float16" else self._by_cost()
            facts["without"] = {**self._try(()), **self._draw(())}
        trials = len(self._tried)
        found = {"kept_fp32_blocks": list(blocks), **self._try(blocks), **facts, "trials": trials}
        if self._drawing is not None:
            found |= {**self._draw(blocks), "drawings": len(self._drawn)}
        return blocks, found

    def _by_reach(self) -> tuple[tuple[str, ...], Json]:
        """Return the blocks that half precision needs in float32, and why these were tried first.

        Overflow is the usual reason, so the blocks that reach furthest are the likely ones.
        """
        largest = self._reach()
        reach = {alone(block, largest): value for block, value in largest.items()}
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

    def _by_cost(self) -> tuple[tuple[str, ...], Json]:
        """Rank blocks by what each one costs alone in eight bits, and leave the fewest in float, the dearest first.

        Raises `VerificationError` when nothing could be in eight bits.
        """
        rounded = [node for node in self._convert(()).graph if node.op_type == "QuantizeLinear"]
        blocks = dict.fromkeys(block for node in rounded if (block := block_of(node)) is not None)
        patterns = [alone(block, blocks) for block in blocks]
        others = {one: tuple(other for other in patterns if other != one) for one in patterns}
        costs = {one: self._cost(others[one]) for one in patterns}
        ranked = sorted(patterns, key=lambda one: -costs[one])
        chosen = minimal_subset(ranked, self._is_right)
        if chosen is None or len(chosen) == len(ranked):
            nearest = min(costs, key=lambda one: costs[one], default="")
            too_far = {
                "outputs": f"further from torch than {self._limit:.1e}",
                "latents": f"latents are further from float's than {self._limit:.1e}",
                "pictures": f"pictures have less than {self._min_psnr:g} dB",
            }[self._of]
            remedy = "lower min_psnr" if self._of == "pictures" else "raise max_relative_error"
            raise VerificationError(
                f"{self._architecture.component}: with any block in {self._step} {too_far}; nearest is "
                f"{nearest.lstrip('=')} alone, with {self._found(others.get(nearest, ()))}, and all of them have "
                f"{self._found(())}: {remedy}, or leave `{self._step}` out of this chain"
            )
        return chosen, {"errors_alone": {one: costs[one] for one in chosen}}

    def _cost(self, blocks: tuple[str, ...]) -> float:
        error = self._try(blocks)["relative_error"]
        return float("inf") if error is None else float(error)

    def _is_right(self, blocks: tuple[str, ...]) -> bool:
        if self._of == "pictures":
            psnr = self._draw(blocks)["psnr"]
            return psnr is None or psnr >= self._min_psnr
        found = self._draw(blocks) if self._of == "latents" else self._try(blocks)
        error = found["latents_error" if self._of == "latents" else "relative_error"]
        return not found.get("nan") and not found.get("inf") and error is not None and error <= self._limit

    def _found(self, blocks: tuple[str, ...]) -> str:
        """Return how far off the network, or what it draws, is, as an error says it."""
        if self._of == "outputs":
            return f"{self._cost(blocks):.1e}"
        found = self._draw(blocks)
        if self._of == "pictures":
            return "equal pictures" if found["psnr"] is None else f"{found['psnr']:.1f} dB"
        return "latents that are not finite" if found["latents_error"] is None else f"{found['latents_error']:.1e}"

    def _try(self, blocks: tuple[str, ...]) -> Json:
        """Return the figures of the network with these blocks in float32 and all else in fewer bits."""
        key = tuple(sorted(blocks))
        if key not in self._tried:
            graph = self._convert(key)

            def compare() -> Json:
                evaluation = Evaluation(graph, parameter=self._read)
                found = self._original().compare(evaluation, self._precision).to_json()
                return {name: found[name] for name in ("relative_error", "worst", "cosine", "nan", "inf")}

            self._tried[key] = self._remembered("trial/1", Graph.from_ir(graph), compare)
            self._log(key, _described(self._tried[key]))
        return self._tried[key]

    def _draw(self, blocks: tuple[str, ...]) -> Json:
        """Return the figures of what is drawn with these blocks in float32; nothing if only outputs count."""
        drawing, key = self._drawing, tuple(sorted(blocks))
        if drawing is None:
            return {}
        if key not in self._drawn:
            graph = self._convert(key)
            question = ["drawing/1", drawing.digest, Graph.from_ir(graph).digest]
            self._drawn[key] = self._recalled(question, lambda: dict(drawing.compare(graph)))
            self._log(key, self._found(key))
        return self._drawn[key]

    def _log(self, blocks: tuple[str, ...], found: str) -> None:
        self._context.logger.info("%s in float32: %s", ", ".join(blocks) or "no block", found)

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
    if not is_float(array.dtype) or not array.size:
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

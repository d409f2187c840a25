"""Search for blocks of a network that must stay in float for computing in eight bits, int8 or float8, to be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from olivelike.errors import VerificationError
from olivelike.graphs.inspect.quantised import rounded_to
from olivelike.measure.verify.half_search import HalfSearch, alone, minimal_subset
from olivelike.model import Graph
from olivelike.model.graph import block_of

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.measure.verify.half_search import Convert
    from olivelike.model import Model
    from olivelike.pass_api import Context


def fewest_in_float(
    model: Model, context: Context, convert: Convert, *, of: Literal["outputs", "latents", "pictures"],
    min_psnr: float, **limits: Any,
) -> tuple[tuple[str, ...], Json]:  # fmt: skip
    """Find the fewest blocks that must stay in float.

    Args:
        model: As `HalfSearch` takes it.
        context: With what draws.
        convert: Returns the graph in eight bits, with some blocks in float.
        of: What is held to a limit: `outputs`, or what `DrawingSearch` draws.
        min_psnr: Of pictures.
        limits: `limit`, `samples` and `seed`.

    Raises `VerificationError` when no choice of blocks is enough.

    Returns:
        The blocks, and what the run record should hold.
    """
    if of == "outputs":
        return RoundingSearch(model, context, convert, **limits).run()
    return DrawingSearch(model, context, convert, of=of, min_psnr=min_psnr, **limits).run()


class RoundingSearch(HalfSearch):
    """Trials of one network with all but some blocks in eight bits; what is remembered of one is not tried again."""

    def __init__(self, model: Model, context: Context, convert: Convert, **limits: Any) -> None:
        """Set up a search, as `HalfSearch` does."""
        super().__init__(model, context, convert, **limits)
        self.precision = self.step = rounded_to(convert(()).graph) or "int8"

    def _search(self) -> tuple[tuple[str, ...], Json]:
        """Rank blocks by what each one costs alone, and leave the fewest in float, the dearest first.

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
            raise VerificationError(
                f"{self._architecture.component}: with any block in {self.step} {self._too_far()}; nearest is "
                f"{nearest.lstrip('=')} alone, with {self._found(others.get(nearest, ()))}, and all of them have "
                f"{self._found(())}: {self._remedy()}, or leave `{self.step}` out of this chain"
            )
        return chosen, {"errors_alone": {one: costs[one] for one in chosen}}

    def _cost(self, blocks: tuple[str, ...]) -> float:
        error = self._try(blocks)["relative_error"]
        return float("inf") if error is None else float(error)

    def _too_far(self) -> str:
        return f"further from torch than {self._limit:.1e}"

    def _remedy(self) -> str:
        return "raise max_relative_error"

    def _found(self, blocks: tuple[str, ...]) -> str:
        """Return how far off the network is, as an error says it."""
        return f"{self._cost(blocks):.1e}"


class DrawingSearch(RoundingSearch):
    """Search with a limit on what is drawn: blocks are ranked by outputs, and few sets of them draw."""

    def __init__(
        self, model: Model, context: Context, convert: Convert, *, of: Literal["latents", "pictures"],
        min_psnr: float, **limits: Any,
    ) -> None:  # fmt: skip
        """Set up a search.

        Args:
            model: As `HalfSearch` takes it, and what follows.
            context: With what draws.
            convert: Returns the graph in eight bits, with some blocks in float.
            of: `latents` holds their relative error to `limit`, `pictures` their PSNR to `min_psnr`.
            min_psnr: In dB, of the worst picture.
            limits: `limit`, `samples` and `seed`.
        """
        super().__init__(model, context, convert, **limits)
        self._of, self._min_psnr, self._drawing = of, min_psnr, context.require_drawing()
        self._drawn: dict[tuple[str, ...], Json] = {}

    def run(self) -> tuple[tuple[str, ...], Json]:
        """Find the fewest blocks that must stay in float; the record says what is drawn with them, and without."""
        blocks, facts = super().run()
        without = {"without": {**facts["without"], **self._draw(())}} if "without" in facts else {}
        return blocks, {**facts, **without, **self._draw(blocks), "drawings": len(self._drawn)}

    def _is_right(self, blocks: tuple[str, ...]) -> bool:
        found = self._draw(blocks)
        if self._of == "pictures":
            return found["psnr"] is None or found["psnr"] >= self._min_psnr
        return found["latents_error"] is not None and found["latents_error"] <= self._limit

    def _draw(self, blocks: tuple[str, ...]) -> Json:
        key = tuple(sorted(blocks))
        if key not in self._drawn:
            graph = self._convert(key)
            question = ["drawing/1", self._drawing.digest, Graph.from_ir(graph).digest]
            self._drawn[key] = self._recalled(question, lambda: dict(self._drawing.compare(graph)))
            names = ", ".join(key) or "no block"
            self._context.logger.info("%s in float32: %s", names, self._found(key))
        return self._drawn[key]

    def _too_far(self) -> str:
        if self._of == "pictures":
            return f"pictures have less than {self._min_psnr:g} dB"
        return f"latents are further from float's than {self._limit:.1e}"

    def _remedy(self) -> str:
        return "lower min_psnr" if self._of == "pictures" else super()._remedy()

    def _found(self, blocks: tuple[str, ...]) -> str:
        found = self._draw(blocks)
        if self._of == "pictures":
            return "equal pictures" if found["psnr"] is None else f"{found['psnr']:.1f} dB"
        return "latents that are not finite" if found["latents_error"] is None else f"{found['latents_error']:.1e}"

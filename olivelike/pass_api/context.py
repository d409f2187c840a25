"""Means that the engine lends to one execution of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from olivelike.errors import PassError

if TYPE_CHECKING:
    import logging

    import numpy as np
    import onnx_ir as ir

    from olivelike._untrusted import Json
    from olivelike.model import Model, Tensor, Weights
    from olivelike.model.observations import Observed
    from olivelike.model.targets import Precision, Target

T = TypeVar("T")


class TensorAccess(Protocol):
    """How a pass reaches weight bytes without knowing where they are."""

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return the tensor's values as an array of its shape and dtype (`BF16` as `ml_dtypes.bfloat16`).

        A tensor to which a LoRA was merged is float32, whatever its dtype says of the file.
        """

    def write(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Keep a new tensor; return its table entry, to be put into the weights facet."""

    def file(self, path: Path) -> str:
        """Return the digest of a source file, a LoRA's included, for table entries that say where in it bytes lie.

        Raises:
            PassError: if it is none of those that apply to the component.
        """

    def evaluate(self, value: ir.Value, weights: Weights) -> np.ndarray[Any, Any]:
        """Return the values of a weight of a graph, computed as they are when the output is written.

        A pass that wants to know what a layer multiplies by need not know how that derives from the checkpoint:

            graph = model.require("graph").to_ir().graph
            weights = weight_values(graph)
            for node in graph:
                if node.op_type == "MatMul" and node.inputs[1] in weights:
                    matrix = context.tensors.evaluate(node.inputs[1], model.require("weights"))

        One tensor is read, derived and returned at a time; nothing is kept.

        Args:
            value: An input of the graph that stands for a parameter, or what operators make of parameters and
                constants alone; `weight_values` returns all of them. Its node is still part of the graph.
            weights: The model's.

        Raises:
            PassError: when the value is no such weight, the table lacks a parameter, or an operator of the derivation
                has no reference implementation.
        """


class Progress(Protocol):
    """Receives progress. One unit is one round of the pass's main loop: a tensor, a node, a trial."""

    def __call__(self, done: int, total: int) -> None:
        """Tell that `done` of `total` units are finished; displays show the share, so units should be alike."""


class Drawing(Protocol):
    """Draws what calibration draws, once more: how far off pictures are tells more than how far off an output is."""

    digest: str
    """Digest of all that decides what is drawn: part of the question, where a comparison is remembered."""

    def compare(self, graph: ir.Model) -> Mapping[str, float | None]:
        """Draw with a graph in place of the component's, on the CPU, and compare with what is drawn in float.

        Args:
            graph: With the inputs, outputs and weights of the component's own.

        Returns:
            `latents_error`, ‖difference‖ / ‖float's‖ of the final latents, and `psnr`, of the pictures in dB: each of
            the worst picture. An error that is not finite and the PSNR of equal pictures are `None`.
        """


class Cache:
    """Findings of earlier executions of the same pass, of the same code and libraries; this one is always empty.

    It is for what takes long and may be asked again under another key, such as trials. A result that is lost is
    computed again, so nothing may depend on its being there.
    """

    def get(self, question: Any) -> Any:  # noqa: ARG002  (overridden)
        """Return the answer to a question, both JSON values; `None` if it was never put, or is lost."""
        return None

    def put(self, question: Any, answer: Any) -> None:
        """Keep an answer for later executions. A question holds all that decides its answer, beside the code."""


@dataclass(frozen=True)
class LoraInput:
    """One LoRA that applies to the component."""

    path: Path
    """Its file, or its adapter's folder."""
    weight: float
    """How strongly it counts in this component; never 0."""
    adapter: str | None = None
    """Name of the adapter, where the file holds several."""


@dataclass(frozen=True)
class EmbeddingInput:
    """One textual inversion that applies to the component."""

    path: Path
    token: str


@dataclass(frozen=True)
class PrecisionPlan:
    """The precision that a graph will be computed in by later steps; it is fused in float32 before that."""

    precision: Precision = "fp32"
    float32_operators: tuple[str, ...] = ()
    """Operator types that stay in float32 all the same."""
    known_overflows: bool = False
    """Whether parts of networks that are known to overflow stay in float32 too."""


@dataclass(frozen=True)
class Context:
    """Means that the engine lends to one execution of a pass."""

    scratch: Path
    """An empty folder on the store's disk, removed afterwards."""
    logger: logging.Logger
    tensors: TensorAccess
    progress: Progress
    target: Target | None = None
    """Set only if the pass lists `target` in `reads`."""
    precision: PrecisionPlan = PrecisionPlan()
    """Precision that later steps convert the graph to. Float32 unless the pass lists `precision` in `reads`."""
    loras: tuple[LoraInput, ...] = ()
    """Set only if the pass lists `loras` in `reads`."""
    embeddings: tuple[EmbeddingInput, ...] = ()
    """Set only if the pass lists `embeddings` in `reads`."""
    guides: Mapping[str, Path] = field(default_factory=dict)
    """Files of guides that are weights for the component, by key. Set only if the pass lists `guides` in `reads`."""
    original: Model | None = None
    """Architecture and weights as they were loaded, with the workflow's LoRAs and textual inversions: what a result is
    right by, whatever passes have done to the weights. Set only if the pass lists `original` in `reads`."""
    calibration: Mapping[str, Observed] | None = None
    """Ranges, seen as the pipeline drew, of values that may be rounded to 8 bits, by their names in the graph. Set only
    if the pass lists `calibration` in `reads`."""
    drawing: Drawing | None = None
    """Set only if the pass lists `drawing` in `reads`."""
    cache: Cache = field(default_factory=Cache)
    """For passes that try things out: a trial that was made once need not be made again."""
    reported: Json = field(default_factory=dict)
    """Facts that `report` was told so far; the engine keeps it in the run record."""

    def report(self, **facts: Any) -> None:
        """Put JSON values into the run record, by name: counts, decisions, warnings. A later value replaces one."""
        self.reported.update(facts)

    def require_target(self) -> Target:
        """Return the target.

        Raises:
            PassError: if the pass does not list `target` in `reads`.
        """
        return self._required(self.target, "target")

    def require_guide(self, key: str) -> Path:
        """Return the file of a guide, by its key in a workflow.

        Raises:
            PassError: if the workflow has none, or the pass does not list `guides` in `reads`.
        """
        if key not in self.guides:
            raise PassError(
                f"the context has no {key}; name one as `{key}:` in the workflow, and add `guides` to the pass's "
                "`reads`"
            )
        return self.guides[key]

    def require_original(self) -> Model:
        """Return the network as it was loaded.

        Raises:
            PassError: if the pass does not list `original` in `reads`.
        """
        return self._required(self.original, "original")

    def require_calibration(self) -> Mapping[str, Observed]:
        """Return what calibration saw.

        Raises:
            PassError: if the pass does not list `calibration` in `reads`.
        """
        return self._required(self.calibration, "calibration")

    def require_drawing(self) -> Drawing:
        """Return what draws.

        Raises:
            PassError: if the pass does not list `drawing` in `reads`.
        """
        return self._required(self.drawing, "drawing")

    def _required(self, value: T | None, name: str) -> T:
        if value is None:
            raise PassError(f"the context has no {name}; add {name!r} to the pass's `reads`")
        return value

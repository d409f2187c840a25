"""What a pass author needs: `Pass`, `Context`, `Resources`, and the inputs that a context may carry.

A pass is a frozen pydantic model: its fields are the step's options, its one method `run` takes a model and
returns a model. It declares which facets it reads and writes; its cache key holds only what it reads.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    import logging
    from pathlib import Path

    import numpy as np
    import onnx_ir as ir

    from olivelike.model import Model, Tensor, Weights
    from olivelike.model.targets import Target


T = TypeVar("T")


@dataclass(frozen=True)
class Resources:
    """What one execution of a pass is expected to need."""

    memory_bytes: int = 1 << 30
    """Peak resident memory, interpreter and libraries included."""
    weights_scale: float = 1.0
    """Size of the weights behind the pass, relative to before; half precision halves them."""


def by_option(option: str, unset: T, given: T) -> T:
    """Declare a class fact, such as `reads`, that depends on whether an option is set.

    Args:
        option: Name of the option; it counts as set if its value is true.
        unset: What the class says, and a step without the option.
        given: What a step with the option says.
    """
    return cast("T", _ByOption(option, unset, given))


class _ByOption:
    """Descriptor of a class fact that depends on an option."""

    def __init__(self, option: str, unset: Any, given: Any) -> None:
        self._option, self._unset, self._given = option, unset, given

    def __get__(self, instance: Pass | None, owner: type[Pass]) -> Any:
        return self._given if instance is not None and getattr(instance, self._option) else self._unset


ADDITIONS = ("loras", "embeddings")
"""What a workflow adds to a checkpoint: a pass that reads one of them changes weights because someone asked for it."""
INPUTS = ("target", *ADDITIONS, "original")
"""What a pass may read beside facets."""


class Pass(BaseModel):
    """Base class of passes; subclass it, add options as fields, implement `run`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reads: ClassVar[tuple[str, ...]] = ()
    """What decides the result: the facets `architecture`, `weights`, `graph`; of the workflow `target`, `loras`,
    `embeddings`; and `original`, the network before any pass changed its weights. A step that reads LoRAs or embeddings
    is left out where none apply to the component."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Facets of `reads` that the pass does without: a graph that someone else exported has no `architecture`."""
    writes: ClassVar[tuple[str, ...]] = ()
    """Facets that the result may change; the others come back unchanged."""
    tools: ClassVar[tuple[str, ...]] = ()
    """Installed distributions whose version changes the result, beside those that the code imports."""
    files: ClassVar[tuple[str, ...] | None] = None
    """Data files whose content decides the result, relative to the class's own file. A pass that says nothing and
    reads files runs every time; `()` says that none decides."""
    environment: ClassVar[tuple[str, ...] | None] = None
    """Environment variables whose value decides the result; as `files`, `()` says that none does."""
    unreached: ClassVar[tuple[str, ...]] = ()
    """Modules that a step does not reach though the code imports them, since the option that needs them is not set;
    counts for built-in passes alone."""
    components: ClassVar[tuple[str, ...] | None] = None
    """Components that the pass applies to; `None` for all networks."""
    resources: ClassVar[Resources] = Resources()

    @classmethod
    def name(cls) -> str:
        """Name in workflow files: the class name in snake case, `MergeLora` → `merge_lora`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def followers(self, target: Target) -> tuple[str, ...]:  # noqa: ARG002  (overridden)
        """Return the passes of which one must come later in the chain, or this one's result is wrong for `target`."""
        return ()

    def refusal(self, target: Target) -> str | None:  # noqa: ARG002  (overridden)
        """Return why the pass is no use for `target`, and what is; `None` if it is of use."""
        return None

    @abstractmethod
    def run(self, model: Model, context: Context) -> Model:
        """Return the optimised model; `model` itself is immutable.

        Raises:
            PassError: with what, where and what to do; anything else counts as a bug of the pass.
        """


class TensorAccess(Protocol):
    """How a pass reaches weight bytes without knowing where they are."""

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return the tensor's values as an array of its shape and dtype (`BF16` as `ml_dtypes.bfloat16`)."""

    def write(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Keep a new tensor; return its table entry, to be put into the weights facet."""

    def evaluate(self, value: ir.Value, weights: Weights) -> np.ndarray[Any, Any]:
        """Return the values of a weight of a graph, computed as they are when the output is written.

        A pass that wants to know what a layer multiplies by need not know how that derives from the checkpoint:

            graph = model.graph.to_ir()
            for node in graph.graph:
                if node.op_type == "MatMul" and node.inputs[1] in weight_values(graph.graph):
                    matrix = context.tensors.evaluate(node.inputs[1], model.weights)

        One tensor is read, derived and returned at a time; nothing is kept.

        Args:
            value: An input of the graph that stands for a parameter, or what operators make of parameters and
                constants alone; `olivelike.model.graph.weight_values` returns all of them. Its node is still part of
                the graph.
            weights: The model's.

        Raises:
            PassError: when the value is no such weight, the table lacks a parameter, or an operator of the derivation
                has no reference implementation.
        """


class Progress(Protocol):
    """Receives progress: `done` of `total`, in any unit."""

    def __call__(self, done: int, total: int) -> None:
        """Tell that `done` of `total` units are finished."""


class Memory:
    """What earlier executions of the same pass, of the same code and tools, found out; this one knows nothing."""

    def recall(self, question: Any) -> Any:  # noqa: ARG002  (overridden)
        """Return the answer to a question, both JSON values; `None` if it was never answered, or is forgotten."""
        return None

    def remember(self, question: Any, answer: Any) -> None:
        """Keep an answer for later executions. A question holds all that decides its answer, beside the code."""


@dataclass(frozen=True)
class LoraInput:
    """One LoRA that applies to the component."""

    path: Path
    """Its file, or its adapter's folder."""
    weight: float
    """How strongly it counts in this component; never 0."""
    adapter: str | None = None
    """Which adapter, where the file holds several."""


@dataclass(frozen=True)
class EmbeddingInput:
    """One textual inversion that applies to the component."""

    path: Path
    token: str


@dataclass(frozen=True)
class Context:
    """What the engine lends to one execution of a pass."""

    scratch: Path
    """An empty folder on the store's disk, removed afterwards."""
    logger: logging.Logger
    tensors: TensorAccess
    progress: Progress
    target: Target | None = None
    """Set only if the pass lists `target` in `reads`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """JSON values that the pass wants in the run record: counts, decisions, warnings."""
    loras: tuple[LoraInput, ...] = ()
    """Set only if the pass lists `loras` in `reads`."""
    embeddings: tuple[EmbeddingInput, ...] = ()
    """Set only if the pass lists `embeddings` in `reads`."""
    original: Model | None = None
    """Architecture and weights as they were loaded, with the workflow's LoRAs and textual inversions: what a result is
    right by, whatever passes have done to the weights. Set only if the pass lists `original` in `reads`."""
    memory: Memory = field(default_factory=Memory)
    """For passes that try things out: a trial that was made once need not be made again."""

"""The base class of passes, and what a pass declares."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from olivelike.model import Model
    from olivelike.model.targets import Target
    from olivelike.pass_api.context import Context, PrecisionPlan

PASS_API = 1
"""Version of what a pass is promised; see `docs/passes.md`."""

GUIDES_READ = "guides"
"""Files of guides that are weights, among what a pass reads."""
ADAPTERS = ("loras", "embeddings", GUIDES_READ)
"""A workflow's additions to a checkpoint: a pass that reads one of them changes weights as someone asked."""
INPUTS = ("target", "precision", *ADAPTERS, "original", "calibration", "drawing")
"""Inputs that a pass may read beside facets."""


@dataclass(frozen=True)
class Resources:
    """Expected memory and provider of one execution of a pass."""

    memory_bytes: int = 1 << 30
    """Peak resident memory, interpreter and libraries included."""
    weights_scale: float = 1.0
    """Size of the weights behind the pass, relative to before; half precision halves them."""
    provider: str | None = None
    """Execution provider that the pass runs networks on; a cluster gives it to workers that have it."""


class Pass(BaseModel):
    """Base class of passes; subclass it, add options as fields, implement `run`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    pass_api: ClassVar[int] = PASS_API
    """The `PASS_API` that the pass is written for; by default that of the olivelike that loads it."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Facts that decide the result: the facets `architecture`, `weights`, `graph`; of the workflow `target`, `loras`,
    `embeddings`, `guides`; `precision`, what later steps convert the graph to; `original`, the network before any
    pass changed its weights; `calibration`, the range of values in the graph as the pipeline draws; and, beside that,
    `drawing`, which draws with other graphs. A step that reads LoRAs or embeddings is left out where the component has
    none."""
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
    components: ClassVar[tuple[str, ...] | None] = None
    """Components that the pass applies to; `None` for all networks."""
    resources: ClassVar[Resources] = Resources()

    requires_before: ClassVar[tuple[str, ...]] = ()
    """Passes that must all stand before this one in a chain."""
    requires_after: ClassVar[tuple[str, ...]] = ()
    """Passes that must all stand behind this one."""
    comes_before: ClassVar[tuple[str, ...]] = ()
    """Passes that, where a chain has them, stand behind this one."""
    conflicts: ClassVar[tuple[str, ...]] = ()
    """Passes that can't be in one chain with this one."""
    once: ClassVar[bool] = False
    """Whether a chain has the pass at most once."""

    chosen_by: ClassVar[str | None] = None
    """Option of the pass that this class derives from: a step that sets it is done by this class, under the same name.
    So a class's declarations hold for all of its steps, also where an option makes a pass read or need more."""
    removed_options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Options that the pass had once, and what to do without each; a workflow that has one is told so."""

    @classmethod
    def name(cls) -> str:
        """Name in workflow files: the class name in snake case, `MergeLora` → `merge_lora`."""
        if cls.chosen_by is not None:
            (base,) = cls.__bases__
            return base.name() if issubclass(base, Pass) else ""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def chosen(self) -> Pass:
        """Return the pass for these options: that of a class that one of them chooses, or this one."""
        for cls in type(self).__subclasses__():
            if cls.chosen_by is not None and getattr(self, cls.chosen_by):
                return cls(**dict(self))
        return self

    def unsupported_reason(self, target: Target) -> str | None:  # noqa: ARG002  (overridden)
        """Return why the pass is no use for `target`, and what is; `None` if it is of use."""
        return None

    def converts_to(self) -> PrecisionPlan | None:
        """Return what the pass makes a graph compute in; `None` if it leaves that as it is."""
        return None

    @abstractmethod
    def run(self, model: Model, context: Context) -> Model:
        """Return the optimised model; `model` itself is immutable.

        Raises:
            PassError: with what, where and what to do; anything else counts as a bug of the pass.
        """

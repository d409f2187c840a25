"""Rules of `fuse`, and what each is told and tells while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from olivelike.graphs.editing.editor import GraphEditor
    from olivelike.model.targets import Precision, Target

LETTERS = {"fp32": "f", "fp16": "h", "bf16": "b"}
"""Letter of a precision in kernel tables."""


@dataclass
class Scope:
    """One rule at work on one graph."""

    editor: GraphEditor
    target: Target
    precision: Precision
    """Precision that the graph will be computed in: it is fused in float32 and converted afterwards."""
    float32_operators: frozenset[str] = frozenset()
    """Operators that stay in float32 all the same."""
    fused: Counter[str] = field(default_factory=Counter)
    """Number of times that each operator was written."""
    left: Counter[str] = field(default_factory=Counter)
    """Reasons that matches were left alone, and how often."""

    def precision_of(self, op_type: str) -> Precision:
        """Return what an operator will be computed in."""
        return "fp32" if op_type in self.float32_operators else self.precision

    def refuse(self, reason: str) -> None:
        """Record that a match is left as it is."""
        self.left[reason] += 1

    def may_write(self, op_type: str, layout: str | None = None, width: int | None = None) -> bool:
        """Ask the target whether it runs `op_type` like this; record the reason if not.

        Args:
            layout: `NHWC` or `NCHW` where the operator has that choice.
            width: Size of the last axis where a kernel takes certain ones only.
        """
        reason = self.why_not(op_type, layout, width)
        if reason is not None:
            self.refuse(reason)
        return reason is None

    def why_not(self, op_type: str, layout: str | None = None, width: int | None = None) -> str | None:
        """Return why the target does not run `op_type` like this, or `None` if it does."""
        kernel = self.target.kernel(op_type)
        if kernel is None:
            return self.target.why_not(op_type)
        precision = self.precision_of(op_type)
        if LETTERS[precision] not in kernel.dtypes:
            return f"{self.target.name} has no {precision} kernel for {op_type}"
        if layout is not None and layout not in kernel.layouts:
            return f"{self.target.name} runs {op_type} in another layout than {layout}"
        if width is not None and kernel.channels is not None and width not in kernel.channels:
            allowed = ", ".join(map(str, sorted(kernel.channels)))
            return f"{self.target.name} runs {op_type} for widths {allowed} only, not {width}"
        return None


@dataclass(frozen=True)
class Rule:
    """One fusion: a function that rewrites what it finds in a graph. `@Rule` makes a rule of a function."""

    apply: Callable[[Scope], None]
    """The first line of its docstring says what it matches → what it writes; it may run twice on one graph."""
    default: bool = True
    """Whether the rule runs unless it is switched off; approximations do not."""
    before: str = "cleanup"
    """Built-in rule that a plugin's rule runs in front of."""

    @property
    def name(self) -> str:
        """Name of the function; also the option of `fuse` that switches the rule."""
        return self.apply.__name__

    @property
    def matches(self) -> str:
        """Match and result of the rule: the first line of its function's docstring."""
        return (self.apply.__doc__ or self.name).strip().splitlines()[0]

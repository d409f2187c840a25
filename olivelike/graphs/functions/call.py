"""`Call`: a fused operator's node as the statement of its meaning sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.errors import PassError

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Call:
    """A node's attributes, and the function inputs that stand for its operands."""

    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    """One per operand of the node; `None` where an optional one is absent."""

    def required(self, *names: str) -> tuple[ir.Value, ...]:
        """Return the first operands, which the schema calls `names` and never lets be absent."""
        values = self.inputs[: len(names)]
        present = tuple(value for value in values if value is not None)
        if len(present) != len(names):
            raise self.unstated(f"it needs the inputs {', '.join(names)}")
        return present

    def optional(self, index: int) -> ir.Value | None:
        """Return the operand at `index`, or `None` if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def rank(self, index: int) -> int | None:
        """Return the number of axes of the operand at `index`, or `None` if the graph does not say."""
        value = self.node.inputs[index]
        return None if value is None or value.shape is None else len(value.shape)

    def forbid(self, **positions: int) -> None:
        """Refuse operands that no Stable Diffusion network has: their meaning is not stated here."""
        for name, index in positions.items():
            if self.optional(index) is not None:
                raise self.unstated(f"the input {name} has no stated meaning")

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute, or `default`."""
        return self.node.attributes[name].as_int() if name in self.node.attributes else default

    def number(self, name: str, default: float) -> float:
        """Return a float attribute, or `default`."""
        return self.node.attributes[name].as_float() if name in self.node.attributes else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or `None`."""
        return tuple(self.node.attributes[name].as_ints()) if name in self.node.attributes else None

    def unstated(self, reason: str) -> PassError:
        """Return the error for a form of the operator that has no statement."""
        return PassError(f"{self.node.op_type} {self.node.name!r}: {reason}")

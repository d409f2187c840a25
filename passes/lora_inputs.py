"""`lora_inputs`: a network whose layers take LoRAs as inputs, for programs that have no Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from olivelike.families import LORA_COMPONENTS
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class LoraInputs(Pass):
    """Write `lora_inputs.onnx` beside a network, over the same weights: its layers take the factors of LoRAs as inputs.

    `olivelike adapters` writes LoRAs for it. `model.onnx` stays as it is. Put it behind the other steps.
    """

    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)
    components: ClassVar = LORA_COMPONENTS
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    slots: Annotated[int, Field(ge=1, le=8)] = 2
    """LoRAs at once."""
    layers: Annotated[tuple[Annotated[str, StringConstraints(pattern=r"^[^\n]+$")], ...], Field(min_length=1)] = ("*",)
    """Patterns of parameters, such as `*attn*`; each product by one that fits takes factors, others take none."""

    convolutions: Literal["none", "points", "all"] = "points"
    """Convolutions that take factors, too: those of one pixel, or all. ONNX Runtime rounds beside them otherwise than
    in `model.onnx`; with `none` the network without LoRAs is the same to the bit."""
    defaults: bool = True
    """Give the inputs values of their own, so that who feeds none gets the plain network. ONNX Runtime for JavaScript
    feeds inputs that have none alone: with `false` all must be fed."""

    def run(self, model: Model, context: Context) -> Model:
        """Mark the graph."""
        from olivelike.graphs.low_rank import Choice, mark
        from olivelike.model import Graph

        graph = model.require("graph").to_ir()
        mark(graph, Choice(self.slots, self.layers, self.convolutions, self.defaults))
        context.report(slots=self.slots)
        return model.replace(graph=Graph.from_ir(graph))

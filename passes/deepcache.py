"""`deepcache`: a UNet whose deep layers need not run in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from olivelike.families import denoisers_with
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class Deepcache(Pass):
    """Write `shallow.onnx` beside a UNet, over the same weights: `generate --cache-interval` runs it in most steps.

    The UNet gets an output more, `cached_features`; what it draws stays as it is. Put it behind the other steps.
    """

    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)
    components: ClassVar = denoisers_with("deepcache")
    once: ClassVar = True
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    branch: Annotated[int, Field(ge=0)] = 0
    """Layers of the way up that run in every step, beside the last one: more are slower, and nearer to the whole."""

    def run(self, model: Model, context: Context) -> Model:
        """Add the output and count the operators of both graphs."""
        from olivelike.graphs.shallow import add_cached_features
        from olivelike.model import Graph

        graph = model.require("graph").to_ir()
        context.report(**add_cached_features(graph, self.branch))
        return model.replace(graph=Graph.from_ir(graph))

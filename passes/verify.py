"""`verify`: hold the graph against torch, and stop the run where it is too far off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model


class Verify(Pass):
    """Compare the graph's outputs with torch's on random inputs; a run stops where they are too far off.

    Torch has the weights as they were loaded, with the workflow's LoRAs and textual inversions: what other passes did
    to the weights is part of the difference.
    """

    reads: ClassVar = ("architecture", "weights", "graph", "original")
    resources: ClassVar = Resources(memory_bytes=1800 << 20)

    max_relative_error: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Largest ‖difference‖ / ‖torch's‖ of an output; by default 1e-4 for a float32 graph, 2e-2 in float16,
    0.16 in bfloat16, 5e-2 with weights in 8 bits and 0.6 in 4, 0.3 computed in 8 bits."""

    samples: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of random inputs, of different sizes."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the first input; the others have the numbers after it."""

    def run(self, model: Model, context: Context) -> Model:
        """Return the model as it is; the figures go into the run record.

        Raises `VerificationError` when an output is too far off, or has a value that is not finite.
        """
        from olivelike.families.networks.unet import with_image_prompt
        from olivelike.graphs.image_attention import takes_image_prompt
        from olivelike.graphs.shallow import cut_shallow, has_cached_features
        from olivelike.measure.verify.evaluation import Evaluation
        from olivelike.measure.verify.original import LIMITS, Original, parameter_reader, precision_of

        before = context.require_original()
        read = parameter_reader(model.require("weights"), context.tensors)
        graph = model.require("graph").to_ir()
        precision = precision_of(graph)
        limit = LIMITS[precision] if self.max_relative_error is None else self.max_relative_error
        loaded = parameter_reader(before.require("weights"), context.tensors)
        architecture = before.require("architecture")
        if takes_image_prompt(graph):
            architecture = with_image_prompt(architecture)
        original = Original(architecture, loaded, samples=self.samples, seed=self.seed)
        part = cut_shallow(graph.clone()) if has_cached_features(graph) else None
        shallow = None if part is None else Evaluation(part, parameter=read)
        found = original.compare(Evaluation(graph, parameter=read), precision, context.progress, shallow=shallow)
        found.require(model.component, limit)
        context.report(verification={**found.to_json(), "limit": limit, "passed": True})
        return model

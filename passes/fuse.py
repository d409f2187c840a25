"""`fuse`: rewrite a graph into the fused operators that the target runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from olivelike.model.targets import Precision  # noqa: TC001  (pydantic reads it)
from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model
    from olivelike.model.targets import Target


class Fuse(Pass):
    """Fuse attention, norms, convolutions and activations for the target; run it before `float16` or `bfloat16`."""

    reads: ClassVar = ("architecture", "graph", "target")
    writes: ClassVar = ("graph",)
    optional: ClassVar = ("architecture",)
    resources: ClassVar = Resources(memory_bytes=300 << 20)

    precision: Precision | None = None
    """What the graph will be computed in, if not the target's own: `fp32` where `float16` is left out."""

    force_fp32: tuple[str, ...] = ()
    """Operator types that `float16` is told to leave in float32: packed attention is for fp16 only."""

    known_overflows: bool = True
    """Take it that `float16` leaves in float32 what is known to overflow, as it does by default."""

    attention: bool = True
    """MultiHeadAttention in place of attention with its head split and merge."""

    attention_projections: bool = True
    """Attention with one weight and bias where projections have biases: text encoders, VAE, vision tower."""

    packed_qkv: bool = True
    """One MatMul for the queries, keys and values of self-attention; fp16 only."""

    packed_kv: bool = True
    """One MatMul for the keys and values of cross-attention; fp16 only."""

    image_tokens: bool = True
    """Turn images into tokens by way of NHWC, so that Transposes cancel."""

    group_norm: bool = True
    """GroupNorm in the target's layout."""

    group_norm_silu: bool = True
    """SiLU behind GroupNorm and SkipGroupNorm as their activation."""

    skip_group_norm: bool = True
    """Sums in front of GroupNorm, time embeddings included, as SkipGroupNorm."""

    nhwc_conv: bool = True
    """Convolution in NHWC."""

    transposes: bool = True
    """Move Transposes between NHWC operators together, and cancel them."""

    skip_layer_norm: bool = True
    """Sums in front of LayerNormalization as SkipLayerNormalization."""

    bias_skip_layer_norm: bool = True
    """Biases in front of SkipLayerNormalization as its input."""

    quick_gelu: bool = True
    """QuickGelu: the activation of CLIP-L and the vision tower."""

    fast_gelu: bool = False
    """The tanh approximation of Gelu: faster on some devices, wrong by up to 1e-3."""

    bias_gelu: bool = True
    """Gelu with its bias: the activation of OpenCLIP."""

    bias_split_gelu: bool = True
    """GEGLU with its bias, where the target runs its width."""

    bias_add: bool = True
    """Bias and residual in one addition, where the target runs its width."""

    cleanup: bool = True
    """Constant shapes in place of computed ones; repeated and idle operators removed."""

    def followers(self, target: Target) -> tuple[str, ...]:
        """In half precision, what converts to it: packed attention has no float32 kernel."""
        from olivelike.graphs.precision.policy import HALF_PASSES

        half = HALF_PASSES.get(self.precision or target.precision)
        return (half,) if half else ()

    def run(self, model: Model, context: Context) -> Model:
        """Apply the rules in order, then lower what the target can't read; record what was left and why."""
        from olivelike.errors import PassError
        from olivelike.graphs.fusion import fuse
        from olivelike.graphs.fusion.rules import RULES
        from olivelike.graphs.precision.policy import HalfPolicy, half_policy
        from olivelike.model import Graph
        from olivelike.model.half_values import HALVES

        assert model.graph is not None
        assert context.target is not None
        graph = model.graph.to_ir()
        if any(value.dtype in HALVES for node in graph.graph for value in node.outputs):
            raise PassError("fuse: the graph is in half precision already; put `fuse` before that step")
        unknown = [
            value.name
            for node in graph.graph
            for value in node.outputs
            if (value.dtype is None or value.shape is None) and value.uses()
        ]
        if unknown:
            raise PassError(
                f"fuse: the type or shape of {unknown[0]!r} and {len(unknown) - 1} other values is unknown, since "
                "operators of another domain compute them; leave `fuse` out of this chain"
            )
        switches = {rule.name: getattr(self, rule.name) for rule in RULES}
        policy = (
            half_policy(model.architecture) if self.known_overflows and model.architecture else HalfPolicy()
        )
        precision = "fp32" if policy.whole else self.precision
        single = (*self.force_fp32, *policy.operators)
        context.facts.update(fuse(graph, context.target, switches, precision, single))
        return model.replace(graph=Graph.from_ir(graph))

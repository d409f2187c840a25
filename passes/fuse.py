"""`fuse`: rewrite a graph into the fused operators that the target runs."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, create_model

from olivelike.pass_api import Context, Pass, Resources

if TYPE_CHECKING:
    from olivelike.model import Model
    from olivelike.pass_api import Rule

_KNOWN = "it is known from the steps behind this one; remove it"


class Fuse(Pass):
    """Fuse attention, norms, convolutions and activations for the target; run it before `float16` or `bfloat16`.

    Each option switches the rule of its name. What the graph will be computed in is known from the steps behind.
    """

    reads: ClassVar = ("architecture", "graph", "target", "precision")
    writes: ClassVar = ("graph",)
    optional: ClassVar = ("architecture",)
    comes_before: ClassVar = ("float16", "bfloat16", "weights8", "weights4", "int8", "fp8", "deepcache")
    removed_options: ClassVar = MappingProxyType(dict.fromkeys(("precision", "force_fp32", "known_overflows"), _KNOWN))
    resources: ClassVar = Resources(memory_bytes=300 << 20)
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules that plugins add."""

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

    tanh_gelu: bool = True
    """Gelu with tanh in one operator where it is spelled out: the activation of T5."""

    fast_gelu: bool = False
    """The tanh approximation of Gelu: faster on some devices, wrong by up to 1e-3."""

    bias_gelu: bool = True
    """Gelu with its bias: the activation of OpenCLIP, and with tanh of FLUX.1."""

    bias_split_gelu: bool = True
    """GEGLU with its bias, where the target runs its width."""

    bias_add: bool = True
    """Bias and residual in one addition, where the target runs its width."""

    cleanup: bool = True
    """Constant shapes in place of computed ones; repeated and idle operators removed."""

    write_avoided: tuple[str, ...] = ()
    """Operators to write although the target avoids them: MultiHeadAttention and Attention of `webgpu`, which are wrong
    on Vulkan, where every device has Direct3D or Metal."""

    @classmethod
    def with_rules(cls, rules: Sequence[Rule]) -> type[Fuse]:
        """Return the pass with more rules, each an option of its name beside those of the built-in ones."""
        options: dict[str, Any] = {rule.name: (bool, Field(rule.default, description=rule.matches)) for rule in rules}
        found = create_model(cls.__name__, __base__=cls, __doc__=cls.__doc__, __module__=__name__, **options)
        found.rules = (*cls.rules, *rules)
        return found

    def run(self, model: Model, context: Context) -> Model:
        """Apply the rules in order, then lower what the target can't read; record what was left and why."""
        from olivelike.errors import PassError
        from olivelike.families import half_policy
        from olivelike.families.family import HalfPolicy
        from olivelike.graphs.fusion import fuse
        from olivelike.model import Graph
        from olivelike.model.half_values import HALVES

        graph = model.require("graph").to_ir()
        target = context.require_target()
        if unavoided := sorted({*self.write_avoided} - target.avoided.keys()):
            raise PassError(
                f"fuse: write_avoided: {target.name} does not avoid {', '.join(unavoided)}; it avoids "
                f"{', '.join(target.avoided) or 'nothing'}"
            )
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
        plan, policy = context.precision, HalfPolicy()
        if plan.known_overflows and model.architecture is not None:
            policy = half_policy(model.architecture)
        context.report(
            **fuse(
                graph,
                target.without_avoiding(self.write_avoided),
                self.model_dump(exclude={"write_avoided"}),
                "fp32" if policy.whole else plan.precision,
                (*plan.float32_operators, *policy.operators),
                self.rules,
            )
        )
        return model.replace(graph=Graph.from_ir(graph))

"""All rules, in the order in which they run."""

from __future__ import annotations

from typing import Final

from olivelike.graphs.editing.cleanup import cleanup
from olivelike.graphs.fusion.attention import attention
from olivelike.graphs.fusion.attention_projections import attention_projections, packed_kv, packed_qkv
from olivelike.graphs.fusion.feed_forward import bias_add, bias_split_gelu
from olivelike.graphs.fusion.gelu import bias_gelu, fast_gelu, quick_gelu
from olivelike.graphs.fusion.group_norm import group_norm, group_norm_silu
from olivelike.graphs.fusion.layer_norm import bias_skip_layer_norm, skip_layer_norm
from olivelike.graphs.fusion.nhwc_conv import nhwc_conv
from olivelike.graphs.fusion.rule import Rule
from olivelike.graphs.fusion.skip_group_norm import skip_group_norm
from olivelike.graphs.fusion.tokens import image_tokens
from olivelike.graphs.fusion.transposes import transposes

RULES: Final = (
    Rule("attention", attention),
    Rule("attention_projections", attention_projections),
    Rule("packed_qkv", packed_qkv),
    Rule("packed_kv", packed_kv),
    Rule("image_tokens", image_tokens),
    Rule("group_norm", group_norm),
    Rule("group_norm_silu", group_norm_silu),
    Rule("skip_group_norm", skip_group_norm),
    Rule("nhwc_conv", nhwc_conv),
    Rule("transposes", transposes),
    Rule("skip_layer_norm", skip_layer_norm),
    Rule("bias_skip_layer_norm", bias_skip_layer_norm),
    Rule("quick_gelu", quick_gelu),
    Rule("fast_gelu", fast_gelu, default=False),
    Rule("bias_gelu", bias_gelu),
    Rule("bias_split_gelu", bias_split_gelu),
    Rule("bias_add", bias_add),
    Rule("cleanup", cleanup),
)
"""Image norms and convolutions come before `transposes`, which moves the Transposes of both.

Residual sums join a norm if they can, and BiasAdd takes the rest."""

"""All rules, in the order in which they run, and what applies them to a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import onnx
import onnx_ir as ir

from olivelike._untrusted import Json
from olivelike.errors import PassError, UsageError
from olivelike.graphs.editing.editor import GraphEditor
from olivelike.graphs.fusion.attention import attention
from olivelike.graphs.fusion.attention_projections import attention_projections, packed_kv, packed_qkv
from olivelike.graphs.fusion.feed_forward import bias_add, bias_gelu, bias_split_gelu, fast_gelu, quick_gelu, tanh_gelu
from olivelike.graphs.fusion.lowering import lower
from olivelike.graphs.fusion.norms import (
    bias_skip_layer_norm,
    group_norm,
    group_norm_silu,
    skip_group_norm,
    skip_layer_norm,
)
from olivelike.graphs.fusion.rule import Rule, Scope
from olivelike.graphs.fusion.tokens import image_tokens
from olivelike.graphs.fusion.transposes import cleanup, nhwc_conv, transposes
from olivelike.model.targets import Precision, Target

RULES: Final = (
    Rule(attention),
    Rule(attention_projections),
    Rule(packed_qkv),
    Rule(packed_kv),
    Rule(image_tokens),
    Rule(group_norm),
    Rule(group_norm_silu),
    Rule(skip_group_norm),
    Rule(nhwc_conv),
    Rule(transposes),
    Rule(skip_layer_norm),
    Rule(bias_skip_layer_norm),
    Rule(quick_gelu),
    Rule(tanh_gelu),
    Rule(fast_gelu, default=False),
    Rule(bias_gelu),
    Rule(bias_split_gelu),
    Rule(bias_add),
    Rule(cleanup),
)
"""Image norms and convolutions come before `transposes`, which moves the Transposes of both.

Residual sums join a norm if they can, and BiasAdd takes the rest."""


_SPOILED: Final = (PassError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of rules on a graph that is not valid."""


def fuse(
    model: ir.Model,
    target: Target,
    switches: Mapping[str, bool] | None = None,
    precision: Precision | None = None,
    float32_operators: Iterable[str] = (),
    more: Sequence[Rule] = (),
) -> Json:
    """Rewrite a weightless model for a target, in place.

    Raises `UsageError` when `switches` names no rule, or one of `more` runs before none, and `PassError` when a rule
    leaves a graph that is not valid, or the target can't read the result.

    Args:
        model: As `convert` makes it: opset 23, float32.
        switches: Rules to turn on or off, by name; the others keep their default.
        precision: What the graph will be computed in; the target's own by default.
        float32_operators: Operators that will stay in float32 all the same.
        more: Rules beside the built-in ones; each runs before the one that it names.

    Returns:
        Facts for the run record: node and operator counts before and after, what each rule wrote, and what it
        left and why.
    """
    rules = in_order(more)
    chosen = {rule.name: rule.default for rule in rules}
    unknown = sorted(set(switches or {}) - set(chosen))
    if unknown:
        raise UsageError(f"fuse: no rule {', '.join(unknown)}; there are {', '.join(chosen)}")
    chosen.update(switches or {})
    applied = (*(rule for rule in rules if chosen[rule.name]), Rule(lower))
    settings = target, precision or target.precision, frozenset(float32_operators)
    original = ir.to_proto(model)
    try:
        facts, editor = _apply(model, applied, settings, check_each=False)
        _check(editor, applied[-1].name)
    except _SPOILED:  # Once more, to find the rule that did it: others may fail on what it left.
        _apply(ir.from_proto(original), applied, settings, check_each=True)
        raise
    return facts


def _apply(
    model: ir.Model, rules: Iterable[Rule], settings: tuple[Target, Precision, frozenset[str]], *, check_each: bool
) -> tuple[Json, GraphEditor]:
    """Apply rules to a model, in place; return the facts of `fuse`, and the editor that has the model now."""
    editor = GraphEditor(model)
    before = _operator_counts(editor)
    fused: dict[str, dict[str, int]] = {}
    left: dict[str, dict[str, int]] = {}
    for rule in rules:
        scope = Scope(editor, *settings)
        rule.apply(scope)
        if scope.fused or rule.apply is lower:
            _check_values(editor, rule.name)
            if check_each:
                _check(editor, rule.name)
        for found, counts in ((fused, scope.fused), (left, scope.left)):
            if counts:
                found[rule.name] = dict(sorted(counts.items()))
    after = _operator_counts(editor)
    return {
        "nodes_before": sum(before.values()),
        "nodes_after": sum(after.values()),
        "operators_before": before,
        "operators_after": after,
        "fused": fused,
        "left": left,
    }, editor


def in_order(more: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the built-in rules with others between them.

    Raises `UsageError` when one has the name of another, or runs before none that is there.
    """
    rules = list(RULES)
    for rule in more:
        names = [known.name for known in rules]
        if rule.name in names:
            raise UsageError(f"fuse: two rules are called {rule.name}; rename the function of one")
        if rule.before not in names:
            raise UsageError(
                f"fuse: rule {rule.name} runs before {rule.before!r}, which is no rule; there are {', '.join(names)}"
            )
        rules.insert(names.index(rule.before), rule)
    return tuple(rules)


def _operator_counts(editor: GraphEditor) -> dict[str, int]:
    """Count the operators that run: what derives weights is evaluated beforehand and does not count."""
    running = (node for node in editor.graph if node.outputs[0] not in editor.weights)
    counts = Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in running)
    return dict(sorted(counts.items()))


def _check_values(editor: GraphEditor, rule: str) -> None:
    """Check that a rule left no value without type and shape."""
    for node in editor.graph:
        for value in node.outputs:
            if value.name and (value.dtype is None or value.shape is None):
                raise PassError(f"fuse: rule {rule} left {value.name!r} of {node.op_type} without type or shape")


def _check(editor: GraphEditor, rule: str) -> None:
    """Check that a rule left a valid graph, whose types and shapes agree with ONNX's own inference."""
    editor.import_contrib()
    proto = ir.to_proto(editor.model)
    try:
        # With `full_check` it also runs strict inference, and does not send the graph back.
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise PassError(
            f"fuse: rule {rule} left a graph that is not valid: {error}; report it, and leave the rule out meanwhile"
        ) from error

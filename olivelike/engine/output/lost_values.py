"""Values of weights that an output could not keep, in words: a sentence per kind, with the worst tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike._text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from olivelike._untrusted import JsonView
    from olivelike.engine.output.expressions import Expression

TOLD: Final = {
    "not_finite": ("infinite or NaN, and so is what it computes", "mend what made them, or get the file again"),
    "saturated": (
        "too large for half precision, and became its largest number, 65,504 in fp16",
        "`precision: fp32` keeps them",
    ),
}
"""Words for some of `LOST`: what the values are, and what to do. Values near zero are no loss."""
_SHOWN: Final = 3
"""Tensors that a sentence names."""
_MOVING: Final = {
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators that compute nothing."""


def lost_values(component: str, kind: str, facts: JsonView, made_by: Callable[[str], str] = lambda _: "") -> str | None:
    """Return a sentence about values of a component's weights; `None` if there are none of this kind.

    Args:
        component: Whose weights they are.
        kind: One of `TOLD`.
        facts: How many values each initializer has of each kind, as a `ComponentRecord` has them; and `derivations`,
            if known.
        made_by: Returns who gave a parameter its values, such as `pass merge_lora`, or nothing.
    """
    counts: Mapping[str, int] = facts.get(kind) or {}
    if not counts:
        return None
    (are, remedy), derivations = TOLD[kind], facts.get("derivations", {})
    total = sum(counts.values())
    values = "1 value of its weights is" if total == 1 else f"{total:,} values of its weights are"
    worst = sorted(counts, key=lambda name: -counts[name])
    told = [_tensor(name, counts[name], derivations.get(name), made_by) for name in worst[:_SHOWN]]
    return f"{component}: {values} {are}: {listed([*told, *worst[_SHOWN:]], _SHOWN)}; {remedy}"


def _tensor(name: str, count: int, expression: Expression | None, made_by: Callable[[str], str]) -> str:
    """Return a tensor with how many values it has, and where they come from."""
    from olivelike.engine.output.expressions import operators, parameters

    makers = dict.fromkeys(made_by(parameter) for parameter, _ in parameters(expression))
    computed = ", ".join(dict.fromkeys(name for name in operators(expression) if name not in _MOVING))
    origin = [*filter(None, makers), *([f"by {computed} of the graph"] if computed else [])]
    return f"{name} ({', '.join([f'{count:,}', *origin])})"

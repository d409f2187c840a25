"""The graphs beside a UNet's own, over its weights, for what leads it: one for each kind, and for those together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from olivelike.graphs.adapted import add_feature_inputs, unmark_adapted
from olivelike.graphs.controlled import add_residual_inputs, unmark_controlled
from olivelike.graphs.image_prompt import remove_image_prompt, takes_image_prompt
from olivelike.graphs.shallow import remove_cached_features
from olivelike.model.families import LEADERS, led_file

if TYPE_CHECKING:
    import onnx_ir as ir


def led_unets(model: ir.Model) -> Iterator[tuple[str, ir.Model]]:
    """Make a UNet's graph, in place, the plain one; return the files to write beside it, each with its graph."""
    controlled, adapted = unmark_controlled(model), unmark_adapted(model)
    shown = model.clone() if takes_image_prompt(model) else None
    remove_image_prompt(model)
    there = [leader for leader, is_there in zip(LEADERS, (controlled, adapted, shown), strict=True) if is_there]

    def made() -> Iterator[tuple[str, ir.Model]]:
        for count in range(1, len(there) + 1):
            for leaders in combinations(there, count):
                controls, features, attends = (leader in leaders for leader in LEADERS)
                led = (shown if shown is not None and attends else model).clone()
                remove_cached_features(led)
                if features and adapted is not None:
                    add_feature_inputs(led, adapted)
                yield led_file(leaders), add_residual_inputs(led) if controls else led

    return made()

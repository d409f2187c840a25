"""A network whose layers take the factors of LoRAs as inputs: made of a written graph, over its weights.

A layer y = x·W becomes y = x·W + strength · (x·down)·up, or y = x·(W + strength · down·up) where that is cheaper. The
inputs have values of their own, of rank 0, so that who feeds none gets the plain network; ONNX Runtime calls them
overridable initializers, and its adapters (`RunOptions.add_active_adapter`) feed them by name. What is computed of
factors is in branches that are taken if there are any, which their sizes tell: there is nothing else to feed, and so
nothing to forget. Where a client can't feed such inputs, they have no values.

| module | holds |
| --- | --- |
| `layer_choice` | which layers take factors, and the mark of a graph that is to have such a one |
| `layer_factors` | the inputs of a layer |
| `taking_factors` | the whole: the way of each layer, and whether there are factors |
| `merging` | the way of few features and many rows: the weight takes the change |
| `in_users` | the way of other products: what takes x·W is in two branches, with the change and without |
| `adding` | the way of convolutions and the like: the change is added, and a 0 where there is none |
| `widening` | the way of the operator that projects and attends |
| `branches`, `sums` | what these are made of |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.graphs.low_rank.layer_choice import Choice, LowRankLayer, low_rank_layers, mark, take_mark
    from olivelike.graphs.low_rank.taking_factors import add_low_rank_inputs

__all__ = ["Choice", "LowRankLayer", "add_low_rank_inputs", "low_rank_layers", "mark", "take_mark"]

__getattr__ = names_from(__name__, __file__)

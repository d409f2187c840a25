"""The shallow part of a UNet, for DeepCache (https://arxiv.org/abs/2312.00858).

Of one step to the next, deep layers change little. So some steps run only the last layers of the way up, on what the
layers before them made in an earlier step: those are cut out of the whole graph, over the same weights.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.graphs.editing.editor import remove_unused
from olivelike.graphs.editing.values import required
from olivelike.graphs.joints import joints_of, named_shape
from olivelike.model.components import CACHED_FEATURES

_MARK: Final = "olivelike.cached_features"
"""Metadata key of a model with a shallow part; its value is the branch."""
_SAMPLE, _PREDICTION = "sample", "out_sample"


def add_cached_features(model: ir.Model, branch: int) -> dict[str, int]:
    """Give a UNet's graph the output `cached_features`, in place: what goes up into the layers that stay.

    A UNet's way up has one layer per connection from the way down, where the two are joined. `branch` counts them from
    the last one, as DeepCache does: those above it stay. Raises `PassError` if there is no such layer. Returns how many
    operators the whole graph has, and its shallow part.
    """
    graph = model.graph
    joints = joints_of(graph)
    if not joints:
        raise PassError("deepcache: the graph has no connections from its way down to its way up; it is no UNet")
    if branch >= len(joints):
        raise PassError(
            f"deepcache: branch {branch} is beyond the {len(joints)} layers up; take 0 to {len(joints) - 1}"
        )
    features = required(joints[-1 - branch], 0)
    if features.is_graph_output() or CACHED_FEATURES in {value.name for value in graph.outputs}:
        raise PassError("deepcache: the graph has such an output already; drop the step, or convert the network anew")
    features.name = CACHED_FEATURES
    graph.outputs.append(features)
    model.metadata_props[_MARK] = str(branch)
    return {"operators": len(graph), "shallow_operators": len(cut_shallow(model.clone()).graph)}


def remove_cached_features(model: ir.Model) -> bool:
    """Take the output away again, for clients that want one; tell whether there was one."""
    if model.metadata_props.pop(_MARK, None) is None:
        return False
    kept = [value for value in model.graph.outputs if value.name != CACHED_FEATURES]
    model.graph.outputs.clear()
    model.graph.outputs.extend(kept)
    return True


def has_cached_features(model: ir.Model) -> bool:
    """Tell whether a graph has a shallow part."""
    return _MARK in model.metadata_props


def cut_shallow(model: ir.Model) -> ir.Model:
    """Reduce a graph, in place, to its shallow part: `cached_features` becomes an input, and return it.

    Height and width of that input are named after those of `sample`: `unet_sample_height`, or `unet_sample_height/2`
    for half of it, rounded up.
    """
    graph = model.graph
    output = next(value for value in graph.outputs if value.name == CACHED_FEATURES)
    features = output
    # A layout or a change of precision may have put a `Cast` behind it.
    while not features.uses() and (node := features.producer()) is not None and node.inputs[0] is not None:
        features = node.inputs[0]
    sample = next(value for value in graph.inputs if value.name == _SAMPLE)
    kept = [value for value in graph.outputs if value.name == _PREDICTION]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    output.name = f"{CACHED_FEATURES}.inner"
    fed = ir.Value(name=CACHED_FEATURES, shape=named_shape(features.shape, sample.shape), type=features.type)
    features.replace_all_uses_with(fed)
    remove_unused(graph, lambda _: False)
    graph.inputs.append(fed)
    return model

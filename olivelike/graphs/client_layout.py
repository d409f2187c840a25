"""Give a graph the inputs and outputs of a layout; what lies between stays as it is.

Types change by a `Cast` at the border, the rank of `timestep` by a `Reshape`. Names are those of
`olivelike.families.networks`, which graphs of other exporters may lack.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from olivelike.errors import PassError
from olivelike.families import DENOISERS, FAMILIES, TEXT_ENCODERS
from olivelike.graphs.editing.values import evaluate, renamed, spaced, type_of
from olivelike.graphs.guided_graphs import remove_guide
from olivelike.graphs.shallow import remove_cached_features
from olivelike.model.client_layouts import DEFAULT, Layout
from olivelike.model.graph import parameter_inputs, real_inputs
from olivelike.model.guides import GUIDE_COMPONENTS, GUIDES, STRENGTH

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_DTYPES: Final = {
    "float32": ir.DataType.FLOAT,
    "float64": ir.DataType.DOUBLE,
    "float16": ir.DataType.FLOAT16,
    "int32": ir.DataType.INT32,
    "int64": ir.DataType.INT64,
}
_UNET_INPUTS: Final = ("sample", "timestep", "encoder_hidden_states")
_SAMPLES: Final = {
    name: tuple(dict.fromkeys(family.sample for family in FAMILIES.values() if family.denoiser == name))
    for name in DENOISERS
}
"""Denoiser → names that its input for the latents has, by family."""
_INPUTS: Final = {
    **dict.fromkeys(TEXT_ENCODERS, ("input_ids",)),
    **{name: (samples[0], *_UNET_INPUTS[1:]) for name, samples in _SAMPLES.items()},
    **{
        component: _UNET_INPUTS if kind.in_each_step else (kind.picture,)
        for kind in GUIDES.values()
        for component in kind.components
    },
    "vae_encoder": ("sample",),
    "vae_decoder": ("latent_sample",),
    "preview_decoder": ("latent_sample",),
    "safety_checker": ("clip_input", "images"),
}
"""Inputs that clients feed by name, or in this order."""
_FIRST_OUTPUTS: Final = {
    **dict.fromkeys(TEXT_ENCODERS, ("text_embeds", "last_hidden_state", "pooler_output")),
    **{name: tuple(f"out_{sample}" for sample in samples) for name, samples in _SAMPLES.items()},
    "vae_encoder": ("latent_sample",),
    "vae_decoder": ("sample",),
    "preview_decoder": ("sample",),
    "safety_checker": ("out_images", "has_nsfw_concepts"),
}
"""Outputs that clients take, by name or by position."""
_ONE_OUTPUT: Final = frozenset({*DENOISERS, "vae_decoder"})
"""Networks whose output is known by its place; that of a VAE encoder may be a latent or its distribution."""
_UNET_DIMS: Final = {
    "sample": ("unet_sample_batch", "unet_sample_channels", "unet_sample_height", "unet_sample_width"),
    "timestep": ("unet_time_batch",),
    "encoder_hidden_states": ("unet_hidden_batch", "unet_hidden_sequence", None),
}
"""Names by which clients fix the UNet's dynamic dimensions."""
_CHANNELS = "unet_sample_channels"
_IMAGES: Final = {**_SAMPLES, "vae_encoder": ("sample",), "vae_decoder": ("latent_sample",)}
"""By network the inputs with height and width."""
_PIXELS: Final = {
    **{one.latents.channels: one.latents.factor for one in FAMILIES.values()},
    **{
        one.latents.channels * one.latents.packing**2: one.latents.factor * one.latents.packing
        for one in FAMILIES.values()
        if one.latents.packing > 1
    },
}
"""Channels of such an input → pixels along a side of one of its latents, or of the squares that they are packed to."""
_USUAL_PIXELS: Final = 8
_IN_ROWS: Final = 3
"""Dimensions of latents that are packed, one after the other in a row."""


def lay_out(model: ir.Model, component: str, layout: Layout, size: tuple[int, int] | None = None) -> dict[str, int]:
    """Rewrite the border of a component's graph in place.

    Returns how many inputs and outputs have another type or rank, and how many another name. Raises `PassError` if the
    graph lacks an input that clients feed, the client can't feed one that it has, or the graph has no pictures of that
    size.

    Args:
        model: The graph.
        component: What it is.
        layout: What the client wants.
        size: Width and height in pixels to fix; by default they stay free.
    """
    graph = model.graph
    for kind in GUIDES.values():
        if layout.name not in kind.clients:
            remove_guide(model, kind)
    if layout.name != DEFAULT:
        remove_cached_features(model)  # Clients take all outputs, and none of them knows what to do with these.
    names = {value: value.name for value in (*graph.inputs, *graph.outputs)}
    _name_inputs(graph, component, layout)
    _name_outputs(graph, component)
    renamed = sum(value.name != name for value, name in names.items())
    changed = 0
    for value in real_inputs(graph):
        changed += _fit_input(graph, value, component, layout)
    for value in list(graph.outputs):
        wanted = _DTYPES[layout.floats] if layout.floats and value.dtype in _FLOATS else value.dtype
        if wanted is not None and wanted != value.dtype:
            _cast_output(graph, value, wanted)
            changed += 1
    if _is_unet(component):
        _name_dims(graph, layout)
    if size is not None:
        _fix_size(graph, component, size)
    if layout.spaced_formulas:
        for value in graph.outputs:
            _space_formulas(value)
    return {"cast": changed, "renamed": renamed}


def _is_unet(component: str) -> bool:
    """Tell whether clients call a component as they do a UNet: transformers take a timestep for each row."""
    return _SAMPLES.get(component) == _UNET_INPUTS[:1]


def _name_inputs(graph: ir.Graph, component: str, layout: Layout) -> None:
    """Put the inputs that clients feed first, in order; an only input gets its name."""
    given = real_inputs(graph)
    wanted: tuple[str, ...] = _INPUTS.get(component, ())
    if len(given) == len(wanted) == 1:
        given[0].name = wanted[0]
    by_name = {value.name: value for value in given}
    if component in DENOISERS:
        wanted = (next((name for name in _SAMPLES[component] if name in by_name), wanted[0]), *wanted[1:])
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise PassError(
            f"layout: the graph of {component} has no input {missing[0]!r}, which clients feed; it has "
            f"{', '.join(map(str, by_name))}; export it anew with `convert`"
        )
    extra = [name for name in by_name if name not in wanted]
    if extra and component in DENOISERS and layout.only_unet_inputs:
        raise PassError(
            f"layout {layout.name}: the UNet has an input {extra[0]!r}, which this client does not feed: it knows "
            "pipelines of SD 1.x and 2.x alone; choose another layout"
        )
    parameters = list(parameter_inputs(graph).values())
    ordered = [by_name[name] for name in (*wanted, *extra)]
    if ordered != given:
        graph.inputs.clear()
        graph.inputs.extend([*ordered, *parameters])


def _name_outputs(graph: ir.Graph, component: str) -> None:
    """Put the outputs that clients take first, in order; an only output gets its name where there is but one."""
    wanted = _FIRST_OUTPUTS.get(component, ())
    given: list[ir.Value] = list(graph.outputs)
    if len(given) == 1 and component in _ONE_OUTPUT and given[0].name not in wanted:
        given[0].name = wanted[0]
    by_name = {value.name: value for value in given}
    first = [by_name[name] for name in wanted if name in by_name]
    ordered = [*first, *(value for value in given if value.name not in wanted)]
    if ordered != given:
        graph.outputs.clear()
        graph.outputs.extend(ordered)


def _fit_input(graph: ir.Graph, value: ir.Value, component: str, layout: Layout) -> bool:
    """Give an input the type and rank that the client feeds; tell whether it had another."""
    graph_type, shape = type_of(value), value.shape
    dtype = graph_type
    is_timestep = component in DENOISERS and value.name == "timestep"
    if is_timestep and layout.timestep:
        dtype = _DTYPES[layout.timestep]
    elif component in GUIDE_COMPONENTS and value.name == STRENGTH:
        dtype = _DTYPES[layout.conditioning_scale]
    elif dtype in _FLOATS and layout.floats:
        dtype = _DTYPES[layout.floats]
    elif value.name == "input_ids":
        dtype = ir.DataType.INT32
    rank = 0 if layout.scalar_timestep and _is_unet(component) else 1
    other_rank = is_timestep and shape is not None and len(shape) != rank
    if dtype == value.dtype and not other_rank:
        return False
    outer = ir.Value(name=value.name, shape=shape, type=ir.TensorType(dtype))
    value.name = f"{value.name}.inner"
    inner = outer
    before = graph[0]
    if other_rank:
        outer.shape = ir.Shape([] if rank == 0 else ["unet_time_batch"])
        inner = _insert(graph, before, "Reshape", [outer, _sizes(graph, [1] if rank == 0 else [])], value)
        inner.dtype = dtype
    if dtype != graph_type:
        inner = _insert(graph, before, "Cast", [inner], value)
    inner.dtype = graph_type
    ir.convenience.replace_all_uses_with(value, inner, replace_graph_outputs=True)
    position = next(index for index, other in enumerate(graph.inputs) if other is value)
    graph.inputs[position] = outer
    return True


def _insert(graph: ir.Graph, before: ir.Node, operator: str, inputs: Sequence[ir.Value], like: ir.Value) -> ir.Value:
    """Insert a node whose output has the shape of `like`, and its type if it is a `Cast`."""
    attributes = {"to": int(type_of(like))} if operator == "Cast" else {}
    node = ir.node(operator, inputs, attributes, name=f"{inputs[0].name}/{operator.lower()}")
    output = node.outputs[0]
    output.name, output.shape = f"{inputs[0].name}.{operator.lower()}", like.shape
    graph.insert_before(before, node)
    return output


def _sizes(graph: ir.Graph, sizes: Sequence[int]) -> ir.Value:
    value = ir.Value(name="timestep.sizes", const_value=ir.tensor(np.array(sizes, np.int64)))
    value.shape, value.dtype = ir.Shape([len(sizes)]), ir.DataType.INT64
    graph.register_initializer(value)
    return value


def _cast_output(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> None:
    """Put a `Cast` behind an output, under the output's name."""
    name = value.name
    value.name = f"{name}.inner"
    node = ir.node("Cast", [value], {"to": int(dtype)}, name=f"{name}/cast")
    outer = node.outputs[0]
    outer.name, outer.shape, outer.dtype = name, value.shape, dtype
    graph.append(node)
    position = next(index for index, other in enumerate(graph.outputs) if other is value)
    graph.outputs[position] = outer


def _name_dims(graph: ir.Graph, layout: Layout) -> None:
    """Name the UNet's dynamic dimensions as clients do that fix them; a number stays one, but for channels."""
    found: dict[str, str] = {}
    for value in real_inputs(graph):
        names = _UNET_DIMS.get(value.name or "")
        if names is None or value.shape is None or len(names) != len(value.shape):
            continue
        dims: list[int | str | ir.SymbolicDim | None] = list(value.shape)
        for axis, name in enumerate(names):
            dim = dims[axis]
            wanted = layout.named_channels if name == _CHANNELS else isinstance(dim, ir.SymbolicDim)
            if name is None or not wanted:
                continue
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                found.setdefault(dim.value, name)
            dims[axis] = name
        value.shape = ir.Shape(dims)
    changed = {old: new for old, new in found.items() if old != new}
    if not changed:
        return
    for value in (value for node in graph for value in node.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([_in_names(dim, changed) for dim in value.shape])


def _fix_size(graph: ir.Graph, component: str, size: tuple[int, int]) -> None:
    """Put numbers in the place of height and width, and of what is computed of them."""
    numbers: dict[str, str] = {}
    for value in real_inputs(graph):
        if value.name not in _IMAGES.get(component, ()) or value.shape is None:
            continue
        in_rows = len(value.shape) == _IN_ROWS
        channels = value.shape[-1 if in_rows else 1]
        known = _PIXELS.get(channels, _USUAL_PIXELS) if isinstance(channels, int) else _USUAL_PIXELS
        unit = 1 if component == "vae_encoder" else known
        is_whole = not (size[0] % unit or size[1] % unit)
        width, height = (side / unit for side in size)
        for axis, count in [(-2, width * height)] if in_rows else [(-1, width), (-2, height)]:
            dim = value.shape[axis]
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None and is_whole:
                numbers[dim.value] = str(int(count))
            elif dim != count or not is_whole:
                raise PassError(
                    f"layout: {component} makes no pictures of size {size[0]}x{size[1]}: sides are multiples of "
                    f"{unit}, and its input {value.name} has the shape {value.shape}"
                )
    for value in (*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)):
        if numbers and value.shape is not None:
            value.shape = ir.Shape([_in_numbers(dim, numbers) for dim in value.shape])


def _in_numbers(dim: int | ir.SymbolicDim, numbers: dict[str, str]) -> int | str | None:
    formula, no_sizes = _in_names(dim, numbers), dict[str, int]()
    if isinstance(formula, str):
        with contextlib.suppress(ValueError, KeyError):
            return evaluate(formula, no_sizes.__getitem__)
    return formula


def _in_names(dim: int | ir.SymbolicDim, names: dict[str, str]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return None if dim.value is None else renamed(dim.value, names)


def _space_formulas(value: ir.Value) -> None:
    """Write `8*height` as `8* height`: optimum splits at spaces to put sizes in place of names."""
    if value.shape is not None:
        value.shape = ir.Shape(
            [dim if isinstance(dim, int) or dim.value is None else spaced(dim.value) for dim in value.shape]
        )

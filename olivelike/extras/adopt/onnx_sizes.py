"""Shapes of all values of a graph, with names for sizes that are open: equal names mean equal sizes.

ONNX's own inference loses an open size at the first Reshape whose shape is computed, as TorchScript's exporter
writes them. So the graph is inferred for a few sets of fixed inputs, where nothing is lost, and two sizes count as
equal if they are equal in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import onnx
import onnx_ir as ir
from onnxscript import optimizer

from olivelike.errors import PassError
from olivelike.graphs.editing.values import attribute, dims_of, required
from olivelike.graphs.functions import with_functions
from olivelike.model.graph import real_inputs

Sizes = tuple[int, ...]
"""A size in each of the samples."""

_BATCHES: Final = (2, 3, 7)
_ONE_OR_BATCH: Final = (1, 3, 1)
"""Vectors, such as timesteps, may have one element for the whole batch."""
_LENGTHS: Final = ((11, 18, 30), (13, 29, 38), (17, 26, 12), (31, 20, 25))
"""Below 77, the positions that CLIP knows."""
_SIDES: Final = ((37, 52, 58), (41, 34, 66), (47, 62, 46), (53, 74, 38))
_GRAINS: Final = (1, 8, 64)
"""Networks with skip connections take multiples only."""
_FACTORS: Final = (2, 4, 8, 16, 32, 64)
_OWN_NAME = "size_"
_ROUNDS = 8
_SMALL = 64


def infer_sizes(model: ir.Model) -> bool:
    """Set type and shape of every value for which they can be told, in place.

    An open size has the name of the input's dimension that it always equals, a formula of one (`8*height`), or a
    name of its own. Returns whether open sizes are known; if not, shapes are what ONNX's inference says.
    """
    _fix_channels(model.graph)
    _name_input_sizes(model.graph)
    plain = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(_stated(model)), data_prop=True))
    inferred = {value.name: value for value in _outputs(plain.graph)}
    for value in _outputs(model.graph):
        found = inferred.get(value.name)
        if found is not None and found.dtype is not None:
            value.type = found.type
            value.shape = value.shape if found.shape is None else found.shape
    samples = _sample(model)
    if samples is None:
        return False
    symbols, shapes = samples
    names = {sizes: name for name, sizes in reversed(symbols.items())}
    for value in _outputs(model.graph):
        sizes = shapes.get(value.name or "")
        if sizes is not None:
            value.shape = ir.Shape([_named(size, names) for size in sizes])
    return True


def _fix_channels(graph: ir.Graph) -> None:
    """Put a number where an image's channels are declared open, though a convolution decides on them."""
    for value in real_inputs(graph):
        dims = list(dims_of(value))
        for node, index in value.uses():
            weight = dims_of(required(node, 1)) if node.op_type == "Conv" and index == 0 else ()
            if len(dims) == len(weight) and not isinstance(dims[1], int) and isinstance(weight[1], int):
                dims[1] = weight[1] * int(attribute(node, "group", 1))
                value.shape = ir.Shape(dims)


def _name_input_sizes(graph: ir.Graph) -> None:
    """Give each open size of an input a name; a vector's own, as it may have one element for a whole batch."""
    taken: set[str] = set()
    for value in sorted(real_inputs(graph), key=lambda value: len(value.shape or ()), reverse=True):
        if value.shape is None:
            continue
        vector = len(value.shape) == 1
        dims = [
            dim if isinstance(dim, int) or (dim and not (vector and dim in taken)) else f"{value.name}_{axis}"
            for axis, dim in enumerate(dims_of(value))
        ]
        value.shape = ir.Shape(dims)
        taken |= {dim for dim in dims if isinstance(dim, str)}


def _sample(model: ir.Model) -> tuple[dict[str, Sizes], dict[str, list[Sizes]]] | None:
    """Return the sizes of names and the shapes of values in all samples."""
    stated = _stated(model)
    for value in _outputs(stated.graph):
        value.shape = None
    open_sizes = ir.to_proto(stated)
    for grain in _GRAINS:
        symbols = _symbols(model.graph, grain)
        samples = []
        for index in range(len(_BATCHES) if symbols else 1):
            shapes = _shapes(open_sizes, {name: sizes[index] for name, sizes in symbols.items()})
            if shapes is None:
                break
            samples.append(shapes)
        else:
            return symbols, _together(samples)
    return None


def _together(samples: Sequence[Mapping[str, Sizes]]) -> dict[str, list[Sizes]]:
    """Return per value its sizes in all samples, axis by axis; values that one sample lacks are left out."""
    first, *others = samples
    return {
        name: list(zip(shape, *(sample[name] for sample in others), strict=True))
        for name, shape in first.items()
        if all(name in sample and len(sample[name]) == len(shape) for sample in others)
    }


def _symbols(graph: ir.Graph, grain: int) -> dict[str, Sizes]:
    """Choose sizes for the names of the inputs' dimensions: one batch for all, the others without relation."""
    symbols: dict[str, Sizes] = {}
    lengths, sides = iter(_LENGTHS), iter(_SIDES)
    for value in real_inputs(graph):
        dims = dims_of(value)
        for axis, dim in enumerate(dims):
            if not isinstance(dim, str) or dim in symbols:
                continue
            if axis == 0:
                symbols[dim] = _ONE_OR_BATCH if len(dims) == 1 else _BATCHES
            elif len(dims) == len(("batch", "channels", "height", "width")):
                symbols[dim] = tuple(grain * side for side in next(sides, _SIDES[0]))
            else:
                symbols[dim] = next(lengths, _LENGTHS[0])
    return symbols


def _shapes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Sizes] | None:
    """Return the shape of every value for inputs of fixed sizes; `None` if the graph does not take them."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]
    shapes: dict[str, Sizes] = {}
    for _ in range(_ROUNDS):
        try:
            proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError:
            return None
        known = _known(proto.graph)
        if known.keys() <= shapes.keys():
            break
        shapes |= known
        if all(name in shapes for node in proto.graph.node for name in node.output if name):
            break
        fixed = ir.from_proto(proto)
        optimizer.fold_constants(fixed, onnx_shape_inference=False, should_fold=should_fold)
        proto = ir.to_proto(fixed)
    return shapes


def _known(graph: onnx.GraphProto) -> dict[str, Sizes]:
    """Return the shapes of the values that nodes make, as far as they are numbers."""
    made = {name for node in graph.node for name in node.output if name}
    found = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if value.name in made and tensor.HasField("shape"):
            dims = tensor.shape.dim
            if all(dim.HasField("dim_value") for dim in dims):
                found[value.name] = tuple(dim.dim_value for dim in dims)
    return found


def should_fold(node: ir.Node) -> bool | None:
    """Tell the folder to fold short constants of computed size, such as paddings, which it leaves alone."""
    if node.op_type != "ConstantOfShape" or node.inputs[0] is None or node.inputs[0].const_value is None:
        return None
    sizes = node.inputs[0].const_value.numpy()
    return True if sizes.size == 1 and sizes.prod() <= _SMALL else None


def _stated(model: ir.Model) -> ir.Model:
    """Return a copy that inference understands: fused operators are functions, which it looks into."""
    try:
        copy = with_functions(model, all=True)
    except PassError:
        copy = model.clone()
    for node in copy.graph:
        if node.op_type == "GroupNormalization" and not node.domain:
            # ONNX has no inference for it; any operator that keeps type and shape stands in.
            node.op_type = "Relu"
            node.resize_inputs(1)
            node.attributes.clear()
    return copy


def _named(sizes: Sizes, names: dict[Sizes, str]) -> int | str:
    """Return a size that is the same in all samples, or the name or formula of an open one."""
    if len(set(sizes)) == 1 and sizes not in names:
        return sizes[0]
    if sizes not in names:
        names[sizes] = _formula(sizes, names) or f"{_OWN_NAME}{len(names)}"
    return names[sizes]


def _formula(sizes: Sizes, names: Mapping[Sizes, str]) -> str | None:
    """Return a size as a multiple or a part of an input's."""
    for factor in _FACTORS:
        for known, name in names.items():
            if not name.isidentifier() or name.startswith(_OWN_NAME):
                continue
            if all(base * factor == size for base, size in zip(known, sizes, strict=True)):
                return f"{factor}*{name}"
            if all(base // factor == size for base, size in zip(known, sizes, strict=True)):
                return f"{name}//{factor}"
    return None


def _outputs(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        yield from node.outputs

"""A pass's word on tensors, held against the network that it was given: names, shapes, types and places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.errors import PassError
from olivelike.model.graph import PARAMETER_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir as ir

    from olivelike.model import Graph, Tensor, Weights
    from olivelike.pass_api import Pass

    Said = tuple[tuple[int, ...], str]
    """Shape and type of a tensor."""

_HINT = "keep it, or write the graph or the architecture with the weights, and name them in `writes`"


def check_weights(name: str, instance: Pass, before: Weights | None, after: Weights, graph: Graph | None) -> None:
    """Refuse a table of weights that no longer fits its network.

    Where the pass writes the graph too, that decides; where it writes the architecture, nobody knows yet. Raises
    `PassError` with the pass, the parameter, and how it differs.
    """
    if "graph" in instance.writes and graph is not None:
        wanted = _parameters(graph)
    elif before is not None and not {"graph", "architecture"} & set(instance.writes):
        wanted = {parameter: _of_tensor(tensor) for parameter, tensor in before.items()}
    else:
        return
    for parameter, said in wanted.items():
        if parameter not in after:
            raise PassError(f"pass {name} returned no parameter {parameter!r}, which the network has; {_HINT}")
        _check_same(f"pass {name} returned {parameter!r}", _of_tensor(after[parameter]), said)


def check_parameters(name: str, before: Graph, after: Graph) -> None:
    """Refuse a graph that takes parameters in another shape or type than before, whose weights stay what they were.

    Raises `PassError` with the pass, the parameter, and how it differs.
    """
    known = _parameters(before)
    for parameter, said in _parameters(after).items():
        if parameter in known:
            _check_same(f"pass {name} returned a graph that takes {parameter!r}", said, known[parameter])


def check_places(
    name: str, before: Weights | None, after: Weights, written: Mapping[str, int], size: Callable[[str], int | None]
) -> None:
    """Refuse tensors of which a file has more or fewer bytes than shape and type say.

    Raises `PassError` with the pass and the parameter.

    Args:
        name: Of the pass.
        before: Weights that it was given; what it left alone is not looked at.
        after: Weights that it returned.
        written: Size of each tensor that it wrote, by digest.
        size: Returns that of another file; `None` if nobody knows the digest.
    """
    for parameter, tensor in after.items():
        if before is not None and before.get(parameter) == tensor:
            continue
        end, held = tensor.offset + tensor.nbytes, written.get(tensor.file)
        if held is None and (held := size(tensor.file)) is None:
            raise PassError(
                f"pass {name} returned {parameter!r} in a file that nobody has, {tensor.file[:12]!r}; return what "
                "`context.tensors.write` gives"
            )
        if end > held or (tensor.file in written and end < held):
            raise PassError(
                f"pass {name} returned {parameter!r} as {tensor.dtype} of shape {tensor.shape}, which ends at byte "
                f"{end:,} of a file of {held:,}; return what `context.tensors.write` gives"
            )


def _check_same(what: str, found: Said, wanted: Said) -> None:
    if found[0] != wanted[0]:
        raise PassError(f"{what} with the shape {found[0]}, and the network has {wanted[0]}; {_HINT}")
    if found[1] != wanted[1]:
        raise PassError(f"{what} as {found[1]}, and the network has {wanted[1]}; {_HINT}")


def _of_tensor(tensor: Tensor) -> Said:
    import numpy as np
    import onnx_ir as ir

    from olivelike.model.tensor_file import DTYPES

    numpy = DTYPES.get(tensor.read_dtype)
    return tensor.shape, tensor.dtype if numpy is None else _type(ir.DataType.from_numpy(np.dtype(numpy)))


def _parameters(graph: Graph) -> dict[str, Said]:
    import onnx
    import onnx_ir as ir

    found: dict[str, Said] = {}
    for value in onnx.load_model_from_string(graph.data).graph.input:
        marks = {entry.key: entry.value for entry in value.metadata_props}
        if PARAMETER_KEY in marks:
            tensor = value.type.tensor_type
            shape = tuple(size.dim_value for size in tensor.shape.dim)
            found[marks[PARAMETER_KEY]] = shape, _type(ir.DataType(tensor.elem_type))
    return found


def _type(dtype: ir.DataType) -> str:
    """Return a type in words; floats become one another when they are written."""
    return "floats" if dtype.is_floating_point() else dtype.name.lower()

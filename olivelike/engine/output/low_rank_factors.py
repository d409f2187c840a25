"""LoRAs as the inputs of a graph whose layers take their factors, and as files that ONNX Runtime feeds.

The record of an output says how each weight was derived from parameters. What moves a parameter's rows on its way into
a weight moves the rows of a LoRA's `up` the same way: `up` takes the parameter's place, with the rank in place of the
features that the layer takes. Of several parameters in one weight, each has ranks of its own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from olivelike._files import explained, write_whole
from olivelike._text import count
from olivelike.engine.output.expressions import Array, Evaluator, Expression, operators, parameters
from olivelike.errors import SourceError
from olivelike.model.graph import QUANTISE_DOMAIN
from olivelike.model.low_rank_inputs import DOWN, LORA_INPUTS_FILE, UP, factor_input
from olivelike.model.records.output import OutputRecord

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike.graphs.low_rank import Choice
    from olivelike.sources.adapters.lora_file import WeightedLora

_FILTER_RANK: Final = 4
_MOST_NAMED: Final = 3


def made_of(derivations: Mapping[str, Expression]) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Return what parameters each float weight was derived from, by initializer; of quantised ones, their numbers."""
    return {
        name: list(parameters(expression)) for name, expression in derivations.items() if "output" not in expression
    }


def take_factors(model: ir.Model, derivations: Mapping[str, Expression], choice: Choice) -> None:
    """Make a written graph, in place, the one whose layers take factors. Raises as `add_low_rank_inputs`."""
    from olivelike.graphs.low_rank import add_low_rank_inputs, low_rank_layers

    add_low_rank_inputs(model, low_rank_layers(model, made_of(derivations), choice), choice.slots)


@dataclass(frozen=True)
class Factors:
    """What a network's graph takes for LoRAs."""

    arrays: Mapping[str, Array]
    """Factors by the names of inputs."""
    rank: int
    """Largest of a layer."""

    @property
    def nbytes(self) -> int:
        """Bytes of all factors."""
        return sum(array.nbytes for array in self.arrays.values())


def lora_factors(folder: Path, loras: Sequence[WeightedLora], slot: int = 0) -> dict[str, Factors]:
    """Return what LoRAs together feed to the networks of a folder, by component; strengths are in the factors.

    Raises `SourceError` if a LoRA does not fit the folder, changes more than products of two factors do, or changes a
    layer that takes none, and if a network that it changes has no graph that takes factors.
    """
    from olivelike.engine.output.swap import check_loras
    from olivelike.sources.adapters.merge import changes

    record = OutputRecord.require(folder)
    wanted = check_loras(folder, record, loras)
    found = {}
    for component in sorted(wanted):
        derivations = record.components[component].derivations
        taken = _inputs_of(folder / component / LORA_INPUTS_FILE, component, slot)
        shapes = {name: shape for expression in derivations.values() for name, shape in parameters(expression)}
        mine = [one for one in loras if component in one.file.components]
        changed = changes(component, shapes, mine)
        found[component] = _factors(component, changed, derivations, taken, slot)
    return found


def _inputs_of(path: Path, component: str, slot: int) -> dict[str, np.dtype[Any]]:
    """Return the weights whose layers take factors, each with the type of these."""
    from olivelike.graphs.inspect.skeleton import read_skeleton
    from olivelike.model.onnx_messages import ModelProto, numpy_dtype

    if not path.is_file():
        raise SourceError(
            f"{path}: is not there, so {component} takes no factors; put `lora_inputs` at the end of its chain and run "
            "the workflow again"
        )
    model = ModelProto.FromString(read_skeleton(path))
    ends = factor_input(slot, "|", DOWN).split("|")
    names = {one.name: numpy_dtype(one.type.tensor_type.elem_type) for one in model.graph.input}
    found = {
        name.removeprefix(ends[0]).removesuffix(ends[1]): dtype
        for name, dtype in names.items()
        if name.startswith(ends[0]) and name.endswith(ends[1])
    }
    if not found:
        raise SourceError(f"{path}: takes fewer LoRAs at once; there is no number {slot}, the first one is 0")
    return found


def _factors(
    component: str,
    changed: Mapping[str, Any],
    derivations: Mapping[str, Expression],
    taken: Mapping[str, np.dtype[Any]],
    slot: int,
) -> Factors:
    left = dict(changed)
    arrays: dict[str, Array] = {}
    largest = 0
    for initializer, dtype in taken.items():
        expression = _unquantised(derivations[initializer])
        named = [name for name, _ in parameters(expression)]
        mine = {name: left.pop(name) for name in named if name in left}
        if not mine:
            continue
        for name, change in mine.items():
            if not change.is_low_rank:
                raise SourceError(
                    f"{name} of {component}: is changed by a DoRA, LoHa, LoKr or a Tucker decomposition, which is no "
                    "product of two factors; merge that LoRA with `loras:` in the workflow"
                )
        down, up, rank = _stacked(mine, expression)
        largest = max(largest, rank)
        for factor, array in ((DOWN, down), (UP, up)):
            if not np.isfinite(limited := array.astype(dtype)).all():
                raise SourceError(f"{named[0]} of {component}: a factor is too large for half precision")
            arrays[factor_input(slot, initializer, factor)] = np.ascontiguousarray(limited)
    if left:
        names = ", ".join(list(left)[:_MOST_NAMED])
        raise SourceError(
            f"{component}: the LoRAs change {count(len(left), 'layer')} that take no factors, such as {names}; let "
            "`layers` of `lora_inputs` name them, or merge the LoRAs with `loras:` in the workflow"
        )
    return Factors(arrays, largest)


def _unquantised(expression: Expression) -> Expression:
    return expression["inputs"][0] if expression.get("domain") == QUANTISE_DOMAIN else expression


def _stacked(changes: Mapping[str, Any], expression: Expression) -> tuple[Array, Array, int]:
    """Return `down` and `up` of a weight as its layer takes them, and their rank; each parameter has its own ranks."""
    products = [(name, one) for name, change in changes.items() for one in change.products()]
    rank = sum(len(one.down) for _, one in products)
    shapes = dict(parameters(expression))
    ups = {name: np.zeros((shape[0], rank), np.float32) for name, shape in shapes.items()}
    downs, first = [], 0
    for name, one in products:
        last = first + len(one.down)
        ups[name][:, first:last] = one.up.astype(np.float32) * np.float32(one.scale * one.weight)
        downs.append(one.down.astype(np.float32))
        first = last
    down = np.concatenate(downs)
    shape = next(iter(shapes.values()))
    if len(shape) == _FILTER_RANK:
        (name,) = shapes
        return (
            _moved(expression, {name: down.reshape(rank, *shape[1:])}, {name: (rank, *shape[1:])}),
            _moved(expression, {name: ups[name].reshape(*ups[name].shape, 1, 1)}, {name: (shape[0], rank, 1, 1)}),
            rank,
        )
    up = _moved(expression, ups, {name: (one[0], rank) for name, one in shapes.items()})
    transposed = next(iter(operators(expression)), None) is None  # Gemm takes a parameter as it is.
    return down.T, up.T if transposed else up, rank


def _moved(expression: Expression, values: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> Array:
    """Return what a weight's derivation makes of other values of its parameters, in float32."""
    return Evaluator(values.__getitem__, {"": 20}, 10).evaluate(_resized(expression, shapes))


def _resized(expression: Expression, shapes: Mapping[str, tuple[int, ...]]) -> Expression:
    """Return a derivation for parameters of other shapes, without changes of type."""
    if "parameter" in expression:
        return {"parameter": expression["parameter"], "shape": list(shapes[expression["parameter"]])}
    if "constant" in expression:
        return expression
    if expression["op"] == "Cast":
        return _resized(expression["inputs"][0], shapes)
    operands = [one and _resized(one, shapes) for one in expression["inputs"]]
    if expression["op"] == "Reshape":
        operands[1] = _reshape_to(operands, expression["inputs"])
    return {**expression, "inputs": operands}


def _reshape_to(operands: Sequence[Expression], before: Sequence[Expression]) -> Expression:
    """Return the shape of a Reshape whose first axis, the features that are taken, has another size."""
    from olivelike.engine.output.expressions import shape_of

    wanted = list(before[1]["constant"])
    old, new = shape_of(before[0])[0], shape_of(operands[0])[0]
    if wanted[0] == old and math.prod(wanted[1:]) > 0:
        wanted[0] = new
    return {**before[1], "constant": wanted}


def write_adapter(path: Path, factors: Factors, model_version: int = 1) -> int:
    """Write factors as ONNX Runtime's adapter file; return its bytes. Raises `StoreError` if it can't be written."""
    import onnxruntime

    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(model_version)
    adapter.set_parameters(
        {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in factors.arrays.items()}
    )
    with tempfile.TemporaryDirectory() as scratch:  # It writes to a path alone.
        made = Path(scratch, path.name)
        adapter.export_adapter(str(made))
        data = made.read_bytes()
    with explained("writing the adapter", path.parent, "name another --output"):
        write_whole(path, data)
    return len(data)

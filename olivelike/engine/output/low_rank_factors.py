"""LoRAs as the inputs of a graph whose layers take their factors, and as files that ONNX Runtime feeds.

The record of an output says how each weight was derived from parameters. What moves a parameter's rows on its way into
a weight moves the rows of a LoRA's `up` the same way: `up` takes the parameter's place, with the rank in place of the
features that the layer takes. Of several parameters in one weight, each has ranks of its own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count as count_up
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from olivelike._files import explained, write_whole
from olivelike._text import count
from olivelike._untrusted import one_line, read_bytes
from olivelike.engine.output.expressions import Array, Evaluator, Expression, followed, operators, parameters, shape_of
from olivelike.engine.output.fitting_loras import check_loras
from olivelike.errors import SourceError, UsageError
from olivelike.model.finite_values import is_float
from olivelike.model.graph import QUANTISE_DOMAIN
from olivelike.model.low_rank_inputs import ADAPTER_SUFFIX, DOWN, LORA_INPUTS_FILE, UP, factor_input, strength_input
from olivelike.model.onnx_messages import ModelProto, numpy_dtype
from olivelike.model.records.output import OutputRecord

if TYPE_CHECKING:
    from olivelike._untrusted import Json
    from olivelike.sources.adapters.lora_file import WeightedLora

_FILTER_RANK: Final = 4
_MOST_NAMED: Final = 3


class NoFactorsError(SourceError):
    """LoRAs that fit a network, and can't be factors of its graph."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason


@dataclass(frozen=True)
class Factors:
    """What a network's graph takes for LoRAs."""

    arrays: Mapping[tuple[str, str], Array]
    """Factors by weight, and `DOWN` or `UP`."""
    rank: int
    """Largest of a layer."""

    def for_slot(self, slot: int) -> dict[str, Array]:
        """Return what inputs get by their names, to be one of the LoRAs at once; the first is 0."""
        return {factor_input(slot, *key): array for key, array in self.arrays.items()}

    @cached_property
    def most_strength(self) -> float:
        """The strength at which a number gets too large for the type of the factors."""
        factors = [array for array in self.arrays.values() if array.any()]
        most = float(np.finfo(np.float32).max)  # The strength is one, too.
        return min((most, *(float(np.finfo(one.dtype).max) / float(np.abs(one).max()) for one in factors)))

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(array.nbytes for array in self.arrays.values())


def lora_factors(folder: Path, loras: Sequence[WeightedLora]) -> dict[str, Factors]:
    """Return what LoRAs together feed to the networks of a folder, by component; strengths are in the factors.

    Raises `SourceError` if a LoRA does not fit the folder, changes more than products of two factors do, or changes a
    layer that takes none, and if a network that it changes has no graph that takes factors.
    """
    return LoraGraphs(folder).factors(loras)


class LoraGraphs:
    """Graphs of a folder whose layers take factors, each read once."""

    def __init__(self, folder: Path) -> None:
        """Read the folder's record. Raises `SourceError` if it has none."""
        self.folder, self.record = folder, OutputRecord.require(folder)
        self._read: dict[str, LoraGraph] = {}

    def __contains__(self, component: str) -> bool:
        """Say whether a component has one."""
        return self._path(component).is_file()

    def __getitem__(self, component: str) -> LoraGraph:
        """Return that of a component. Raises `SourceError` if it has none."""
        if component not in self._read:
            with followed(self.folder):
                derivations = self.record.components[component].derivations
                self._read[component] = _read_graph(self._path(component), component, derivations)
        return self._read[component]

    def factors(self, loras: Sequence[WeightedLora]) -> dict[str, Factors]:
        """Return what LoRAs together feed, by component. Raises what `lora_factors` raises."""
        wanted = check_loras(self.folder, self.record, loras)
        return {component: self.of(component, loras) for component in sorted(wanted)}

    def of(self, component: str, loras: Sequence[WeightedLora]) -> Factors:
        """Return what LoRAs together feed to a component. Raises what `lora_factors` raises."""
        graph = self[component]
        with followed(self.folder):
            return graph.factors(loras)

    def _path(self, component: str) -> Path:
        return (self.folder / self.record.model_file(component)).with_name(LORA_INPUTS_FILE)


def _read_graph(path: Path, component: str, derivations: Mapping[str, Expression]) -> LoraGraph:
    from olivelike.graphs.inspect.skeleton import read_skeleton

    if not path.is_file():
        raise SourceError(
            f"{path}: is not there, so {component} takes no factors; put `lora_inputs` at the end of its chain and run "
            "the workflow again"
        )
    inputs = ModelProto.FromString(read_skeleton(path)).graph.input
    dtypes = {one.name: numpy_dtype(one.type.tensor_type.elem_type) for one in inputs}
    begin, end = factor_input(0, "|", DOWN).split("|")
    taken = {
        name.removeprefix(begin).removesuffix(end): dtype
        for name, dtype in dtypes.items()
        if name.startswith(begin) and name.endswith(end)
    }
    if strange := [name for name, dtype in taken.items() if name not in derivations or not is_float(dtype)]:
        raise SourceError(
            f"{path}: takes numbers for {one_line(strange[0])!r}, which are no factors of a weight; run the workflow "
            "again"
        )
    slots = next(slot for slot in count_up() if strength_input(slot) not in dtypes)
    return LoraGraph(component, slots, derivations, taken)


@dataclass(frozen=True)
class LoraGraph:
    """A network's graph whose layers take factors."""

    component: str
    slots: int
    """LoRAs at once."""
    derivations: Mapping[str, Expression]
    """Expressions by which weights were made of parameters."""
    types: Mapping[str, np.dtype[Any]]
    """Type of the factors of each weight whose layers take some."""

    def factors(self, loras: Sequence[WeightedLora]) -> Factors:
        """Return LoRAs as one pair of factors for each layer, with their strengths in it.

        Raises `NoFactorsError` if they can't be that, and `SourceError` if one does not fit the network.
        """
        from olivelike.sources.adapters.merge import changes

        shapes = {name: shape for expression in self.derivations.values() for name, shape in parameters(expression)}
        mine = [one for one in loras if self.component in one.file.components]
        changed = changes(self.component, shapes, mine)
        self._check(changed)
        arrays: dict[tuple[str, str], Array] = {}
        largest = 0
        for initializer, dtype in self.types.items():
            expression = _unquantised(self.derivations[initializer])
            found = {name: changed[name] for name, _ in parameters(expression) if name in changed}
            if not found:
                continue
            down, up, rank = _stacked(found, expression)
            largest = max(largest, rank)
            for factor, array in ((DOWN, down), (UP, up)):
                if not np.isfinite(limited := array.astype(dtype)).all():
                    reason = f"{next(iter(found))} of {self.component}: a factor is too large for half precision"
                    raise NoFactorsError(reason, "take a lower weight, or a folder in fp32")
                arrays[initializer, factor] = np.ascontiguousarray(limited)
        return Factors(arrays, largest)

    def _check(self, changed: Mapping[str, Any]) -> None:
        for name, change in changed.items():
            if not change.is_low_rank:
                raise NoFactorsError(
                    f"{name} of {self.component}: is changed by a DoRA, LoHa, LoKr or a Tucker decomposition, or in "
                    "some of its rows, which is no product of two factors",
                    "merge that LoRA with `loras:` in the workflow",
                )
        used = {
            name
            for initializer, expression in self.derivations.items()
            if initializer not in self.types and "output" not in expression  # Scales and the like.
            for name, _ in parameters(expression)
        }
        if left := sorted(changed.keys() & used):
            names = ", ".join(left[:_MOST_NAMED])
            raise NoFactorsError(
                f"{self.component}: the LoRAs change {count(len(left), 'layer')} that take no factors, such as {names}",
                "let `layers` of `lora_inputs` name them if they do no more than multiply, or merge the LoRAs with "
                "`loras:` in the workflow",
            )


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
    wanted = list(before[1]["constant"])
    old, new = shape_of(before[0])[0], shape_of(operands[0])[0]
    if wanted[0] == old and math.prod(wanted[1:]) > 0:
        wanted[0] = new
    return {**before[1], "constant": wanted}


@dataclass(frozen=True)
class WrittenAdapter:
    """An adapter that was written, for the first of the LoRAs at once; those for others are as large."""

    name: str
    component: str
    rank: int
    """Largest of a layer."""
    layers: int
    nbytes: int
    """Bytes of one file."""
    files: tuple[str, ...]
    """Below the folder, one for each of the LoRAs at once."""

    def to_json(self) -> Json:
        """Return it as a JSON value."""
        return asdict(self)


def write_adapters(
    folder: Path, groups: Sequence[Sequence[WeightedLora]], output: Path, name: str | None = None
) -> list[WrittenAdapter]:
    """Write adapters for the networks of a folder, each of LoRAs whose weights it has, for every place that takes one.

    Raises as `lora_factors`, `UsageError` if two have one name, and `StoreError` if one can't be written. All are
    computed before the first is written.

    Args:
        folder: An output folder, as a run left it.
        groups: LoRAs of each adapter.
        output: Gets `NETWORK/NAME.onnx_adapter`, and `NETWORK/NAME.1.onnx_adapter` and so on.
        name: Of a single adapter; others are named as their LoRA's file.
    """
    names = [name or group[0].file.path.stem for group in groups]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise UsageError(f"two LoRAs are called {twice!r}, and so would be their adapters; rename one of the files")
    if bad := next((one for one in names if Path(one).name != one or one in ("", ".", "..")), None):
        raise UsageError(f"{bad!r} is no name of a file")
    graphs = LoraGraphs(folder)
    found = [(one, graphs.factors(group)) for one, group in zip(names, groups, strict=True)]
    written = []
    for one, by_component in found:
        for component, factors in by_component.items():
            place = output / component
            with explained("writing adapters", output, "name another --output"):
                place.mkdir(parents=True, exist_ok=True)
            files = []
            for slot in range(graphs[component].slots):
                path = place / f"{one}{f'.{slot}' if slot else ''}{ADAPTER_SUFFIX}"
                nbytes = write_adapter(path, factors.for_slot(slot))
                files.append(f"{component}/{path.name}")
            layers = len(factors.arrays) // 2
            written.append(WrittenAdapter(one, component, factors.rank, layers, nbytes, tuple(files)))
    return written


def write_adapter(path: Path, factors: Mapping[str, Array]) -> int:
    """Write factors by inputs as ONNX Runtime's adapter file; return its bytes.

    Raises `StoreError` if it can't be written.
    """
    import onnxruntime

    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in factors.items()})
    with tempfile.TemporaryDirectory() as scratch:  # It writes to a path alone.
        made = Path(scratch, path.name)
        adapter.export_adapter(str(made))
        data = read_bytes(made, made.stat().st_size)
    with explained("writing the adapter", path.parent, "name another --output"):
        write_whole(path, data)
    return len(data)

"""Bind a weightless graph to its weights: evaluate what depends on weights alone, stream it to disk.

Each tensor goes from the source file through its derivation (cast, transpose, concatenation, …) to the data file. Large
ones whose rows stay in order go in pieces, and only so many bytes are on their way at once, so memory stays flat in the
size of the model. Files are read, never mapped: mapped pages count as resident memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.engine.output.data_files import DataFiles, HashedFile, Place
from olivelike.engine.output.derivation import derive
from olivelike.engine.output.expressions import Array, Evaluator, Expression, parameters
from olivelike.engine.output.work_ahead import ahead
from olivelike.errors import PassError
from olivelike.graphs.editing.editor import remove_unused
from olivelike.graphs.editing.values import fixed_dims
from olivelike.graphs.guided_graphs import guided_graphs
from olivelike.graphs.image_attention import is_image_parameter
from olivelike.graphs.low_rank import add_low_rank_inputs, low_rank_layers, take_mark
from olivelike.graphs.shallow import cut_shallow, has_cached_features, remove_cached_features
from olivelike.model.components import MODEL_FILE, SHALLOW_FILE
from olivelike.model.finite_values import count_not_finite
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY, QUANTISE_DOMAIN, weight_values
from olivelike.model.half_values import HALVES, in_row_order
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE
from olivelike.model.quantised_values import QUANTISE, BlockFormat
from olivelike.model.tensor_file import block_rows, read_part, read_tensor

if TYPE_CHECKING:
    from olivelike._untrusted import Json, JsonView
    from olivelike.engine.output.initializers import EarlierNetwork
    from olivelike.model import Graph, Weights
    from olivelike.pass_api import Progress

    Evaluated = tuple[Array, dict[str, int]]
    """A derived tensor or a piece of one, and how many of its values count as what in `Materialized`."""

DATA_FILE = "weights.pb"
"""Name of the data file; diffusers' ONNX pipelines keep a file of this name when they save."""

_PIECE_BYTES = 8 << 20
"""Most bytes of a piece of a stored tensor, as it is read."""
_AHEAD_BYTES = 128 << 20
"""Most bytes of tensors that threads may have read before they are written, unless a single one has more."""
_BYTE = 8
INLINE_BYTES = 1024
"""Smaller tensors stay inside the model file."""


@dataclass
class Materialized:
    """Files, derivations and lost values of a written model, for the record."""

    files: dict[str, Json] = field(default_factory=dict)
    """`size` in bytes and `sha256` of each file that was written, by name."""
    derivations: dict[str, Expression] = field(default_factory=dict)
    """Per initializer: the expression that derives it from parameters, see `olivelike.engine.output.expressions`."""
    saturated: dict[str, int] = field(default_factory=dict)
    """Finite values beyond what half precision holds that became its largest, ±65,504 in float16, per initializer."""
    flushed: dict[str, int] = field(default_factory=dict)
    """Non-zero values that became zero, per initializer."""
    not_finite: dict[str, int] = field(default_factory=dict)
    """Values that are infinite or NaN, per initializer."""


def materialize(
    graph: Graph,
    weights: Weights,
    files: Mapping[str, Path],
    folder: Path,
    progress: Progress,
    *,
    model_file: str = MODEL_FILE,
    data_file: str = DATA_FILE,
    most_data_bytes: int | None = None,
    earlier: EarlierNetwork | None = None,
) -> Materialized:
    """Write a model and its data file into `folder`, which exists; no data file if nothing belongs there.

    Raises `PassError` when a parameter is missing or has another shape, or an operator can't be evaluated.

    Args:
        weights: Table with every parameter of the graph, in the graph's shape; a float dtype other than the
            graph's is converted.
        files: Path of each file that the table refers to, by digest.
        folder: Where to write; files of the same names are replaced.
        progress: Told the bytes read so far, of all.
        model_file: Name of the model.
        data_file: Name of the data file.
        most_data_bytes: Its size at most; what has no room goes into `weights.1.pb` and so on. By default it has any.
        earlier: What an earlier run wrote of the same graph; initializers that are the same there are copied.
    """
    model = graph.to_ir()
    _check(model.graph, weights)
    derived = weight_values(model.graph)
    source = _Source(model.graph, weights, files, progress)
    result = Materialized()
    with DataFiles(folder, data_file, most_data_bytes) as data:
        expressions = {value: derive(value) for value in _weight_roots(model.graph, derived)}
        # An IP-Adapter's come last, so that the others lie where they do without it.
        roots = sorted(expressions, key=lambda value: _is_of_image(expressions[value]))
        labels: dict[str, str] = {}
        further: dict[str, tuple[str, int]] = {}
        made: dict[str, dict[int, list[Array]]] = {}
        first: dict[ir.Node | None, str] = {}
        for value in roots:
            expression = expressions[value]
            name = _name(value, expression, result.derivations)
            result.derivations[name] = expression
            labels[name] = value.name or name
            if expression.get("domain") != QUANTISE_DOMAIN:
                continue
            if "output" not in expression:
                first[value.producer()] = name
            elif value.producer() in first:
                further[name] = first[value.producer()], expression["output"] - 1

        def evaluate(piece: _Piece) -> Evaluated:
            if earlier is not None and piece.copied:
                source.count(piece.nbytes)
                return earlier.read(piece.name)
            if piece.name in further and not piece.copied:  # What quantises a weight once is done with it.
                return np.empty(0), {}
            read = source.read if piece.count is None else partial(source.read_rows, piece.start, piece.count)
            evaluator = Evaluator(read, model.opset_imports, model.ir_version, labels[piece.name], place=source.place)
            array = in_row_order(evaluator.evaluate(result.derivations[piece.name]))
            if evaluator.others:
                made.setdefault(piece.name, {})[piece.start] = evaluator.others
            return array, {**evaluator.lost, "not_finite": count_not_finite(array)}

        pieces = (
            piece
            for name, expression in result.derivations.items()
            for piece in _pieces(name, expression, weights, earlier, is_made=name in further)
        )
        evaluated = ahead(evaluate, pieces, lambda piece: piece.nbytes, _AHEAD_BYTES)
        for value, (name, of_one) in zip(roots, groupby(evaluated, lambda pair: pair[0].name), strict=True):
            whole = _Appended(name, data)
            for piece, (found, lost) in of_one:
                array = found
                if name in further and not piece.copied:
                    of, index = further[name]
                    parts = [others[index] for _, others in sorted(made[of].items())]
                    for others in made[of].values():
                        others[index] = np.empty(0)  # What is written need not stay.
                    array = in_row_order(np.concatenate(parts) if len(parts) > 1 else parts[0])
                whole.append(piece, array)
                for kind, count in lost.items():
                    if count:
                        counts = getattr(result, kind)
                        counts[name] = counts.get(name, 0) + count
            _replace(model.graph, value, whole.tensor(), derived)
    _drop_parameters(model.graph)
    model.opset_imports.pop(QUANTISE_DOMAIN, None)
    low_rank = take_mark(model)
    guided = guided_graphs(model)
    result.files = {model_file: _write(model, folder / model_file), **data.facts()}
    result.files |= {name: _write(graph, folder / name) for name, graph in guided}
    if has_cached_features(model):
        result.files[SHALLOW_FILE] = _write(cut_shallow(model), folder / SHALLOW_FILE)
    if low_rank is not None:
        remove_cached_features(model)
        made_of = {
            name: list(parameters(expression))
            for name, expression in result.derivations.items()
            if "output" not in expression  # Scales and the like.
        }
        add_low_rank_inputs(model, low_rank_layers(model, made_of, low_rank), low_rank)
        result.files[LORA_INPUTS_FILE] = _write(model, folder / LORA_INPUTS_FILE)
    return result


def _is_of_image(expression: Expression) -> bool:
    return any(is_image_parameter(name) for name, _ in parameters(expression))


def _write(model: ir.Model, path: Path) -> Json:
    """Write a model whose weights are written; return its size and digest."""
    with HashedFile(path) as file:
        file.write(ir.to_proto(model).SerializeToString(deterministic=True))
    return file.facts()


def _check(graph: ir.Graph, weights: Weights) -> None:
    for value in graph.inputs:
        name = value.metadata_props.get(PARAMETER_KEY)
        if name is None:
            continue
        if name not in weights:
            raise PassError(f"the weights have no parameter {name!r}, which the graph needs")
        expected = fixed_dims(value)
        if weights[name].shape != expected:
            raise PassError(
                f"parameter {name!r} has shape {weights[name].shape}, the graph needs {expected}; "
                "the config and the weights belong to different networks"
            )


def _weight_roots(graph: ir.Graph, derived: set[ir.Value]) -> Iterator[ir.Value]:
    """Yield each derived weight that is used by what is none, in order of first use."""
    seen: set[ir.Value] = set()
    for node in RecursiveGraphIterator(graph):
        if node.outputs[0] in derived:
            continue
        for value in node.inputs:
            if value in derived and value not in seen:
                seen.add(value)
                yield value
    for value in graph.outputs:
        if value in derived:
            raise PassError(f"output {value.name!r} depends on weights alone")


@dataclass(frozen=True)
class _Piece:
    """Work of one thread: an initializer or a piece of one."""

    name: str
    """Name of the initializer."""
    nbytes: int
    """Bytes of the stored tensors that are read for it."""
    start: int = 0
    count: int | None = None
    """Elements of the one parameter, from the one at `start`: some of its rows; `None` for a whole expression."""
    shape: tuple[int, ...] = ()
    """Shape of the whole initializer, for a piece of one."""
    copied: bool = False
    """Whether an earlier run's is the same."""


def _pieces(
    name: str, expression: Expression, weights: Weights, earlier: EarlierNetwork | None, *, is_made: bool
) -> Iterator[_Piece]:
    """Yield an initializer as a whole; by rows if it is large, and its rows are those of one parameter.

    `is_made` tells that it comes with another initializer.
    """
    nbytes = sum(weights[parameter].read_nbytes for parameter, _ in parameters(expression))
    if earlier is not None and earlier.has(name, expression, weights):
        yield _Piece(name, nbytes, copied=True)
        return
    if is_made:
        yield _Piece(name, 0)
        return
    found = _by_rows(expression) if nbytes > _PIECE_BYTES else None
    tensor = weights[found[0]] if found is not None else None
    if found is None or tensor is None or tensor.transposed or tensor.rolled or not tensor.shape:
        yield _Piece(name, nbytes)
        return
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    unit = block_rows(columns) if tensor.added else 1
    step = max(unit, _PIECE_BYTES * rows // nbytes // unit * unit)
    shape = found[1](tensor.shape)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        yield _Piece(name, count * nbytes // rows, start * columns, count * columns, shape)


Shape = tuple[int, ...]


def _by_rows(expression: Expression) -> tuple[str, Callable[[Shape], Shape]] | None:
    """Return the parameter of which each row becomes one of the initializer, and the shape by its shape; or `None`."""
    match expression.get("op"):
        case None:
            return (expression["parameter"], lambda shape: shape) if "parameter" in expression else None
        case "Cast" if expression["attributes"]["to"] in HALVES:
            return _by_rows(expression["inputs"][0])
        case "Transpose":
            order = expression.get("attributes", {}).get("perm")
            inner = _by_rows(expression["inputs"][0]) if order and order[0] == 0 else None
            return inner and (inner[0], lambda shape: _moved(inner[1](shape), order))
        case operator if operator == QUANTISE and expression.get("domain") == QUANTISE_DOMAIN:
            return _blocks_by_rows(BlockFormat.of(expression["attributes"]), expression["inputs"][0])
    return None


def _blocks_by_rows(form: BlockFormat, weight: Expression) -> tuple[str, Callable[[Shape], Shape]] | None:
    """Return the same of numbers in blocks that lie within a row, whose bytes are a row's own."""
    if not (form.packed or form.bits == _BYTE):
        return None
    order: list[int] = []
    if form.packed and form.axis == 0 and weight.get("op") == "Transpose":  # Numbers are in the order of the parameter.
        order = weight.get("attributes", {}).get("perm") or [1, 0]
        weight = weight["inputs"][0]
    elif form.axis == 0:
        return None
    inner = _by_rows(weight)
    return inner and (inner[0], lambda shape: form.shapes(_moved(inner[1](shape), order))[0])


def _moved(shape: Shape, order: Sequence[int]) -> Shape:
    return tuple(shape[axis] for axis in order) if order else shape


class _Source:
    """Reads parameters, from any thread, and tells how much of all has been read."""

    def __init__(self, graph: ir.Graph, weights: Weights, files: Mapping[str, Path], progress: Progress) -> None:
        self._weights = weights
        self._files = files
        self._progress = progress
        self._lock = Lock()
        self._read = 0
        self._total = sum(
            weights[value.metadata_props[PARAMETER_KEY]].read_nbytes * max(1, len(value.uses()))
            for value in graph.inputs
            if PARAMETER_KEY in value.metadata_props
        )

    def read(self, name: str) -> Array:
        tensor = self._weights[name]
        return self._counted(read_tensor(tensor, self._files))

    def read_rows(self, start: int, count: int, name: str) -> Array:
        tensor = self._weights[name]
        return self._counted(read_part(tensor, self._files, start, count)).reshape(-1, *tensor.shape[1:])

    def place(self, name: str) -> str:
        """Return the file that holds a parameter."""
        return str(self._files[self._weights[name].file])

    def count(self, nbytes: int) -> None:
        """Tell that so many bytes more are read, or need not be."""
        with self._lock:
            self._read += nbytes
            self._progress(min(self._read, self._total), self._total)

    def _counted(self, array: Array) -> Array:
        self.count(array.nbytes)
        return array


def _name(value: ir.Value, expression: Expression, taken: JsonView) -> str:
    """Return an initializer's name: that of its parameter, if it derives from one alone."""
    sources = [name for name, _ in parameters(expression)]
    name = sources[0] if len(sources) == 1 and sources[0] not in taken else value.name or ""
    while name in taken:
        name += ".again"
    return name


class _Appended:
    """An initializer in the making: small ones stay inline, others are appended to the data file."""

    def __init__(self, name: str, data: DataFiles) -> None:
        self._name, self._data = name, data
        self._place: Place | None = None
        self._inline: ir.TensorProtocol | None = None
        self._dtype = ir.DataType.UNDEFINED
        self._shape: tuple[int, ...] = ()

    def append(self, piece: _Piece, array: Array) -> None:
        """Write what comes next."""
        dtype = self._dtype = ir.DataType.from_numpy(array.dtype)
        self._shape = piece.shape or array.shape
        if self._place is None:
            nbytes = -(-math.prod(self._shape) * dtype.bitwidth // _BYTE)
            if nbytes < INLINE_BYTES and piece.count is None:
                self._inline = ir.Tensor(array, dtype=dtype, name=self._name)
                return
            self._place = self._data.begin(nbytes)
        # NumPy gives each element a byte of its own at least; ONNX packs two or four smaller ones into one.
        whole = dtype.bitwidth >= _BYTE
        self._data.write(array.reshape(-1).view(np.uint8).data if whole else memoryview(ir.Tensor(array).tobytes()))

    def tensor(self) -> ir.TensorProtocol:
        """Return the initializer's tensor, once all of it is appended."""
        if self._inline is not None:
            return self._inline
        assert self._place is not None
        return ir.ExternalTensor(
            location=self._place.file,
            offset=self._place.offset,
            length=self._place.nbytes,
            dtype=self._dtype,
            shape=ir.Shape(self._shape),
            name=self._name,
        )


def _replace(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol, derived: set[ir.Value]) -> None:
    """Put an initializer in the place of a derived weight."""
    initializer = ir.Value(name=tensor.name, const_value=tensor, shape=ir.Shape(tensor.shape.numpy()))
    initializer.dtype = tensor.dtype
    for node, index in tuple(value.uses()):
        if node.outputs[0] not in derived:
            node.replace_input_with(index, initializer)
    if value.name == tensor.name:
        value.name = f"{value.name}.parameter"
    graph.register_initializer(initializer)


def _drop_parameters(graph: ir.Graph) -> None:
    """Remove parameter inputs and the nodes that derived weights from them."""
    remove_unused(graph, lambda value: PARAMETER_KEY not in value.metadata_props)
    for node in RecursiveGraphIterator(graph):
        node.metadata_props.pop(BLOCK_KEY, None)

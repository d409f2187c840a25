"""Bind a weightless graph to its weights: evaluate what depends on weights alone, stream it to disk.

Each tensor goes from the source file through its derivation (cast, transpose, concatenation, …) to the data file, and
no more than a few are on their way at once, so memory stays flat in the size of the model. Files are read, never
mapped: mapped pages count as resident memory.

`HashedFile` hashes and writes in a thread of its own, so that what comes next is computed meanwhile."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir
from onnx_ir.traversal import RecursiveGraphIterator

from olivelike.engine.output.derivation import Array, Evaluator, Expression, derive, parameters
from olivelike.errors import PassError
from olivelike.model.families import MODEL_FILE
from olivelike.model.graph import BLOCK_KEY, PARAMETER_KEY, weight_values
from olivelike.model.tensor_file import read_tensor

if TYPE_CHECKING:
    from olivelike.model import Graph, Weights
    from olivelike.pass_api import Progress

    Evaluated = tuple[Array, dict[str, int]]
    """A derived tensor, and how many of its values half precision could not hold, by kind."""

DATA_FILE = "weights.pb"
"""Name of the data file; diffusers' ONNX pipelines keep a file of this name when they save."""

ALIGNMENT = 4096
"""Offsets in the data file are multiples of this, so that runtimes can map single tensors."""
_EVALUATORS = 2
"""Threads that read and derive tensors while earlier ones are written."""
_STRIP = 16
"""Columns of a transposed matrix that are copied at a time."""
_BYTE = 8
INLINE_BYTES = 1024
"""Smaller tensors stay inside the model file."""


@dataclass
class Materialized:
    """What was written, for the record."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`size` in bytes and `sha256` of each file that was written, by name."""
    derivations: dict[str, Expression] = field(default_factory=dict)
    """Per initializer: the expression that derives it from parameters, see `olivelike.engine.output.derivation`."""
    saturated: dict[str, int] = field(default_factory=dict)
    """Finite values beyond ±65,504 that became ±65,504, per initializer."""
    flushed: dict[str, int] = field(default_factory=dict)
    """Non-zero values that became zero, per initializer."""


def materialize(
    graph: Graph,
    weights: Weights,
    files: Mapping[str, Path],
    folder: Path,
    progress: Progress,
    *,
    model_file: str = MODEL_FILE,
    data_file: str = DATA_FILE,
) -> Materialized:
    """Write a model and its data file into `folder`, which exists; no data file if nothing belongs there.

    Raises `PassError` when a parameter is missing or has another shape, or an operator can't be evaluated.

    Args:
        weights: Table with every parameter of the graph, in the graph's shape; a float dtype other than the
            graph's is converted.
        files: Path of each file that the table refers to, by digest.
        folder: Where to write; files of the same names are replaced.
        progress: Told the bytes read so far, of all."""
    model = graph.to_ir()
    _check(model.graph, weights)
    derived = weight_values(model.graph)
    source = _Source(model.graph, weights, files, progress)
    result = Materialized()
    with HashedFile(folder / data_file) as data:
        roots = list(_weight_roots(model.graph, derived))
        labels: dict[str, str] = {}
        for value in roots:
            expression = derive(value)
            name = _name(value, expression, result.derivations)
            result.derivations[name] = expression
            labels[name] = value.name or name

        def evaluate(name: str) -> Evaluated:
            evaluator = Evaluator(source.read, model.opset_imports, model.ir_version, labels[name])
            return _in_row_order(evaluator.evaluate(result.derivations[name])), evaluator.lost

        evaluated = _ahead(evaluate, result.derivations)
        for value, (name, (array, lost)) in zip(roots, evaluated, strict=True):
            for kind in ("saturated", "flushed"):
                if lost.get(kind):
                    getattr(result, kind)[name] = lost[kind]
            _replace(model.graph, value, _write(name, array, data, data_file), derived)
    _drop_parameters(model.graph)
    serialised = ir.to_proto(model).SerializeToString(deterministic=True)
    with HashedFile(folder / model_file) as file:
        file.write(serialised)
    result.files = {model_file: file.facts(), data_file: data.facts()}
    if not data.size:
        (folder / data_file).unlink()
        del result.files[data_file]
    return result


def _check(graph: ir.Graph, weights: Weights) -> None:
    for value in graph.inputs:
        name = value.metadata_props.get(PARAMETER_KEY)
        if name is None:
            continue
        if name not in weights:
            raise PassError(f"the weights have no parameter {name!r}, which the graph needs")
        assert value.shape is not None
        expected = tuple(value.shape.numpy())
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


def _ahead(evaluate: Callable[[str], Evaluated], names: Iterable[str]) -> Iterator[tuple[str, Evaluated]]:
    """Yield each name with its result, in order, while threads work on the next ones."""
    pending: deque[tuple[str, Future[Evaluated]]] = deque()
    with ThreadPoolExecutor(_EVALUATORS) as pool:
        try:
            for name in names:
                pending.append((name, pool.submit(evaluate, name)))
                if len(pending) > _EVALUATORS:
                    done, future = pending.popleft()
                    yield done, future.result()
            while pending:
                done, future = pending.popleft()
                yield done, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Source:
    """Reads parameters, from any thread, and tells how much of all has been read."""

    def __init__(self, graph: ir.Graph, weights: Weights, files: Mapping[str, Path], progress: Progress) -> None:
        self._weights = weights
        self._files = files
        self._progress = progress
        self._lock = Lock()
        self._read = 0
        self._total = sum(
            weights[value.metadata_props[PARAMETER_KEY]].nbytes * max(1, len(value.uses()))
            for value in graph.inputs
            if PARAMETER_KEY in value.metadata_props
        )

    def read(self, name: str) -> Array:
        tensor = self._weights[name]
        array = read_tensor(tensor, self._files[tensor.file])
        with self._lock:
            self._read += tensor.nbytes
            self._progress(min(self._read, self._total), self._total)
        return array


def _name(value: ir.Value, expression: Expression, taken: Mapping[str, Any]) -> str:
    """Return an initializer's name: that of its parameter, if it derives from one alone."""
    sources = [name for name, _ in parameters(expression)]
    name = sources[0] if len(sources) == 1 and sources[0] not in taken else value.name or ""
    while name in taken:
        name += ".again"
    return name


def _in_row_order(array: Array) -> Array:
    """Return the array, or a copy of it, in row order; a transposed view is copied by strips that fit the cache."""
    if array.flags.c_contiguous or array.ndim != 2:
        return np.asarray(array, order="C")
    copy = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _STRIP):
        copy[:, start : start + _STRIP] = array[:, start : start + _STRIP]
    return copy


def _write(name: str, array: Array, data: HashedFile, data_file: str) -> ir.TensorProtocol:
    """Return the tensor of an initializer: small ones inline, others appended to the data file."""
    dtype = ir.DataType.from_numpy(array.dtype)
    packed = array.nbytes * dtype.bitwidth // (8 * array.itemsize)
    if packed < INLINE_BYTES:
        return ir.tensor(array, dtype=dtype, name=name)
    data.write(bytes(-data.size % ALIGNMENT))
    offset = data.size
    # NumPy gives each element a byte of its own at least; ONNX packs two or four smaller ones into one.
    whole = dtype.bitwidth >= _BYTE
    data.write(array.reshape(-1).view(np.uint8).data if whole else memoryview(ir.tensor(array).tobytes()))
    return ir.ExternalTensor(
        location=data_file,
        offset=offset,
        length=data.size - offset,
        dtype=dtype,
        shape=ir.Shape(array.shape),
        name=name,
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
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
        else:
            node.metadata_props.pop(BLOCK_KEY, None)
    kept = [value for value in graph.inputs if PARAMETER_KEY not in value.metadata_props]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    nodes = RecursiveGraphIterator(graph)
    used = {value.name for node in nodes for value in node.inputs if value is not None}
    for name in [name for name in graph.initializers if name not in used]:
        del graph.initializers[name]


_PENDING = 2
"""Pieces that may wait for the disk; each is held in memory until it is written."""
_SYNC_BYTES = 64 << 20
"""After so many bytes they go to the disk and leave the page cache, whose pages then serve the next ones."""


class HashedFile:
    """A context manager that writes one file; it is durable at the end."""

    def __init__(self, path: Path) -> None:
        """Make the file.

        Raises:
            OSError: if the disk refuses; also from `write` and the end, then or later."""
        self._file = path.open("wb", buffering=0)
        self._hasher = hashlib.sha256()
        self._pieces: queue.Queue[memoryview | None] = queue.Queue(_PENDING)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with self._file:
            self._pieces.put(None)
            self._thread.join()
            if kind is None:
                self._raise()
                os.fsync(self._file.fileno())

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, which nobody may change afterwards."""
        self._raise()
        self._pieces.put(memoryview(data))
        self.size += len(data)

    def facts(self) -> dict[str, Any]:
        """Return size in bytes and SHA-256 of the finished file."""
        return {"size": self.size, "sha256": self._hasher.hexdigest()}

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _flush(self) -> None:
        os.fsync(self._file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _work(self) -> None:
        unsynced = 0
        while (piece := self._pieces.get()) is not None:
            if self._error is not None:
                continue  # Whoever writes must not wait for ever.
            try:
                self._hasher.update(piece)
                unsynced += len(piece)
                while piece:
                    piece = piece[self._file.write(piece) :]
                if unsynced > _SYNC_BYTES:
                    self._flush()
                    unsynced = 0
            except Exception as error:  # noqa: BLE001  (raised by `write`; a thread that ends leaves it waiting)
                self._error = error

"""The pipeline's demands on an inference engine: one network, opened for one device, and its buffers.

Arrays that go in and out are NumPy's, in the computer's memory. What one network gives another may stay on the GPU that
both run on, as a `DeviceArray`.

`EngineCalls` ends what engines are doing, from another thread than the one that waits for them: a thread in an engine's
code sees no signal until that code returns, which for a large picture takes hours.

What an ONNX file says of its inputs, outputs and initializers; weights are not read.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from olivelike._text import did_you_mean
from olivelike.errors import SessionError, SourceError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model.onnx_messages import TensorProto
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Shapes = dict[str, tuple[int, ...]]
    Array = np.ndarray[Any, Any]


class EngineCalls:
    """The calls of engines that are in progress."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []
        self.watched = False
        """Whether anybody may end them: only then do they have to be made so that this can be done."""
        self.ended = False
        """Whether they were ended, so that what an engine raises is no failure of its own."""

    @contextlib.contextmanager
    def in_progress(self, end: Callable[[], object]) -> Iterator[None]:
        """Have a call listed while the block runs.

        `end` makes the engine return early with an error; it is called in another thread.
        """
        with self._lock:
            self._ends.append(end)
            if self.ended:  # Who asked for that did so between two calls.
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)

    @property
    def any(self) -> bool:
        """Whether a call is in progress."""
        return bool(self._ends)

    def end(self) -> None:
        """Ask all of them to return early, and those that begin while somebody watches."""
        with self._lock:
            self.ended = True
            for end in self._ends:
                end()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Let calls be made that can be ended while the block runs."""
        self.watched, self.ended = True, False
        try:
            yield
        finally:
            self.watched = self.ended = False


ENGINE_CALLS = EngineCalls()
"""Calls of this process, which is what signals are for."""


@dataclass(frozen=True)
class Opened:
    """Model, settings and device that a session was opened with."""

    path: Path
    settings: SessionSettings
    initializers: Mapping[str, Array]


@dataclass(frozen=True)
class ValueSpec:
    """An input or output of a network."""

    name: str
    dtype: str
    """A numpy name: `float32`, `float16`, `int32`, `int64`, `bool`."""
    dims: tuple[int | str, ...]
    """Sizes; a name for each dynamic one."""


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in the memory of a GPU, which calls read and write there."""

    value: Any
    """ONNX Runtime's `OrtValue`."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def write(self, array: Array) -> None:
        """Copy an array of its dtype and shape there."""
        self.value.update_inplace(array)


if TYPE_CHECKING:
    Buffer = Array | DeviceArray
    """What a call reads an input from, or writes an output to."""


def put(buffer: Buffer, values: Array | float) -> None:
    """Fill a buffer with values of any dtype, in a shape that fits."""
    import numpy as np

    if not isinstance(buffer, DeviceArray):
        np.copyto(buffer, values, casting="unsafe")
        return
    whole = np.empty(buffer.shape, buffer.dtype)
    np.copyto(whole, values, casting="unsafe")
    buffer.write(whole)


class BoundCall(Protocol):
    """A call whose buffers are bound once; change the arrays in place between runs."""

    def run(self) -> None:
        """Read the bound inputs, compute, and fill the bound outputs.

        Raises `SessionError` if the engine fails, out of memory included.
        """


@dataclass(eq=False)
class Session(ABC):
    """One network, ready to run."""

    network: str
    """Named in errors."""
    inputs: Mapping[str, ValueSpec]
    """In the graph's order."""
    outputs: Mapping[str, ValueSpec]
    """In the graph's order."""
    provider: str
    """The execution provider that is asked first for each node, or the OpenVINO device."""
    moves_inputs: bool
    """Whether each run takes inputs to another memory, unless they are bound as constant."""
    opened: Opened | None = None
    """Model and settings that it was opened with, if it is a whole network."""
    fed: Mapping[str, Array] = field(default_factory=dict)
    """Arrays for inputs that have values of their own, by name, in calls that are bound from now on."""

    def bind(
        self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer], constant: Collection[str] = ()
    ) -> BoundCall:
        """Bind contiguous arrays of the dtypes that the graph has.

        Raises `SessionError` if a name, a dtype or a shape does not fit; the message names both sides.

        Args:
            inputs: Every input of the network, by name.
            outputs: The outputs that are wanted, by name, with their final shapes.
            constant: Inputs that do not change between runs of the call; they go to the device once.
        """
        if missing := [name for name in self.inputs if name not in inputs]:
            known = ", ".join(self.inputs)
            raise SessionError(f"{self.network}: input {missing[0]!r} is not bound; inputs: {known}")
        if not outputs:
            raise SessionError(f"{self.network}: no output is bound; outputs: {', '.join(self.outputs)}")
        for name in constant:
            if name not in inputs:
                raise SessionError(f"{self.network}: constant input {name!r} is not bound")
        for kind, specs, given in (("input", self.inputs, inputs), ("output", self.outputs, outputs)):
            for name, buffer in given.items():
                if name not in specs:
                    known = ", ".join(specs)
                    raise SessionError(f"{self.network}: has no {kind} {name!r}; {kind}s: {known}")
                _check_buffer(f"{self.network}: {kind} {name!r}", specs[name], buffer)
        return self._bind(inputs, outputs, constant)

    def release(self) -> None:  # noqa: B027  (Not every engine holds such memory.)
        """Give back memory that the network does not need before it runs again."""

    def shared_buffer(self, dtype: str, shape: tuple[int, ...]) -> Buffer:
        """Return a buffer that this network's calls read and others of the same device write without a way between."""
        return empty(dtype, shape)

    @abstractmethod
    def _bind(
        self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer], constant: Collection[str]
    ) -> BoundCall:
        """Bind buffers that fit."""


def empty(dtype: str, shape: tuple[int, ...]) -> Array:
    """Return an array whose values are still to be written."""
    import numpy as np

    return np.empty(shape, dtype)


_ran_last: weakref.ref[Session] | None = None


def take_turn(session: Session) -> None:
    """Let the network that ran before give back memory: those of a pipeline run in turns."""
    global _ran_last
    before = None if _ran_last is None else _ran_last()
    _ran_last = weakref.ref(session)
    if before is not None and before is not session:
        before.release()


def _check_buffer(what: str, spec: ValueSpec, buffer: Buffer) -> None:
    if buffer.dtype.name != spec.dtype:
        raise SessionError(f"{what} is {spec.dtype}, the array is {buffer.dtype.name}")
    shape = buffer.shape
    fits = len(shape) == len(spec.dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(spec.dims, shape, strict=True)
    )
    if not fits:
        dims = ", ".join(map(str, spec.dims))
        raise SessionError(f"{what} has the shape ({dims}), the array {shape}")
    if 0 in shape:
        raise SessionError(f"{what}: the array of shape {shape} is empty")
    if not (isinstance(buffer, DeviceArray) or buffer.flags.c_contiguous):
        raise SessionError(f"{what}: the array is not contiguous")


_NOWHERE: Final[Mapping[str, Buffer]] = MappingProxyType({})
_KEPT: Final = 2
"""Sets of buffers that stay: those of the size in use, and of its last batch, which may be smaller."""


@dataclass(frozen=True, eq=False)
class Call:
    """A network with bound buffers: fill `inputs`, `run`, read `outputs`."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    bound: BoundCall
    shared: Mapping[str, Buffer] = field(default_factory=dict)
    """Inputs that other networks may write, which `put` fills."""
    into: Mapping[str, Buffer] = field(default_factory=dict)
    """Outputs that are another call's shared inputs."""

    def run(self) -> None:
        """Compute the outputs from what is in the inputs."""
        self.bound.run()


class Network:
    """A component of a pipeline, open in a session."""

    def __init__(self, component: str, session: Session) -> None:
        self.component = component
        self.session = session
        self.turn = threading.Lock()
        """Held from filling a call's buffers until they are read, where two threads may do so."""
        self._calls: dict[tuple[object, ...], Call] = {}

    def input(self, name: str) -> ValueSpec:
        """Return what is known of an input. Raises `SourceError` if the network has none of that name."""
        return self._spec("input", self.session.inputs, name)

    def output(self, name: str) -> ValueSpec:
        """Return what is known of an output. Raises `SourceError` if the network has none of that name."""
        return self._spec("output", self.session.outputs, name)

    def prepare(
        self, inputs: Shapes, outputs: Shapes, *, shared: Collection[str] = (), into: Mapping[str, Buffer] = _NOWHERE
    ) -> Call:
        """Return a call for these shapes: the same one, with the same buffers, as long as they stay.

        Args:
            inputs: Shapes by name.
            outputs: The same.
            shared: Inputs that other networks write, or that change seldom; they are not among the call's `inputs`.
            into: Another call's shared inputs, to write outputs of the same names to.
        """
        places = {name: id(buffer) for name, buffer in into.items()}
        key = (tuple(inputs.items()), tuple(outputs.items()), tuple(shared), tuple(places.items()))
        call = self._calls.pop(key, None)
        if call is None:
            call = self._call(inputs, outputs, shared, into)
        self._calls[key] = call
        while len(self._calls) > _KEPT:
            del self._calls[next(iter(self._calls))]
        return call

    def hold(self, call: Call, constant: Collection[str]) -> Call:
        """Return the call with inputs that stay through all further runs as they are now.

        Where the network is not on the CPU, they go to the device here, and not in each run.
        """
        if not self.session.moves_inputs:
            return call
        inputs, outputs = {**call.inputs, **call.shared}, {**call.outputs, **call.into}
        return replace(call, bound=self.session.bind(inputs, outputs, constant))

    def feed(self, arrays: Mapping[str, Array]) -> None:
        """Let calls have these arrays for inputs that have values of their own, and no others."""
        if arrays is not self.session.fed and (arrays or self.session.fed):
            self.session.fed = arrays
            self.forget_calls()

    def forget_calls(self) -> None:
        """Let the next call have buffers of its own, and know nothing of what was in others."""
        self._calls.clear()

    def _call(self, inputs: Shapes, outputs: Shapes, shared: Collection[str], into: Mapping[str, Buffer]) -> Call:
        specs = {name: self.input(name) for name in inputs}
        arrays = {name: empty(specs[name].dtype, shape) for name, shape in inputs.items() if name not in shared}
        buffers = {name: self.session.shared_buffer(specs[name].dtype, inputs[name]) for name in shared}
        made = {name: self.output(name) for name in outputs}
        results = {name: empty(made[name].dtype, shape) for name, shape in outputs.items() if name not in into}
        own = {name: into[name] for name in outputs if name in into}
        return Call(arrays, results, self.session.bind({**arrays, **buffers}, {**results, **own}), buffers, own)

    def _spec(self, kind: str, values: Mapping[str, ValueSpec], name: str) -> ValueSpec:
        if name not in values:
            raise SourceError(
                f"{self.component}/model.onnx: has no {kind} {name!r} (it has: {', '.join(values)}); "
                "make the folder with `olivelike run`, whose own layout has it"
            )
        return values[name]


def read_model_file(path: Path) -> Any:
    """Return an ONNX file as a `ModelProto`, the values of its larger initializers left out.

    Raises `SessionError` if it can't be read, or is no ONNX model.
    """
    from google.protobuf.message import DecodeError

    from olivelike.graphs.inspect.skeleton import read_skeleton
    from olivelike.model.onnx_messages import ModelProto

    try:
        return ModelProto.FromString(read_skeleton(path))
    except SourceError as error:
        raise SessionError(str(error)) from error
    except DecodeError as error:
        raise SessionError(f"{path}: is not an ONNX model") from error


def value_specs(values: Iterable[Any], without: Iterable[Any] = ()) -> dict[str, ValueSpec]:
    """Return `ValueInfoProto`s by name, those of initializers left out."""
    left_out = {tensor.name for tensor in without}
    return {value.name: _spec(value) for value in values if value.name not in left_out}


def check_initializers(path: Path, known: Mapping[str, TensorProto], given: Mapping[str, Array]) -> None:
    """Check that arrays can take the places of a model's initializers.

    Raises `SessionError` for an unknown name, or another dtype or shape. `known` are its initializers, as
    `TensorProto`s.
    """
    for name, array in given.items():
        if name not in known:
            raise SessionError(f"{path}: has no initializer {name!r}; {did_you_mean(name, known, 'initializers')}")
        dtype, shape = _dtype(known[name].data_type), tuple(known[name].dims)
        if array.dtype.name != dtype or array.shape != shape:
            raise SessionError(
                f"{path}: initializer {name!r} is {dtype} {shape}, the array given for it {array.dtype.name} "
                f"{array.shape}"
            )


def check_dimensions(sizes: Mapping[str, int], models: Iterable[Path]) -> None:
    """Check that each dimension whose size is set belongs to a network: engines pass over those that do not.

    `models` are all networks that they are meant for; nothing is read if no size is set. Raises `UsageError` for a name
    that none of them has; the message has the nearest.
    """
    if not sizes:
        return
    graphs = [read_model_file(path).graph for path in models]
    specs = [spec for graph in graphs for spec in value_specs(graph.input, graph.initializer).values()]
    known = sorted({dim for spec in specs for dim in spec.dims if isinstance(dim, str)})
    if unknown := [name for name in sizes if name not in known]:
        hint = did_you_mean(unknown[0], known, "dimensions")
        raise UsageError(f"no network has a dynamic dimension {unknown[0]!r}; {hint}")


def _spec(value: Any) -> ValueSpec:
    tensor = value.type.tensor_type
    dims = (
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}.{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    )
    return ValueSpec(value.name, _dtype(tensor.elem_type), tuple(dims))


def _dtype(element: int) -> str:
    from olivelike.model.onnx_messages import dtype_name

    try:
        return dtype_name(element)
    except KeyError:
        raise SessionError(f"a value has ONNX type {element}, which is unknown; export the model again") from None

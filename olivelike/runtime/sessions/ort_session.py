"""Networks in ONNX Runtime, with inputs and outputs bound in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import Interrupted, SessionError, SourceError
from olivelike.runtime.sessions.devices import Memory, adds_bytes_exactly, device_memory, find_device, require_nvidia
from olivelike.runtime.sessions.engine_errors import onnxruntime_errors, run_failure
from olivelike.runtime.sessions.ort_options import add_providers, provider_list, session_options
from olivelike.runtime.sessions.providers import CPU, WINDOWS_ML, require_provider
from olivelike.runtime.sessions.resident import MappedFiles, give_back_freed, mapped_files
from olivelike.runtime.sessions.session import ENGINE_CALLS, DeviceArray, Session, ValueSpec, take_turn

if TYPE_CHECKING:
    import numpy as np

    from olivelike.runtime.sessions.session import Buffer
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Array = np.ndarray[Any, Any]

_DTYPES: Final = {"float": "float32", "double": "float64"}
_GRAPH_IDS: Final = count(1)
_BY_ROWS: Final = b"MatMulIntegerToFloat"
"""Recorded CUDA graphs are distinguished by number; 0 is what runs without a number share."""


class OrtSession(Session):
    """A network in ONNX Runtime; `open_ort_session` makes it."""

    def __init__(
        self, network: str, session: Any, settings: SessionSettings, memory: Memory | None, mapped: MappedFiles
    ) -> None:
        """Hold a session, whose values are kept in a GPU's memory if there is one that arrays can be put into."""
        inputs, outputs = (
            {value.name: _spec(value) for value in values} for values in (session.get_inputs(), session.get_outputs())
        )
        elsewhere = {
            name
            for name, info in zip(inputs, session.get_input_memory_infos(), strict=True)
            if not info.name.lower().startswith("cpu")
        }
        provider = session.get_providers()[0]
        super().__init__(network, inputs, outputs, provider, bool(elsewhere))
        self._session = session
        self._settings = settings
        self._memory = memory
        self._elsewhere = elsewhere
        self._mapped = mapped

    @property
    def inference_session(self) -> Any:
        """ONNX Runtime's own session."""
        return self._session

    def shared_buffer(self, dtype: str, shape: tuple[int, ...]) -> Buffer:
        """Return a buffer in the GPU's memory, where arrays can be put there."""
        if self._memory is None:
            return super().shared_buffer(dtype, shape)
        import numpy as np

        return DeviceArray(_on_device(shape, np.dtype(dtype), self._memory), np.dtype(dtype), shape)

    def _bind(
        self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer], constant: Collection[str]
    ) -> OrtBoundCall:
        """Bind arrays by their addresses.

        An input that the provider needs in another memory is copied there before each run, a constant one once: into
        one place where we can have it, since recorded graphs know addresses, else by being bound.
        """
        binding = self._session.io_binding()
        before: list[Callable[[], None]] = []
        after: list[Callable[[], None]] = []
        for name, buffer in inputs.items():
            if isinstance(buffer, DeviceArray):
                binding.bind_ortvalue_input(name, buffer.value)
                continue
            bind = partial(binding.bind_input, name, *_bound(buffer))
            if name not in self._elsewhere:
                bind()
                continue
            if self._memory is not None:
                value = _on_device(buffer.shape, buffer.dtype, self._memory)
                binding.bind_ortvalue_input(name, value)
                bind = partial(value.update_inplace, buffer)
            if name in constant:
                bind()
            else:
                before.append(bind)
        for name, buffer in outputs.items():
            if isinstance(buffer, DeviceArray):
                binding.bind_ortvalue_output(name, buffer.value)
            elif self._memory is not None:
                value = _on_device(buffer.shape, buffer.dtype, self._memory)
                binding.bind_ortvalue_output(name, value)
                after.append(partial(_fetch, value, buffer))
            else:
                binding.bind_output(name, *_bound(buffer))
        for name, array in self.fed.items():
            binding.bind_input(name, *_bound(array))
        return OrtBoundCall(
            self, binding, self._session, self._run_options(), dict(inputs), dict(outputs), self.fed, before, after
        )

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, DeviceArray]:
        """Return all outputs, of the sizes that the network gives them; they stay with ONNX Runtime.

        Raises what a call's `run` raises.
        """
        import onnxruntime

        from olivelike.model.onnx_messages import numpy_dtype

        options, session = self._run_options(), self._session
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        with _run(self, options, inputs):
            made = session.run_with_ort_values([*self.outputs], values, options)
        return {
            name: DeviceArray(value, numpy_dtype(value.element_type()), tuple(value.shape()))
            for name, value in zip(self.outputs, made, strict=True)
        }

    def release(self) -> None:
        """Give back pages of data files that the CPU reads weights from in each run: those that are widened then."""
        self._mapped.give_back()

    def _run_options(self) -> Any:
        """Return options for a run; `None`, which runs 40 µs faster, if there is nothing to set."""
        import onnxruntime

        entries = dict(self._settings.run_config)
        if self._settings.cuda_graph:
            entries.setdefault("gpu_graph_id", str(next(_GRAPH_IDS)))
        if not entries and not ENGINE_CALLS.watched:
            return None
        options = onnxruntime.RunOptions()
        for key, value in entries.items():
            options.add_run_config_entry(key, value)
        return options


@dataclass(frozen=True, eq=False)
class OrtBoundCall:
    """A call with bound buffers."""

    owner: OrtSession
    binding: Any
    """Before the session, since fields are freed in order: freed after its session, it crashes on WebGPU."""
    session: Any
    run_options: Any
    inputs: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]
    fed: Mapping[str, Buffer]
    """Held, as inputs and outputs are, since the binding knows addresses only."""
    before: Sequence[Callable[[], None]]
    """Copies of inputs to the provider's memory, made before each run."""
    after: Sequence[Callable[[], None]]
    """Copies of outputs from there, made after each run."""

    def run(self) -> None:
        """Read the bound inputs, compute, and fill the bound outputs.

        Raises `SessionError` if ONNX Runtime fails, out of memory included, and `Interrupted` if it was asked to end
        early.
        """
        with _run(self.owner, self.run_options, self.inputs):
            for copy in self.before:
                copy()
            self.session.run_with_iobinding(self.binding, self.run_options)
            for copy in self.after:
                copy()


@contextmanager
def _run(owner: OrtSession, options: Any, inputs: Mapping[str, Buffer]) -> Iterator[None]:
    """Let a network run in the block, so that it can be ended early, and raise what it fails with as our errors."""

    def terminate() -> None:
        options.terminate = True

    take_turn(owner)
    if options is not None:
        options.terminate = False  # It may have been asked to end as it returned.
    try:
        with ENGINE_CALLS.in_progress(terminate) if options is not None else nullcontext():
            yield
    except onnxruntime_errors() as error:
        if options is not None and options.terminate:
            options.terminate = False
            raise Interrupted(f"{owner.network}: interrupted while it ran") from None
        raise run_failure(owner.network, error, inputs, owner.provider) from error


def open_ort_session(
    path: Path,
    settings: SessionSettings,
    initializers: Mapping[str, np.ndarray[Any, Any]],
    content: bytes | None = None,
) -> OrtSession:
    """Open a network in ONNX Runtime; `open_session` says how.

    Raises `SessionError` if a provider or device is not there, or the network can't be opened, and `Interrupted` if
    ONNX Runtime was asked to end early.
    """
    for choice in settings.providers:
        require_provider(choice.provider)
        require_nvidia(choice.provider)
    if settings.provider.name == CPU and not adds_bytes_exactly() and _is_by_rows(path, content):
        raise SessionError(
            f"{path}: multiplies in 8 bits by rows, which overflows on a processor without VNNI, so that pictures "
            "would be wrong; convert it again on this one, or with the option int8_rows of weights8 false"
        )
    device = find_device(settings.asked_device, settings.provider)
    with mapped_files(settings.kept or path.parent) if settings.is_cpu_alone else nullcontext(MappedFiles()) as mapped:
        session = start_inference(path, settings, initializers, device, content)
    memory = device_memory(settings.provider, device)
    return OrtSession(path.parent.name or path.name, session, settings, memory, mapped)


def _is_by_rows(path: Path, content: bytes | None) -> bool:
    """Tell whether a network multiplies in 8 bits by rows; what can't be read is for ONNX Runtime to refuse."""
    from olivelike.graphs.inspect.skeleton import read_skeleton

    try:
        return _BY_ROWS in (content or read_skeleton(path))
    except SourceError:
        return False


def start_inference(
    path: Path,
    settings: SessionSettings,
    initializers: Mapping[str, np.ndarray[Any, Any]],
    device: int | None,
    content: bytes | None = None,
) -> Any:
    """Return an `InferenceSession` as settings say, all of whose providers have started.

    Raises `SessionError` if the network can't be opened, or a provider does not start, and `Interrupted` if ONNX
    Runtime was asked to end early.

    Args:
        settings: Their providers are installed.
        initializers: Arrays in place of the model's, by name.
        device: Number of the first provider's device; `None` leaves it to the options.
        content: A part of the model, to open in place of the whole.
    """
    import onnxruntime

    providers = provider_list(settings, device)
    network = path.parent.name or path.name
    with session_options(path, settings, initializers, content) as opening:
        options = opening.options
        try:
            placed = add_providers(options, providers, device)
            with ENGINE_CALLS.in_progress(lambda: options.set_load_cancellation_flag(True)):
                session = onnxruntime.InferenceSession(
                    opening.model, options, providers=None if placed else providers, enable_fallback=False
                )
                opening.wait()
            session.initializers = opening.arrays  # Freed after what reads them.
        except onnxruntime_errors() as error:
            if ENGINE_CALLS.ended:
                raise Interrupted(f"{network}: interrupted while it was opened") from None
            from olivelike.runtime.sessions.load_failure import load_failure

            raise load_failure(path, error, settings) from error
    if opening.was_folded:
        del opening, options
        give_back_freed()
    started = session.get_providers()
    elsewhere = any(name != CPU for name in started)
    if lost := [name for name, _ in providers if name not in started and not (name == WINDOWS_ML and elsewhere)]:
        raise SessionError(
            f"{network}: {lost[0]} is installed but did not start; `olivelike doctor` says why. Started: "
            f"{', '.join(started)}"
        )
    return session


def _bound(array: Array) -> tuple[str, int, np.dtype[Any], tuple[int, ...], int]:
    """Return an array as ONNX Runtime binds it: its device, dtype, shape and address."""
    return "cpu", 0, array.dtype, array.shape, array.ctypes.data


def _on_device(shape: tuple[int, ...], dtype: np.dtype[Any], memory: Memory) -> Any:
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, dtype.type, *memory)


def _fetch(value: Any, into: Array) -> None:
    into[...] = value.numpy()


def _spec(value: Any) -> ValueSpec:
    dtype = value.type.removeprefix("tensor(").removesuffix(")")
    dims = (dim if dim is not None else f"{value.name}.{axis}" for axis, dim in enumerate(value.shape))
    return ValueSpec(value.name, _DTYPES.get(dtype, dtype), tuple(dims))

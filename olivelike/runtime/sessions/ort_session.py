"""Networks in ONNX Runtime, with inputs and outputs bound in place."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import Interrupted, SessionError
from olivelike.runtime.sessions.devices import find_device
from olivelike.runtime.sessions.interruption import ENGINE_CALLS
from olivelike.runtime.sessions.load_failure import load_failure
from olivelike.runtime.sessions.nvidia import Placement, place, require_nvidia
from olivelike.runtime.sessions.ort_initializers import exchange
from olivelike.runtime.sessions.ort_options import provider_list, session_options
from olivelike.runtime.sessions.providers import require_provider
from olivelike.runtime.sessions.session import ValueSpec
from olivelike.runtime.sessions.session_failures import onnxruntime_errors, run_failure
from olivelike.runtime.sessions.tensor_check import check_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import numpy as np
    import torch

    from olivelike.runtime.sessions.session_settings import SessionSettings

_DTYPES: Final = {"float": "float32", "double": "float64"}
_GRAPH_IDS: Final = count(1)
"""Recorded CUDA graphs are told apart by number; 0 is what runs without a number share."""


class OrtSession:
    """A network in ONNX Runtime; `open_ort_session` makes it."""

    def __init__(self, network: str, session: Any, settings: SessionSettings, placement: Placement) -> None:
        self._network = network
        self._session = session
        self._settings = settings
        self._placement = placement
        self._inputs = {value.name: _spec(value) for value in session.get_inputs()}
        self._outputs = {value.name: _spec(value) for value in session.get_outputs()}
        memories = session.get_input_memory_infos()
        on_cpu = placement.device is None
        self._elsewhere = {
            name
            for name, memory in zip(self._inputs, memories, strict=True)
            if memory.name.lower().startswith("cpu") != on_cpu
        }

    @property
    def inputs(self) -> Mapping[str, ValueSpec]:
        """The inputs, in the graph's order."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, ValueSpec]:
        """The outputs, in the graph's order."""
        return self._outputs

    @property
    def provider(self) -> str:
        """The execution provider that is asked first for each node."""
        first: str = self._session.get_providers()[0]
        return first

    @property
    def inference_session(self) -> Any:
        """ONNX Runtime's own session."""
        return self._session

    @property
    def tensor_device(self) -> str:
        """`cpu`, or `cuda:0` and the like."""
        return self._placement.tensor_device

    @property
    def moves_inputs(self) -> bool:
        """Whether the provider needs an input in another memory than that of tensors."""
        return bool(self._elsewhere)

    def bind(
        self,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        constant: Collection[str] = (),
    ) -> OrtBoundCall:
        """Bind contiguous tensors by their addresses, as `Session.bind` says.

        An input that the provider needs in another memory than the tensor's is copied as it is bound. So a
        constant one is bound once, and others before each run.
        """
        specs = (self._inputs, self._outputs)
        check_tensors(self._network, specs, inputs, outputs, constant, self.tensor_device)
        binding = self._session.io_binding()
        moving = {}
        for name, tensor in inputs.items():
            if name in self._elsewhere and name not in constant:
                moving[name] = tensor
            else:
                bind_input(binding, name, tensor, self._placement)
        for name, tensor in outputs.items():
            binding.bind_output(name, *self._placement.memory, *_buffer(tensor))
        return OrtBoundCall(
            self._network,
            self._session,
            binding,
            self._run_options(),
            self._placement,
            inputs,
            outputs,
            moving,
        )

    def _run_options(self) -> Any:
        """Return options for a run; `None`, which runs 40 µs faster, if there is nothing to set."""
        import onnxruntime

        entries = dict(self._settings.run_config)
        if self._placement.stream is not None:
            entries.setdefault("disable_synchronize_execution_providers", "1")
        if self._settings.cuda_graph:
            entries.setdefault("gpu_graph_id", str(next(_GRAPH_IDS)))
        if not entries and not ENGINE_CALLS.watched:
            return None
        options = onnxruntime.RunOptions()
        for key, value in entries.items():
            options.add_run_config_entry(key, value)
        return options


class OrtBoundCall:
    """A call with bound buffers."""

    def __init__(
        self,
        network: str,
        session: Any,
        binding: Any,
        run_options: Any,
        placement: Placement,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        moving: Mapping[str, torch.Tensor],
    ) -> None:
        self._network = network
        self._session = session
        self._binding = binding
        self._run_options = run_options
        self._placement = placement
        self._inputs = dict(inputs)
        self._outputs = dict(outputs)  # Held: the binding knows addresses only.
        self._moving = moving
        self._errors = onnxruntime_errors()

    def run(self) -> None:
        """Read the bound inputs, compute, and fill the bound outputs.

        Raises:
            SessionError: if ONNX Runtime fails, out of memory included.
            Interrupted: if it was told to end early.
        """
        try:
            if self._placement.stream is None:
                self._compute()
            else:
                self._compute_on_stream()
        except self._errors as error:
            if self._run_options is not None and self._run_options.terminate:
                self._run_options.terminate = False
                raise Interrupted(f"{self._network}: interrupted while it ran") from None
            raise run_failure(self._network, error, self._inputs, self._session.get_providers()[0]) from error

    def _compute(self) -> None:
        for name, tensor in self._moving.items():
            bind_input(self._binding, name, tensor, self._placement)
        if not ENGINE_CALLS.watched or self._run_options is None:
            self._session.run_with_iobinding(self._binding, self._run_options)
            return
        with ENGINE_CALLS.in_progress(self._terminate):
            self._session.run_with_iobinding(self._binding, self._run_options)

    def _terminate(self) -> None:
        self._run_options.terminate = True

    def _compute_on_stream(self) -> None:
        """Compute after what torch has queued, and let torch's next work wait, without stopping the CPU."""
        import torch

        current = torch.cuda.current_stream(self._placement.device)
        if self._moving:
            current.synchronize()  # The copy to the CPU does not wait for a stream.
        self._placement.stream.wait_stream(current)
        self._compute()
        current.wait_stream(self._placement.stream)


def open_ort_session(
    path: Path, settings: SessionSettings, initializers: Mapping[str, np.ndarray[Any, Any]]
) -> OrtSession:
    """Open a network in ONNX Runtime; `open_session` says how.

    Raises:
        SessionError: if a provider or device is not there, or the network can't be opened.
        Interrupted: if ONNX Runtime was told to end early.
    """
    import onnxruntime

    for choice in settings.providers:
        require_provider(choice.provider)
        require_nvidia(choice.provider)
    device = find_device(_asked_device(settings), settings.provider)
    placement = place(settings.provider, device)
    stream = None if placement.stream is None else int(placement.stream.cuda_stream)
    providers = provider_list(settings, device, stream)
    network = path.parent.name or path.name
    exchanged = exchange(path, initializers)
    with session_options(path, settings, exchanged) as options:
        try:
            with ENGINE_CALLS.in_progress(lambda: options.set_load_cancellation_flag(True)):
                session = onnxruntime.InferenceSession(
                    exchanged.model, options, providers=providers, enable_fallback=False
                )
        except onnxruntime_errors() as error:
            if ENGINE_CALLS.ended:
                raise Interrupted(f"{network}: interrupted while it was opened") from None
            raise load_failure(path, error, settings) from error
    started = session.get_providers()
    if lost := [name for name, _ in providers if name not in started]:
        raise SessionError(
            f"{network}: {lost[0]} is installed but did not start; `olivelike doctor` says why. Started: "
            f"{', '.join(started)}"
        )
    return OrtSession(network, session, settings, placement)


def _asked_device(settings: SessionSettings) -> int | str | None:
    """Return the device of the settings, or else of the options of the first provider that states one."""
    if settings.device is not None:
        return settings.device
    stated = (choice.options.get("device_id", "") for choice in settings.providers)
    return next((int(number) for number in stated if number.isdecimal()), None)


def bind_input(binding: Any, name: str, tensor: torch.Tensor, placement: Placement) -> None:
    """Tell a binding where an input lies, or copy it to where the provider needs it."""
    binding.bind_input(name, *placement.memory, *_buffer(tensor))


def _buffer(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], int]:
    """Return dtype, shape and address of a tensor."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.data_ptr()


def _spec(value: Any) -> ValueSpec:
    dtype = value.type.removeprefix("tensor(").removesuffix(")")
    dims = (dim if dim is not None else f"{value.name}.{axis}" for axis, dim in enumerate(value.shape))
    return ValueSpec(value.name, _DTYPES.get(dtype, dtype), tuple(dims))

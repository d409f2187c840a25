"""Networks in OpenVINO (`pip install 'olivelike[openvino]'`), which reads ONNX files and fuses by itself."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import Interrupted, SessionError, UsageError
from olivelike.runtime.sessions.devices import Device, find_device
from olivelike.runtime.sessions.engine_errors import run_failure
from olivelike.runtime.sessions.mapped_weights import MappedWeights
from olivelike.runtime.sessions.ort_options import library_path
from olivelike.runtime.sessions.providers import require_provider
from olivelike.runtime.sessions.session import (
    ENGINE_CALLS,
    Session,
    ValueSpec,
    check_initializers,
    read_model_file,
    take_turn,
    value_specs,
)

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model.onnx_messages import ModelProto
    from olivelike.runtime.sessions.session import Buffer
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Array = np.ndarray[Any, Any]

_KEPT: Final = "network.blob"
_BFLOAT16: Final = 16
"""As ONNX numbers its types."""
_COMPOSED: Final = re.compile(r"(AUTO|MULTI|HETERO|BATCH)(:|$)")
"""Devices made of others, which are not listed."""
_MASK: Final = "attention_mask"
_GIVING_BACK_MS: Final = 100
"""Between two times that pages of weights are given back, while the first run of a call copies them."""


class OpenVinoSession(Session):
    """A network in OpenVINO, which moves what its device needs; `open_openvino_session` makes it."""

    def __init__(
        self,
        network: str,
        compiled: Any,
        weights: MappedWeights,
        device: str,
        inputs: Mapping[str, ValueSpec],
        outputs: Mapping[str, ValueSpec],
    ) -> None:
        super().__init__(network, inputs, outputs, f"OpenVINO {device}", moves_inputs=False)
        self.weights = weights
        """Weights that the compiled network still reads."""
        self.failed = Event()
        self._compiled = compiled

    def release(self) -> None:
        """Free what the network holds for values inside it, until it runs again; the CPU's holds up to a GB.

        Not that of a network with a mask: its attention then writes where it may not (seen with OpenVINO 2026.4.1).
        """
        if _MASK in self.inputs:
            return
        with contextlib.suppress(RuntimeError):  # Another thread runs it, or its device has no such thing.
            self._compiled.release_memory()

    def _bind(
        self,
        inputs: Mapping[str, Buffer],
        outputs: Mapping[str, Buffer],
        constant: Collection[str],  # noqa: ARG002  (OpenVINO moves inputs by itself, constant or not)
    ) -> OpenVinoBoundCall:
        """Share arrays' memory with OpenVINO."""
        openvino: Any = importlib.import_module("openvino")
        request = self._compiled.create_infer_request()
        for name, array in {**inputs, **outputs}.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        return OpenVinoBoundCall(self, request, dict(inputs), dict(outputs))


@dataclass(eq=False)
class OpenVinoBoundCall:
    """A call with shared buffers."""

    session: OpenVinoSession
    request: Any
    inputs: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]
    unchecked: bool = True
    """Whether no run has shown yet what shapes the outputs have."""

    def run(self) -> None:
        """Read the bound inputs, compute, and fill the bound outputs.

        Raises:
            SessionError: if OpenVINO fails, out of memory included. After that no call of the session may run: they
                share memory, which is left in disorder (seen with OpenVINO 2026.4.1).
            Interrupted: if it was asked to end early.
        """
        network = self.session.network
        if self.session.failed.is_set():
            raise SessionError(f"{network}: OpenVINO failed in an earlier run; open the network again")
        take_turn(self.session)
        try:
            self.request.start_async()  # With one thread, `infer` returns from a failed run as if it had computed.
            with ENGINE_CALLS.in_progress(self.request.cancel):
                while self.unchecked and not self.request.wait_for(_GIVING_BACK_MS):
                    self.session.weights.give_back()
                self.request.wait()
        except (RuntimeError, MemoryError) as error:
            self.session.failed.set()
            if ENGINE_CALLS.ended:
                raise Interrupted(f"{network}: interrupted while it ran") from None
            raise run_failure(network, error, self.inputs, self.session.provider) from error
        if self.unchecked:
            self.session.weights.give_back()
            self._check_shapes()
            self.unchecked = False

    def _check_shapes(self) -> None:
        """OpenVINO takes another buffer where the bound one has a wrong shape, without a word."""
        for name, array in self.outputs.items():
            shape = tuple(self.request.get_tensor(name).get_shape())
            if shape != array.shape:
                raise SessionError(
                    f"{self.session.network}: output {name!r} has the shape {shape}, the array {array.shape}"
                )


def open_openvino_session(
    path: Path, settings: SessionSettings, initializers: Mapping[str, Array], content: bytes | None = None
) -> OpenVinoSession:
    """Open a network in OpenVINO; `open_session` says how.

    Raises `SessionError` if the package or the device is not there, or the network can't be opened, and `UsageError`
    for settings that are ONNX Runtime's alone.
    """
    require_provider(settings.provider)
    _refuse_foreign(settings)
    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    core = openvino.Core()
    device = _device(core, settings)
    proto = read_model_file(path) if content is None else _parsed(content)
    inputs = value_specs(proto.graph.input, proto.graph.initializer)
    outputs = value_specs(proto.graph.output)
    if initializers:
        known = {tensor.name: tensor for tensor in proto.graph.initializer}
        check_initializers(path, known, initializers)
    try:
        for library in settings.custom_operators:
            core.add_extension(library_path(library))
        weights, sizes = MappedWeights(), settings.dimensions
        threads = {"INFERENCE_NUM_THREADS": str(settings.intra_threads)} if settings.intra_threads else {}
        properties = {**_defaults(proto, device), **threads, **settings.options}
        kept = None if settings.kept is None else settings.kept / _KEPT
        if kept is not None and kept.is_file():
            compiled = core.import_model(openvino.Tensor(weights.file(kept), shared_memory=True), device, properties)
        else:
            model = core.read_model(path if content is None else content)
            _exchange(openvino, model, initializers)
            if content is None and device == "CPU":
                weights.put_into(openvino, model, proto.graph.initializer, path.parent)
            if _is_fixed(inputs, sizes):
                model.reshape({name: _partial(spec) for name, spec in _with_sizes(inputs, sizes).items()})
            compiled = core.compile_model(model, device, properties)
            if kept is not None:
                kept.write_bytes(compiled.export_model().getbuffer())
        if _is_fixed(inputs, sizes):
            inputs, outputs = _with_sizes(inputs, sizes), _with_sizes(outputs, sizes)
        weights.give_back()
    except (RuntimeError, MemoryError, OSError) as error:
        from olivelike.runtime.sessions.load_failure import load_failure

        raise load_failure(path, error, settings) from error
    return OpenVinoSession(path.parent.name or path.name, compiled, weights, device, inputs, outputs)


def _parsed(content: bytes) -> ModelProto:
    from olivelike.model.onnx_messages import ModelProto

    return ModelProto.FromString(content)


def _refuse_foreign(settings: SessionSettings) -> None:
    foreign = {
        "another provider": len(settings.providers) > 1,
        "session configuration": settings.session_config,
        "run configuration": settings.run_config,
        "graph optimisation": settings.optimization != "all",
        "inter-operator threads": settings.inter_threads,
        "CUDA graph": settings.cuda_graph,
        "profile": settings.profile,
        "weights file": settings.weights,
    }
    if wrong := [name for name, value in foreign.items() if value]:
        raise UsageError(
            f"{', '.join(wrong)}: ONNX Runtime knows this, the provider openvino does not; leave it out, or set "
            "one of OpenVINO's own properties"
        )


def _defaults(proto: ModelProto, device: str) -> dict[str, str]:
    """Return properties that settings may replace: a graph in bfloat16 says itself what stays in float32.

    By default OpenVINO's CPU computes the sines of a timestep in bfloat16, too, which takes 627 for 628.
    """
    brain = any(tensor.data_type == _BFLOAT16 for tensor in proto.graph.initializer)
    return {"INFERENCE_PRECISION_HINT": "f32"} if brain and device == "CPU" else {}


def device_description(settings: SessionSettings) -> tuple[str, str]:
    """Return OpenVINO's name of the device that is asked for, and what the device calls itself.

    Raises `SessionError` if the device is not there; the package is.
    """
    openvino: Any = importlib.import_module("openvino")
    core = openvino.Core()
    device = _device(core, settings)
    try:
        return device, str(core.get_property(device, "FULL_DEVICE_NAME"))
    except RuntimeError:  # One that is made of others.
        return device, ", ".join(str(core.get_property(name, "FULL_DEVICE_NAME")) for name in core.available_devices)


def _device(core: Any, settings: SessionSettings) -> str:
    """Return OpenVINO's name of the device that is asked for; the CPU by default."""
    asked = settings.device
    if asked is None:
        return "CPU"
    if isinstance(asked, str) and (asked in core.available_devices or _COMPOSED.match(asked)):
        return asked
    names: list[str] = core.available_devices
    devices = [
        Device(number, f"{name}: {core.get_property(name, 'FULL_DEVICE_NAME')}") for number, name in enumerate(names)
    ]
    number = find_device(asked, settings.provider, devices)
    return names[number or 0]


def _exchange(openvino: Any, model: Any, initializers: Mapping[str, Array]) -> None:
    """Put other constants in the places of initializers, whose names their tensors keep."""
    if not initializers:
        return
    constants = {
        name: node
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
        for name in node.output(0).get_names()
    }
    for name, array in initializers.items():
        if name not in constants:
            raise SessionError(f"OpenVINO has folded initializer {name!r} away; run this model with --provider cpu")
        constant = _constant(openvino, array)
        for reader in constants[name].output(0).get_target_inputs():
            reader.replace_source_output(constant.output(0))


def _constant(openvino: Any, array: Array) -> Any:
    """Return a constant that shares an array's memory; bfloat16, which OpenVINO's Python does not know, is copied."""
    if array.dtype.name != "bfloat16":
        return openvino.op.Constant(array, shared_memory=True)
    tensor = openvino.Tensor(array.view("uint16"), openvino.Shape(array.shape), openvino.Type.bf16)
    return openvino.op.Constant(tensor, shared_memory=False)


def _is_fixed(inputs: Mapping[str, ValueSpec], sizes: Mapping[str, int]) -> bool:
    return any(dim in sizes for spec in inputs.values() for dim in spec.dims)


def _partial(spec: ValueSpec) -> list[int]:
    return [dim if isinstance(dim, int) else -1 for dim in spec.dims]


def _with_sizes(specs: Mapping[str, ValueSpec], sizes: Mapping[str, int]) -> dict[str, ValueSpec]:
    return {
        name: replace(spec, dims=tuple(sizes.get(str(dim), dim) for dim in spec.dims)) for name, spec in specs.items()
    }

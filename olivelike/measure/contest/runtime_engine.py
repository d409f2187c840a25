"""The runtime, with any provider or OpenVINO: pictures by an optimised folder, or a single network on random inputs."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from olivelike.errors import SessionError
from olivelike.families import TEXT_ENCODERS
from olivelike.measure.contest.engine import ONNXRUNTIME, Engine, EngineAbsent, Stage, Stopwatch, Timing, Turn
from olivelike.measure.network_sizes import GUIDED, random_values, sizes_of
from olivelike.measure.one_file_inputs import is_one_file, one_file_inputs, with_operators
from olivelike.runtime.pipeline.pipeline import Pipeline
from olivelike.runtime.pipeline.pipeline_folder import (
    PipelineFolder,
    check_folder_target,
    open_folder,
    read_folder_target,
)
from olivelike.runtime.pipeline.request import Request
from olivelike.runtime.sessions.devices import require_nvidia
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.providers import OPENVINO, require_provider
from olivelike.runtime.sessions.session import BoundCall, Session, ValueSpec, empty, read_model_file
from olivelike.runtime.sessions.session_settings import SessionSettings

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session import Buffer

_STAGES: Final[dict[str, Stage]] = {
    "text_encoder": "text_encoder",
    "text_encoder_2": "text_encoder",
    "vae_decoder": "vae_decoder",
    "safety_checker": "safety_checker",
}
_TOKENS = 256
"""Token ids stay below: every vocabulary begins with the bytes."""
_GUIDED = (*TEXT_ENCODERS, *GUIDED)
"""Networks that are run once for both prompts of a picture."""


@dataclass(frozen=True)
class PipelineJob:
    """Pictures by an engine, from an optimised folder."""

    engine: str
    folder: Path
    sessions: SessionSettings
    size: tuple[int, int]
    """Width and height."""
    steps: int
    safety: bool

    def start(self) -> Engine:
        """Open the engine, as `Job.start`."""
        return PipelineEngine(self)


@dataclass(frozen=True)
class NetworkJob:
    """A single network on random inputs."""

    model: Path
    """The ONNX file."""
    sessions: SessionSettings
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of its dynamic dimensions, by name."""

    def start(self) -> Engine:
        """Open the network, as a pipeline is opened."""
        return OneFileEngine(self) if is_one_file(self.model) else NetworkEngine(self)


class PipelineEngine(Engine):
    """A pipeline of the runtime."""

    def __init__(self, job: PipelineJob) -> None:
        self._job = job
        _require(job)
        self._stopwatch = Stopwatch()
        self._pipeline = self._open(open_folder(job.folder))
        provider = self._pipeline.provider
        openvino = job.sessions.provider.name == OPENVINO
        self.facts = {
            "version": runtime_version(job.sessions),
            "provider": provider,
            "dtype": _openvino_dtype(job.sessions, provider) if openvino else kept_in(job.folder),
        }

    def _open(self, folder: PipelineFolder) -> Pipeline:
        """Open a pipeline whose networks tell when they run, all but the UNet."""

        def timed(component: str, session: Session) -> Session:
            stage = _STAGES.get(component)
            return session if stage is None else _TimedSession(session, stage, self._stopwatch)

        pipeline = Pipeline(folder, self._job.sessions, safety=self._job.safety, initializers={}, through=timed)
        pipeline.wait()
        return pipeline

    def run(self, turn: Turn) -> Timing:
        """Make a batch of pictures."""
        job = self._job
        request = Request(
            (turn.prompt,),
            num_images=turn.batch_size,
            batch_size=turn.batch_size,
            steps=job.steps,
            seed=turn.seed,
            size=job.size,
            guidance_scale=self._pipeline.folder.family.guidance,
        )
        self._pipeline.forget_texts()
        self._stopwatch.start()
        self._pipeline.generate(request, on_step=lambda _: self._stopwatch.step())
        return self._stopwatch.stop()


class _TimedSession(Session):
    """A session that tells when it runs."""

    def __init__(self, session: Session, stage: Stage, stopwatch: Stopwatch) -> None:
        specs = session.inputs, session.outputs
        super().__init__(session.network, *specs, session.provider, session.moves_inputs)
        self._session = session
        self._stage: Stage = stage
        self._stopwatch = stopwatch

    def _bind(
        self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer], constant: Collection[str]
    ) -> _TimedCall:
        return _TimedCall(self._session.bind(inputs, outputs, constant), self._stage, self._stopwatch)


class _TimedCall:
    def __init__(self, call: BoundCall, stage: Stage, stopwatch: Stopwatch) -> None:
        self._call = call
        self._stage: Stage = stage
        self._stopwatch = stopwatch

    def run(self) -> None:
        self._stopwatch.enter(self._stage)
        self._call.run()
        self._stopwatch.leave(self._stage)


def runtime_version(settings: SessionSettings) -> str:
    """Return the version of the engine that opens sessions of these settings."""
    if settings.provider.name == OPENVINO:
        return version("openvino")
    import onnxruntime

    return cast("str", onnxruntime.__version__)


def weights_dtype(folder: Path) -> str:
    """Return what most weights in float of a folder's denoiser are: `float32` or `float16`."""
    from onnx import TensorProto, helper

    model = _denoiser(folder)
    counts = Counter(tensor.data_type for tensor in model.graph.initializer)
    floats = [kind for kind in counts if kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)]
    most = max(floats, key=lambda kind: counts[kind], default=TensorProto.FLOAT)
    return str(helper.tensor_dtype_to_np_dtype(most))


def kept_in(folder: Path) -> str:
    """Return what a folder's denoiser is quantised to, such as `w8` or `int8`, else what most of its weights are."""
    import onnx
    import onnx_ir as ir

    from olivelike.graphs.inspect.quantised import quantised_precision

    model = ir.from_proto(onnx.ModelProto.FromString(_denoiser(folder).SerializeToString()))
    return quantised_precision(model.graph) or weights_dtype(folder)


def _denoiser(folder: Path) -> Any:
    opened = open_folder(folder)
    return read_model_file(opened.model(opened.family.denoiser))


def _require(job: PipelineJob) -> None:
    """Check the provider first, where it was not the user who named it: then it is absent, and has not failed."""
    target = read_folder_target(job.folder)
    models = open_folder(job.folder).models(safety=job.safety)
    try:
        require_provider(job.sessions.provider)
        require_nvidia(job.sessions.provider)
        if target is not None:
            check_folder_target(target.name, job.sessions, models)
    except SessionError as error:
        if job.engine == ONNXRUNTIME:
            raise
        raise EngineAbsent(str(error)) from error


def _openvino_dtype(settings: SessionSettings, provider: str) -> str:
    """Return the precision that OpenVINO computes in, which is its own choice unless it is told."""
    if (hint := settings.options.get("INFERENCE_PRECISION_HINT")) is not None:
        return hint
    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    device = provider.removeprefix(f"{OPENVINO} ")
    try:
        chosen = openvino.Core().get_property(device, "INFERENCE_PRECISION_HINT")
    except RuntimeError:  # Devices that are made of others have none.
        return "unknown"
    return str(chosen.get_type_name())


class OneFileEngine(Engine):
    """A pipeline in one file, in a session."""

    def __init__(self, job: NetworkJob) -> None:
        from olivelike.runtime.sessions.ort_session import open_ort_session

        opened = open_ort_session(job.model, with_operators(job.model, job.sessions), {})
        self._session = opened.inference_session
        metadata = self._session.get_modelmeta().custom_metadata_map
        self._inputs = one_file_inputs(opened.inputs.values(), metadata, **job.sizes)
        self._stopwatch = Stopwatch()
        self.facts = {"version": runtime_version(job.sessions), "provider": opened.provider, "dtype": ""}

    def run(self, turn: Turn) -> Timing:  # noqa: ARG002  (each run is the same)
        """Draw pictures, which come back in the computer's memory."""
        self._stopwatch.start()
        self._session.run(None, self._inputs)
        return self._stopwatch.stop()


class NetworkEngine(Engine):
    """A network in a session, its buffers bound once."""

    def __init__(self, job: NetworkJob) -> None:
        session = open_session(job.model, job.sessions)
        self._stopwatch = Stopwatch()
        shapes = network_shapes(session.inputs.values(), session.outputs.values(), job.sizes, job.model)
        wide = {
            name: ("float32" if "float" in spec.dtype else spec.dtype, shapes[name])
            for name, spec in session.inputs.items()
        }
        self._inputs = {
            name: array.astype(session.inputs[name].dtype) for name, array in random_values(wide, _TOKENS).items()
        }
        outputs = {name: empty(spec.dtype, shapes[name]) for name, spec in session.outputs.items()}
        self._call = session.bind(self._inputs, outputs)
        self.facts = {
            "version": runtime_version(job.sessions),
            "provider": session.provider,
            "dtype": next((spec.dtype for spec in session.inputs.values() if "float" in spec.dtype), ""),
        }

    def run(self, turn: Turn) -> Timing:  # noqa: ARG002  (each run is the same)
        """Run the network once."""
        self._stopwatch.start()
        self._call.run()
        return self._stopwatch.stop()


def network_shapes(
    inputs: Iterable[ValueSpec], outputs: Iterable[ValueSpec], given: Mapping[str, int], model: Path
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs and outputs, by name.

    Raises `UsageError` for a dimension whose size is not known, and `SourceError` for a `config.json` that can't be
    read.

    Args:
        inputs: Their dimensions are numbers or names.
        outputs: Their dimensions may also be formulas over names (`8*decoder_height`).
        given: Sizes by name. By default a guided batch of one picture, of the size that `config.json` says.
        model: The ONNX file, in its component's folder.
    """
    sizes, known = sizes_of(model.parent, guided=_GUIDED), dict(given)
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in (*inputs, *outputs):
        shapes[spec.name] = sizes.shape(model.parent.name, spec.name, spec.dims, known)
        for dim, size in zip(spec.dims, shapes[spec.name], strict=True):
            known.setdefault(str(dim), size)
    return shapes

"""An optimised folder in the runtime: ONNX Runtime with any provider, TensorRT among them, or OpenVINO."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, cast

from olivelike.errors import SessionError
from olivelike.measure.bench.engines import ONNXRUNTIME, EngineAbsent
from olivelike.measure.bench.stopwatch import Stopwatch
from olivelike.model.components import MODEL_FILE
from olivelike.runtime.pipeline.folder_target import check_folder_target, read_folder_target
from olivelike.runtime.pipeline.pipeline import Pipeline
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.request import Request
from olivelike.runtime.sessions.devices import require_nvidia
from olivelike.runtime.sessions.model_file import read_model_file
from olivelike.runtime.sessions.providers import OPENVINO, require_provider
from olivelike.runtime.sessions.session import Network, Session

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import torch

    from olivelike.measure.bench.bench_job import PipelineJob, Turn
    from olivelike.measure.bench.stopwatch import Stage, Timing
    from olivelike.runtime.sessions.session import BoundCall
    from olivelike.runtime.sessions.session_settings import SessionSettings

_STAGES: Final[dict[str, Stage]] = {
    "text_encoder": "text_encoder",
    "text_encoder_2": "text_encoder",
    "vae_decoder": "vae_decoder",
    "safety_checker": "safety_checker",
}


class PipelineEngine:
    """A pipeline of the runtime."""

    def __init__(self, job: PipelineJob) -> None:
        self._job = job
        _require(job)
        self._stopwatch = Stopwatch(_synchronize if _is_on_gpu(job.sessions) else lambda: None)
        self._pipeline = _TimedPipeline(job, self._stopwatch)
        provider = self._pipeline.unet.session.provider
        openvino = job.sessions.provider.name == OPENVINO
        self.facts = {
            "version": runtime_version(job.sessions),
            "provider": provider,
            "dtype": _openvino_dtype(job.sessions, provider) if openvino else weights_dtype(job.folder),
        }

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
        )
        self._stopwatch.start()
        self._pipeline.generate(request, on_step=lambda _: self._stopwatch.step())
        return self._stopwatch.stop()

    def device_bytes(self) -> int | None:
        """Return `None`: only the driver knows what a provider has allocated."""
        return None


class _TimedPipeline(Pipeline):
    """A pipeline whose networks tell when they run, all but the UNet."""

    def __init__(self, job: PipelineJob, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        super().__init__(open_folder(job.folder), job.sessions, safety=job.safety, initializers={})

    def _open(self, component: str) -> Network:
        network = super()._open(component)
        stage = _STAGES.get(component)
        if stage is None:
            return network
        return Network(component, _TimedSession(network.session, stage, self._stopwatch))


class _TimedSession(Session):
    """A session that tells when it runs."""

    def __init__(self, session: Session, stage: Stage, stopwatch: Stopwatch) -> None:
        specs = session.inputs, session.outputs
        super().__init__(
            session.network, *specs, session.provider, session.tensor_device, session.moves_inputs
        )
        self._session = session
        self._stage: Stage = stage
        self._stopwatch = stopwatch

    def _bind(
        self,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        constant: Collection[str],
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
    """Return what most weights of a folder's UNet are: `float32` or `float16`."""
    from onnx import TensorProto, helper

    model = read_model_file(folder / "unet" / MODEL_FILE)
    counts = Counter(tensor.data_type for tensor in model.graph.initializer)
    most = max(counts, key=lambda kind: counts[kind], default=TensorProto.FLOAT)
    return str(helper.tensor_dtype_to_np_dtype(most))


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
    import importlib

    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    device = provider.removeprefix(f"{OPENVINO} ")
    try:
        chosen = openvino.Core().get_property(device, "INFERENCE_PRECISION_HINT")
    except RuntimeError:  # Devices that are made of others have none.
        return "unknown"
    return str(chosen.get_type_name())


def _is_on_gpu(settings: SessionSettings) -> bool:
    import torch

    return settings.provider.name in {"CUDAExecutionProvider", "TensorrtExecutionProvider"} and bool(
        torch.cuda.is_available()
    )


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()

"""The loop of a pipeline that Triton serves: its `model.py` is this, with a folder.

Its networks are models of the same server. Each step of a picture is a call of one of them; texts, schedulers, noise
and everything between the calls are what `olivelike generate` runs. The calls, which Triton calls business logic
scripting (BLS), are those of `triton_python_backend_utils`, which is there inside of Triton alone; the README of
triton-inference-server/python_backend has them.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar

from olivelike._untrusted import JsonView, read_settings
from olivelike.errors import Interrupted, OlivelikeError, SessionError, SourceError, UsageError
from olivelike.extras.deploy.served import NETWORKS_FILE, PIPELINE_INPUTS
from olivelike.families import DENOISERS
from olivelike.model.components import INDEX_FILE
from olivelike.runtime.pipeline.pipeline import Pipeline
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
from olivelike.runtime.pipeline.request import Request, RequestFields
from olivelike.runtime.sessions.session import BoundCall, Network, Session, ValueSpec
from olivelike.runtime.sessions.session_settings import SessionSettings

if TYPE_CHECKING:
    import numpy as np

    from olivelike.runtime.sessions.session import Buffer

_MOST_PICTURES = 64
"""Most pictures that one request may ask for; they are one batch."""
_AGAIN = "run the workflow that made the repository again"


@dataclass(frozen=True)
class ServedFolder(PipelineFolder):
    """The configs of a pipeline whose networks are elsewhere."""

    networks: frozenset[str] = frozenset()

    def has(self, component: str) -> bool:
        """Say whether there is a network of that name."""
        return component in self.networks

    def model(self, component: str) -> Path:
        """Return where the config of a served network lies. Raises `SourceError` if none is served."""
        return self.path / component if self.has(component) else super().model(component)


class TritonModel:
    """A model of Triton's Python back end, which calls `initialize`, then `execute` for requests."""

    folder: ClassVar[Path]
    """Folder of the configs, tokenizers and `networks.json`."""

    def initialize(self, args: Mapping[str, str]) -> None:  # noqa: ARG002  (Triton hands them over)
        """Open what is no network; the server loads those by itself.

        Raises `SourceError` if a file is missing or damaged.
        """
        self._pipeline = open_served(self.folder)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Draw the pictures of each request; Triton wants a response for each, pictures or an error."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        backend = triton_backend()
        try:
            return backend.InferenceResponse(output_tensors=self._draw(request))
        except OlivelikeError as error:
            codes = {UsageError: backend.TritonError.INVALID_ARG, Interrupted: backend.TritonError.CANCELLED}
            code = next((code for kind, code in codes.items() if isinstance(error, kind)), backend.TritonError.INTERNAL)
            return backend.InferenceResponse(error=backend.TritonError(str(error), code))

    def _draw(self, request: Any) -> list[Any]:
        import numpy as np

        backend = triton_backend()
        cancel = Event()

        def look(_: object) -> None:
            if request.is_cancelled():
                cancel.set()

        given = {
            spec.name: _values(spec.name, tensor.as_numpy(), one=spec.dims == (1,))
            for spec in PIPELINE_INPUTS
            if (tensor := backend.get_input_tensor_by_name(request, spec.name)) is not None
        }
        batches = self._pipeline.batches(_request(given, self._pipeline.folder), on_step=look, cancel=cancel)
        pictures = [picture for batch in batches for picture in batch.pictures]
        tensors = {
            "images": np.stack([np.asarray(picture.image, np.uint8) for picture in pictures]),
            "seeds": np.array([picture.seed for picture in pictures], np.uint64).view(np.int64),
        }
        if self._pipeline.checks_safety:
            tensors["has_nsfw_concepts"] = np.array([bool(picture.flagged) for picture in pictures])
        return [backend.Tensor(name, array) for name, array in tensors.items()]


def open_served(path: Path) -> Pipeline:
    """Open a pipeline whose networks Triton serves.

    Raises `SourceError` if a file is missing or damaged.

    Args:
        path: The version of the model that holds the loop, as `layout: triton` writes it.
    """
    described, index = (read_settings(path / file, _AGAIN) for file in (NETWORKS_FILE, INDEX_FILE))
    name = next((name for name in DENOISERS if name in described), DENOISERS[0])
    configs = (f"{name}/config.json", "vae_decoder/config.json", "scheduler/scheduler_config.json")
    denoiser, vae, scheduler = (read_settings(path / config, _AGAIN, unbounded=True) for config in configs)
    try:
        networks = {
            name: Network(name, TritonSession(name, _specs(one["inputs"]), _specs(one["outputs"])))
            for name, one in described.items()
        }
    except (KeyError, TypeError) as error:
        raise SourceError(f"{path / NETWORKS_FILE}: describes no networks: {error!r}; {_AGAIN}") from error
    folder = ServedFolder(path, index, denoiser, vae, scheduler, networks=frozenset(networks))
    return Pipeline(folder, SessionSettings(), safety=True, initializers={}, shared=networks)


def _specs(described: Sequence[JsonView]) -> list[ValueSpec]:
    return [ValueSpec(one["name"], one["dtype"], tuple(one["dims"])) for one in described]


def _values(name: str, array: Any, *, one: bool) -> list[Any]:
    if one and array.size != 1:
        raise UsageError(f"{name}: has {array.size} values; give one")
    values: list[Any] = array.reshape(-1).tolist()
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is no UTF-8") from error


def _request(given: Mapping[str, list[Any]], folder: PipelineFolder) -> Request:
    prompts = tuple(given.get("prompt", ()))
    if not 0 < len(prompts) <= _MOST_PICTURES:
        raise UsageError(f"prompt: has {len(prompts)} texts; give 1 to {_MOST_PICTURES}")
    fields: RequestFields = {"prompts": prompts, "batch_size": len(prompts)}
    if "negative_prompt" in given:
        fields["negative_prompt"] = given["negative_prompt"][0]
    if "seed" in given:
        fields["seed"] = given["seed"][0]
        if given["seed"][0] < 0:
            raise UsageError(f"seed: {given['seed'][0]} is none; give 0 to {2**63 - 1}")
    if "steps" in given:
        fields["steps"] = given["steps"][0]
    if "guidance" in given:
        fields["guidance_scale"] = given["guidance"][0]
    if given.get("scheduler", [""])[0]:
        fields["scheduler"] = given["scheduler"][0]
    if "width" in given or "height" in given:
        width, height = folder.default_size
        fields["size"] = given.get("width", [width])[0], given.get("height", [height])[0]
    return Request(**fields)


def triton_backend() -> Any:
    """Return the module that Triton gives to Python models."""
    return importlib.import_module("triton_python_backend_utils")


class TritonSession(Session):
    """A network of the same server."""

    def __init__(self, network: str, inputs: Iterable[ValueSpec], outputs: Iterable[ValueSpec]) -> None:
        taken, given = ({spec.name: spec for spec in specs} for specs in (inputs, outputs))
        super().__init__(network, taken, given, "Triton", moves_inputs=False)

    def _bind(
        self,
        inputs: Mapping[str, Buffer],
        outputs: Mapping[str, Buffer],
        constant: Collection[str],  # noqa: ARG002  (each call carries all inputs)
    ) -> BoundCall:
        return _TritonCall(self.network, dict(inputs), dict(outputs))


@dataclass(frozen=True, eq=False)
class _TritonCall:
    network: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    """Arrays; a server has no others."""

    def run(self) -> None:
        """Send the bound inputs, wait, and fill the bound outputs; they come to the CPU from wherever they are."""
        import numpy as np

        backend = triton_backend()
        request = backend.InferenceRequest(
            model_name=self.network,
            requested_output_names=list(self.outputs),
            inputs=[backend.Tensor(name, array) for name, array in self.inputs.items()],
            preferred_memory=backend.PreferredMemory(backend.TRITONSERVER_MEMORY_CPU, 0),
        )
        response = request.exec()
        if response.has_error():
            raise SessionError(f"{self.network}: Triton: {response.error().message()}")
        for name, array in self.outputs.items():
            found: np.ndarray[Any, Any] = backend.get_output_tensor_by_name(response, name).as_numpy()
            if found.shape != array.shape:
                raise SessionError(f"{self.network}: output {name!r} has the shape {found.shape}, not {array.shape}")
            np.copyto(array, found, casting="no")

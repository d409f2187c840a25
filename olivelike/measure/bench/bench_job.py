"""What goes to a child: the job that it opens, and the turns that it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from olivelike.runtime.sessions.providers import OPENVINO, find_provider
from olivelike.runtime.sessions.session_settings import ProviderChoice, SessionSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from olivelike.measure.bench.bench_settings import TorchDtype


@dataclass(frozen=True)
class PipelineJob:
    """Pictures by an engine, from an optimised folder or from what it was made of."""

    engine: str
    folder: Path
    """The optimised pipeline; torch takes scheduler and precision from it."""
    sessions: SessionSettings
    size: tuple[int, int]
    """Width and height."""
    steps: int
    safety: bool
    checkpoint: str | None = None
    """What torch runs: a folder, a file or a hub id."""
    revision: str | None = None
    """Commit of a hub id."""
    torch_dtype: TorchDtype | None = None
    channels_last: bool = False
    """Whether torch keeps the UNet's weights in the order that some convolutions are faster in."""


@dataclass(frozen=True)
class NetworkJob:
    """A single network on random inputs."""

    model: Path
    """The ONNX file."""
    sessions: SessionSettings
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of its dynamic dimensions, by name."""


Job = PipelineJob | NetworkJob


@dataclass(frozen=True)
class Turn:
    """One run."""

    prompt: str = ""
    seed: int = 0
    batch_size: int = 1


def encode_job(job: Job) -> dict[str, Any]:
    """Return a job as JSON values."""
    fields = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(job).items()
        if name != "sessions"
    }
    return {"kind": type(job).__name__, **fields, "sessions": _encode_sessions(job.sessions)}


def decode_job(content: dict[str, Any]) -> Job:
    """Return what `encode_job` encoded."""
    content = dict(content)
    kind, sessions = content.pop("kind"), _decode_sessions(content.pop("sessions"))
    if kind == NetworkJob.__name__:
        return NetworkJob(Path(content.pop("model")), sessions, **content)
    width, height = content.pop("size")
    return PipelineJob(folder=Path(content.pop("folder")), sessions=sessions, size=(width, height), **content)


def _encode_sessions(settings: SessionSettings) -> dict[str, Any]:
    paths = {name: None if (path := getattr(settings, name)) is None else str(path) for name in _PATHS}
    return {**asdict(settings), **paths}


def _decode_sessions(content: dict[str, Any]) -> SessionSettings:
    choices = tuple(
        ProviderChoice(find_provider(_spelling(choice["provider"]["name"])), choice["options"])
        for choice in content["providers"]
    )
    paths = {name: None if content[name] is None else Path(content[name]) for name in _PATHS}
    operators = tuple(content["custom_operators"])
    return SessionSettings(
        **cast("Any", {**content, **paths, "providers": choices, "custom_operators": operators})
    )


_PATHS = ("profile", "weights")


def _spelling(provider: str) -> str:
    return "openvino" if provider == OPENVINO else provider

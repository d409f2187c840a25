"""What goes to a child: the job that it opens, and the turns that it runs."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.measure.bench.bench_settings import TorchDtype
    from olivelike.runtime.sessions.session_settings import SessionSettings


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
    return {"job": base64.b64encode(pickle.dumps(job)).decode("ascii")}


def decode_job(content: Mapping[str, Any]) -> Job:
    """Return what `encode_job` encoded; a child has it from its parent alone, so it may be a pickle."""
    return cast("Job", pickle.loads(base64.b64decode(content["job"])))  # noqa: S301  (its parent's own)

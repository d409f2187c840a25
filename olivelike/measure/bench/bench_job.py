"""What goes to a child: the job that it opens, and the turns that it runs; and what each took, by `Stopwatch`."""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from olivelike.measure.bench.bench_settings import TorchDtype
    from olivelike.runtime.sessions.session_settings import SessionSettings

Stage = Literal["text_encoder", "vae_decoder", "safety_checker"]


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


@dataclass(frozen=True)
class Timing:
    """Seconds of a run, and of its stages where a run has stages."""

    seconds: float
    """From the prompts to the pictures."""
    steps: int = 0
    """Evaluations of the UNet, which some schedulers want more of than steps."""
    text_encoder: float | None = None
    """From the beginning until the prompts are encoded."""
    loop: float | None = None
    """From there until latents are handed to the decoder."""
    vae_decoder: float | None = None
    safety_checker: float | None = None
    """Within the network; `None` if none ran."""
    first_step: float | None = None
    """From the beginning until the first evaluation of the UNet is done."""


class Stopwatch:
    """Marks of one run after another.

    Stages are told apart at the networks around the loop: the text encoder's last run ends the first, the decoder's
    first run begins the third. So the loop needs no marks, and nothing in it waits for the GPU but for its first step.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._start = 0.0
        self._entered: dict[Stage, float] = {}
        self._first: dict[Stage, float] = {}
        self._last: dict[Stage, float] = {}
        self._busy: dict[Stage, float] = {}
        self._steps = 0
        self._first_step: float | None = None

    def start(self) -> None:
        """Begin a run."""
        self._first, self._last, self._busy, self._steps = {}, {}, {}, 0
        self._first_step = None
        self._start = self._now()

    def enter(self, stage: Stage) -> None:
        """A network of this stage is about to run."""
        self._entered[stage] = self._now()
        self._first.setdefault(stage, self._entered[stage])

    def leave(self, stage: Stage) -> None:
        """It has run."""
        self._last[stage] = self._now()
        self._busy[stage] = self._busy.get(stage, 0.0) + self._last[stage] - self._entered[stage]

    def step(self) -> None:
        """A step of the loop is done."""
        self._steps += 1
        if self._first_step is None:
            self._first_step = self._now() - self._start

    def stop(self) -> Timing:
        """End the run."""
        end = self._now()
        encoded, decoding = self._last.get("text_encoder"), self._first.get("vae_decoder")
        return Timing(
            seconds=end - self._start,
            steps=self._steps,
            text_encoder=None if encoded is None else encoded - self._start,
            loop=None if encoded is None or decoding is None else decoding - encoded,
            vae_decoder=None if decoding is None else self._last["vae_decoder"] - decoding,
            safety_checker=self._busy.get("safety_checker"),
            first_step=self._first_step,
        )

    def _now(self) -> float:
        self._synchronize()
        return time.perf_counter()

"""Engines that a child opens and runs turn by turn, and a turn's times, by `Stopwatch`."""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, cast

from olivelike.errors import SessionError

Stage = Literal["text_encoder", "vae_decoder", "safety_checker"]

ONNXRUNTIME: Final = "onnxruntime"
"""The engine that nobody has to name."""


class EngineAbsent(SessionError):  # noqa: N818  (no error: the engine is left out, and the reason told)
    """An engine can't be measured on this machine or for this folder; the message says why."""


class Engine(Protocol):
    """Opened engine of a child."""

    facts: dict[str, str]
    """`version`, `provider` and `dtype`, for the table."""

    def run(self, turn: Turn) -> Timing:
        """Run once."""

    def device_bytes(self) -> int | None:
        """Return the device memory that its allocator has had at most; `None` if only the driver knows."""
        return None


class Job(Protocol):
    """Order that a child opens its engine by; a value, which goes to it as a pickle."""

    def start(self) -> Engine:
        """Open the engine, in a child.

        Raises `EngineAbsent` if it can't be measured here, and `OlivelikeError` if it can't open what it should.
        """


@dataclass(frozen=True)
class Turn:
    """One run."""

    prompt: str = ""
    seed: int = 0
    batch_size: int = 1


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


def encode_job(job: Job) -> dict[str, str]:
    """Return a job as JSON values."""
    return {"job": base64.b64encode(pickle.dumps(job)).decode("ascii")}


def decode_job(content: Mapping[str, str]) -> Job:
    """Return what `encode_job` encoded; a child has it from its parent alone, so it may be a pickle."""
    return cast("Job", pickle.loads(base64.b64decode(content["job"])))  # noqa: S301  (its parent's own)

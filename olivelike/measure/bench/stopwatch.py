"""`Stopwatch`: what a run took, and its stages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Stage = Literal["text_encoder", "vae_decoder", "safety_checker"]


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


class Stopwatch:
    """Marks of one run after another.

    Stages are told apart at the networks around the loop: the text encoder's last run ends the first, the decoder's
    first run begins the third. So the loop needs no marks, and nothing in it waits for the GPU.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._start = 0.0
        self._entered: dict[Stage, float] = {}
        self._first: dict[Stage, float] = {}
        self._last: dict[Stage, float] = {}
        self._busy: dict[Stage, float] = {}
        self._steps = 0

    def start(self) -> None:
        """Begin a run."""
        self._first, self._last, self._busy, self._steps = {}, {}, {}, 0
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
        )

    def _now(self) -> float:
        self._synchronize()
        return time.perf_counter()

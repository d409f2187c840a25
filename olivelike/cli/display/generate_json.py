"""What `olivelike generate --json` tells programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from olivelike.cli.stdout import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from olivelike.cli.commands.live_loras import LiveLora
    from olivelike.runtime.pipeline.denoising import Step
    from olivelike.runtime.pipeline.pipeline import Pipeline
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.pipeline.result import Batch, Picture


class JsonLines:
    """For programs: an object per line; the last one is `generate_finished`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._written: list[str] = []
        self._flagged = 0
        self._sheet: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write(
            "generate_finished",
            pictures=self._written,
            flagged=self._flagged,
            sheet=self._sheet,
            seconds=round(time.monotonic() - self._began, 3),
            error=None if error is None else str(error) or type(error).__name__,
        )

    def opening(self, folder: Path, loras: Sequence[LiveLora]) -> None:
        """Write `opening`."""
        self._write("opening", folder=str(folder), loras=[lora.used.name for lora in loras])

    def note(self, text: str) -> None:
        """Write `note`."""
        self._write("note", text=text)

    def started(self, pipeline: Pipeline, request: Request, safety: bool, pictures: int) -> None:  # noqa: ARG002
        """Write `generate_started`."""
        assert request.size is not None
        self._write(
            "generate_started",
            provider=pipeline.unet.session.provider,
            pictures=pictures,
            width=request.size[0],
            height=request.size[1],
            seed=request.seed,
            checked=pipeline.checks_safety,
        )

    def step(self, step: Step, request: Request, prompts: Sequence[str]) -> None:  # noqa: ARG002
        """Write `step`."""
        place = {"batch": step.batch, "batches": step.batches, "attempt": step.attempt}
        self._write("step", **place, step=step.number, steps=step.total, timestep=step.timestep)

    def picture(self, picture: Picture, prompt: str, path: Path) -> None:
        """Write `picture`."""
        self._written.append(str(path))
        self._flagged += picture.flagged is True
        self._write(
            "picture",
            path=str(path),
            prompt=prompt,
            seed=picture.seed,
            first_seed=picture.first_seed,
            attempts=picture.attempts,
            flagged=picture.flagged,
        )

    def batch(self, batch: Batch) -> None:
        """Write `batch_finished`."""
        self._write(
            "batch_finished",
            batch=batch.number,
            batches=batch.total,
            pictures=len(batch.pictures),
            passed=batch.passed,
            seconds=round(batch.seconds, 3),
        )

    def sheet(self, path: Path) -> None:
        """Keep it for the last event."""
        self._sheet = str(path)

    def _write(self, event: str, **data: Any) -> None:
        write_json({"event": event, **data})

"""A process that draws for a server and, asked by `serve.py`, as one process does that has no server around it.

So both pictures share networks, memory and thread, and how fast the machine and its scheduler let this process be.

    python benchmarks/served_child.py serve FOLDER ...

is `olivelike serve` with such a process, which connects to `$OLIVELIKE_BENCHMARK`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, NamedTuple

import bare_server
import numpy as np
from PIL import Image

from olivelike.runtime.jobs.job_notes import picture_record
from olivelike.runtime.pictures import PictureWriter, writer
from olivelike.runtime.pictures.picture_record import encode_picture
from olivelike.runtime.pipeline.pipeline import Pipeline
from olivelike.runtime.pipeline.request import NO_PICTURES, Batch, Picture, Request
from olivelike.serve.drawing import painter, painting

ADDRESS = "OLIVELIKE_BENCHMARK"
WAIT = "OLIVELIKE_BENCHMARK_WAIT"
"""Seconds that a fast GPU takes for a picture, and the side of that in pixels, where no GPU is there.

This process waits so long, and has noise, whose file is as large as one can be.
"""


class Straight(NamedTuple):
    """A picture that is to be drawn without the server."""

    folder: str
    prompt: str
    seed: int
    steps: int
    size: tuple[int, int]
    written: str | None
    """Folder for its file; none makes the file's bytes alone, which a client is sent."""


class Drawn(NamedTuple):
    """What it took, in seconds."""

    whole: float
    drawing: float
    """With packing its file, which is the same code in both, and varies by more than a server adds."""
    processor: float


_packing = [0.0]
"""Seconds that packing the last picture's file took."""


def _packed(*values: Any, **more: Any) -> bytes:
    began = time.perf_counter()
    data = encode_picture(*values, **more)
    _packing[0] = time.perf_counter() - began
    return data


class MeasuredPainting(painting.Painting):
    """The process's state, which also hears `serve.py`."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self._seconds = 0.0
        """What drawing the last batch took."""
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        with Client(os.environ[ADDRESS]) as connection:
            connection.send(bare_server.start(self._bare))
            while True:
                asked = connection.recv()
                if asked is None:
                    self._jobs.put(lambda: connection.send(self._seconds + _packing[0]))
                else:
                    self._jobs.put(lambda asked=asked: connection.send(tuple(self._straight(Straight(*asked)))))

    def tell(self, answer: str, **values: Any) -> None:
        """Tell the parent, and keep what `serve.py` asks for."""
        if answer == "batch":
            self._seconds = values["seconds"]
        super().tell(answer, **values)

    def _bare(self, order: dict[str, Any], answer: bare_server.Answer) -> None:
        """Draw a picture for the bare server, in the thread that draws the other's."""
        asked = Straight(**order)

        def draw() -> None:
            file = self._drawn(self._pipeline(asked), asked)
            answer(file if isinstance(file, bytes) else file.read_bytes())

        self._jobs.put(draw)

    def _straight(self, asked: Straight) -> Drawn:
        pipeline = self._pipeline(asked)
        began, used = time.perf_counter(), time.process_time()
        self._drawn(pipeline, asked)
        return Drawn(time.perf_counter() - began, self._seconds + _packing[0], time.process_time() - used)

    def _pipeline(self, asked: Straight) -> Pipeline:
        return self.warm.get(Path(asked.folder), (), None, safety=True)

    def _drawn(self, pipeline: Pipeline, asked: Straight) -> bytes | Path:
        """Return a picture's file, or its bytes, if it is to be written nowhere."""
        width, height = asked.size
        request = Request((asked.prompt,), steps=asked.steps, seed=asked.seed, size=(width, height))
        request = pipeline.resolve_defaults(request)
        (batch,) = pipeline.batches(request)
        self._seconds = batch.seconds
        image, record = batch.pictures[0].image, picture_record(request, pipeline.folder, NO_PICTURES, ())
        if asked.written is None:
            return _packed(image, ".png", record)
        return PictureWriter(Path(asked.written)).save(image, record)


@cache
def _noise(side: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def _waited(pipeline: Pipeline, request: Request, **_: Any) -> Iterator[Batch]:
    began = time.monotonic()
    seconds, side = map(float, os.environ[WAIT].split())
    ((prompt, seed),) = pipeline.resolve_defaults(request).seeded_prompts
    time.sleep(seconds)
    picture = Picture(_noise(int(side)), prompt, seed, seed, flagged=None)
    yield Batch(1, 1, (picture,), time.monotonic() - began, "none")


def main() -> None:
    """Be `olivelike serve`; or, without a command line, the process that it starts."""
    if len(sys.argv) == 1:
        if WAIT in os.environ:
            Pipeline.batches = _waited
        painting.Painting = MeasuredPainting
        painting.encode_picture = writer.encode_picture = _packed
        painting.main()
    else:
        from olivelike.cli import main as command_line

        painter.MODULE = Path(__file__).stem
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # It is started by the module's name.
        command_line()


if __name__ == "__main__":
    main()

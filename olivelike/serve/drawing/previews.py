"""Previews of an order's steps, each made in a thread beside the steps that follow."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from olivelike.runtime.jobs.job_drawing import StepDone
from olivelike.runtime.pictures.preview_file import Pace, side_by_side

if TYPE_CHECKING:
    from PIL.Image import Image

_SECONDS: Final = 0.12
"""Least time between two previews."""


class Previews:
    """One preview after the other: the first step's, then as `Pace` allows, and none once the picture is there."""

    def __init__(self, tell: Callable[[StepDone], None]) -> None:
        """`tell` is called, in another thread, with the last step that is done and the preview."""
        self._tell = tell
        self._pace = Pace(_SECONDS)
        self._guard = threading.Lock()
        self._step: StepDone | None = None
        """The last one, as long as previews are told."""
        self._thread: ThreadPoolExecutor | None = None
        self._made: Future[None] | None = None

    def follow(self, step: StepDone, *, wanted: bool, beside: bool) -> None:
        """Take note of a step, and begin a preview of it if it is time for one. Raises what the last one failed with.

        The networks run beside those of the next step, if that is allowed; only the picture's file is made there
        otherwise.
        """
        with self._guard:
            self._step = step
        if self._made is not None:
            if not self._made.done():
                return
            self._made.result()
        is_due = step.step == 1 or (step.step < step.steps and self._pace.due())  # Behind the last one the picture is.
        if wanted and is_due and step.images is not None:
            began, images = time.monotonic(), step.images
            made = None if beside else images()
            self._thread = self._thread or ThreadPoolExecutor(1, "previews")
            self._made = self._thread.submit(self._make, began, images if made is None else lambda: made)

    def hide(self) -> None:
        """Tell none any more until the next step: the picture itself is told."""
        with self._guard:
            self._step = None

    def close(self) -> None:
        """Wait for the thread, whose networks may be closed then."""
        self.hide()
        if self._thread is not None:
            self._thread.shutdown()

    def _make(self, began: float, images: Callable[[], list[Any]]) -> None:
        preview = _data_url(side_by_side(images()))
        self._pace.took(time.monotonic() - began)
        with self._guard:
            if self._step is not None:
                self._tell(replace(self._step, preview=preview, prompts=()))


def _data_url(image: Image) -> str:
    """Return a small picture as text that a page can show."""
    data = io.BytesIO()
    image.save(data, "WEBP", quality=80, method=0)
    return f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"

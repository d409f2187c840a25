"""Previews of pictures while they are drawn, in a file that is written again and again."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike.errors import UsageError
from olivelike.runtime.pictures.picture_record import PNG_STRATEGY

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL.Image import Image

_SHARE: Final = 10
"""Times as long as a preview took, the next one waits: what previews may slow drawing down by, the other way round."""


@dataclass
class Pace:
    """Pace of previews: none sooner than after `least` seconds, nor while the last one is a tenth of the time.

    The first one is no measure: it loads what all of them need.
    """

    least: float = 0.0
    _next: float = field(default=0.0, init=False)
    _loaded: bool = field(default=False, init=False)

    def due(self) -> bool:
        """Tell whether it is time for one."""
        return time.monotonic() >= self._next

    def took(self, seconds: float) -> None:
        """Say how long the last one took."""
        self._next = time.monotonic() + max(self.least, _SHARE * seconds * self._loaded)
        self._loaded = True


class PreviewFile:
    """A PNG file with the last preview of the pictures that are drawn at once, side by side."""

    def __init__(self, path: Path) -> None:
        """Write previews to `path`. Raises `UsageError` if there is no folder for it, or it is no `.png`."""
        if path.suffix.lower() != ".png" or not path.parent.is_dir():
            raise UsageError(f"--preview {path}: name a .png file in a folder that is there")
        self._path = path
        self._pace = Pace()

    def show(self, preview: Callable[[], list[Image]]) -> None:
        """Write what it makes, if it is time for that. Raises `UsageError` if the file can't be written."""
        if not self._pace.due():
            return
        began = time.monotonic()
        data = io.BytesIO()
        side_by_side(preview()).save(data, "PNG", compress_type=PNG_STRATEGY)
        try:
            write_whole(self._path, data.getvalue(), durable=False)
        except OSError as error:
            raise UsageError(f"--preview {self._path}: can't be written: {error.strerror}") from error
        self._pace.took(time.monotonic() - began)


def side_by_side(images: list[Image]) -> Image:
    """Return pictures of equal size as one, in rows that are as long as there are rows."""
    from PIL import Image

    if len(images) == 1:
        return images[0]
    across = next(side for side in range(1, len(images) + 1) if side * side >= len(images))
    width, height = images[0].size
    whole = Image.new("RGB", (across * width, -(-len(images) // across) * height))
    for number, image in enumerate(images):
        whole.paste(image, (number % across * width, number // across * height))
    return whole

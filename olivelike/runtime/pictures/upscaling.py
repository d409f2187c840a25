"""Super-resolution networks as ONNX files: pictures in, larger ones out, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SessionError, UsageError
from olivelike.runtime.pictures.picture_reading import MOST_PIXELS
from olivelike.runtime.pictures.pixels import to_pictures
from olivelike.runtime.pictures.upscaler_trial import try_upscaler
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import Network, ValueSpec, read_model_file, value_specs

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from olivelike.runtime.sessions.session_settings import SessionSettings

_TILE: Final = 256
"""Pixels of a tile's side: 60 MB for each of ESRGAN's dense layers."""
_MARGIN: Final = 16
"""Pixels at a tile's edges that the next tile shows: their surroundings are not all seen."""
_UNIT: Final = 8
"""Networks with windows take sides of multiples of this."""
_COLOURS: Final = 3
_AXES: Final = 4
_FLOATS: Final = ("float32", "float16")


class Upscaler:
    """A super-resolution network, open in a session."""

    def __init__(self, path: Path, settings: SessionSettings) -> None:
        """Open a network; `settings` are those of its session.

        Raises `UsageError` if it is for something else, and `SessionError` if it can't be opened or run here.
        """
        self._name: Final = path.stem
        self._tile = check_upscaler(path)
        self.scale: Final = _scale(path, self._tile)
        """Pixels that come out for one, along one side."""
        self._network = Network("upscaler", open_session(path, settings))

    def enlarge(self, image: Image, before_tile: Callable[[int, int], None] = lambda _done, _total: None) -> Image:
        """Return a picture in RGB, `scale` times as large.

        `before_tile` is called with tiles that are done, and all there are; what it raises ends this. Raises
        `UsageError` if the picture has more pixels than any reader here takes.
        """
        import numpy as np
        from PIL import Image as PillowImage

        scale = self.scale
        if image.width * image.height * scale**2 > MOST_PIXELS:
            raise UsageError(
                f"{self._name} makes {image.width * scale}x{image.height * scale} pixels of this picture, more than "
                f"the {MOST_PIXELS:,} that are taken here; take a smaller one"
            )
        pixels = np.asarray(image.convert("RGB"))
        height, width = pixels.shape[:2]
        down, across = (
            fixed or min(_TILE, -(-side // _UNIT) * _UNIT)
            for fixed, side in zip(self._tile, (height, width), strict=True)
        )
        padded = np.pad(pixels, ((0, max(0, down - height)), (0, max(0, across - width)), (0, 0)), mode="edge")
        # Whole pictures have bytes alone: floats of one of 67 million pixels take 800 MB.
        whole = np.empty((padded.shape[0] * scale, padded.shape[1] * scale, _COLOURS), np.uint8)
        tops, lefts = _starts(padded.shape[0], down), _starts(padded.shape[1], across)
        for row, top in enumerate(tops):
            for column, left in enumerate(lefts):
                before_tile(row * len(lefts) + column, len(tops) * len(lefts))
                tile = padded[top : top + down, left : left + across].astype(np.float32).transpose(2, 0, 1)[None] / 255
                large = self._run(tile)
                y, x = (_margin(side) if start else 0 for start, side in ((top, down), (left, across)))
                shown = np.asarray(large[:, :, y * scale :, x * scale :], np.float32).clip(0, 1).transpose(0, 2, 3, 1)
                rows = slice((top + y) * scale, (top + down) * scale)
                columns = slice((left + x) * scale, (left + across) * scale)
                whole[rows, columns] = np.asarray(to_pictures(shown, _no_numbers)[0])
        return PillowImage.fromarray(whole[: height * scale, : width * scale])

    def _run(self, tile: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        session, (height, width) = self._network.session, tile.shape[2:]
        name, result = next(iter(session.inputs)), next(iter(session.outputs))
        large = (1, _COLOURS, height * self.scale, width * self.scale)
        call = self._network.prepare({name: tile.shape}, {result: large})
        call.inputs[name][...] = tile
        call.run()
        return call.outputs[result]


def _no_numbers() -> SessionError:
    return SessionError("the upscaler's output has values that are no numbers; take one in float32")


def check_upscaler(path: Path) -> tuple[int | None, int | None]:
    """Check that an ONNX file takes and gives pictures of three colours; weights are not read.

    Returns height and width that it takes; `None` for each that may be any. Raises `UsageError` if it is for something
    else, or there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such upscaler; name an ONNX file of a super-resolution network")
    try:
        graph = read_model_file(path).graph
    except SessionError as error:
        raise UsageError(
            f"{error}; an upscaler is an ONNX file (a .pth or .safetensors one is exported to ONNX first)"
        ) from error
    taken, given = value_specs(graph.input, graph.initializer), value_specs(graph.output)
    for kind, values in (("input", taken), ("output", given)):
        if wrong := _unlike_pictures(values):
            raise UsageError(
                f"{path}: is no upscaler: its {kind} is {wrong}; one that fits takes and gives float pictures of shape "
                "(1, 3, height, width)"
            )
    height, width = (side if isinstance(side, int) else None for side in next(iter(taken.values())).dims[2:])
    return height, width


def _unlike_pictures(values: Mapping[str, ValueSpec]) -> str | None:
    """Say how inputs or outputs differ from one batch of one picture, channels first; `None` if they do not."""
    if len(values) != 1:
        return f"{len(values)} values ({', '.join(values)})"
    (value,) = values.values()
    dims = value.dims
    fits = len(dims) == _AXES and all(
        isinstance(dim, str) or dim == wanted for dim, wanted in zip(dims, (1, _COLOURS), strict=False)
    )
    if fits and value.dtype in _FLOATS:
        return None
    return f"{value.dtype} of shape ({', '.join(map(str, dims))})"


def _scale(path: Path, tile: tuple[int | None, int | None]) -> int:
    """Return the factor of a network, found by one small run on the CPU, in a process of its own.

    Raises `UsageError` if it is no whole one, and `SessionError` if the run fails or does not end.
    """
    height, width = (side or 8 * _UNIT for side in tile)
    shape = try_upscaler(path, height, width)
    scale = shape[2] // height
    if scale < 1 or shape != (1, _COLOURS, height * scale, width * scale):
        raise UsageError(
            f"{path}: makes {shape[3]}x{shape[2]} pixels in {shape[1]} colours of {width}x{height} "
            "in 3; an upscaler has 3, and enlarges both sides by one whole factor"
        )
    return int(scale)


def _starts(side: int, tile: int) -> list[int]:
    """Return where tiles begin that overlap by two margins, the last one at the end."""
    last = side - tile
    return [*range(0, last, tile - 2 * _margin(tile)), last]


def _margin(tile: int) -> int:
    return min(_MARGIN, tile // 4)

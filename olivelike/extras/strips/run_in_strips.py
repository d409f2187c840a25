"""A VAE's network on a picture strip by strip, with the statistics of the whole picture.

The images between segments of the network are held in the computer's memory, in strips that go as soon as the next
image has their rows; the device has one strip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from mmap import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np

from olivelike._text import size as bytes_text
from olivelike.errors import Interrupted
from olivelike.extras.strips.cut_network import Cut, Image, Segment, cut_network
from olivelike.extras.strips.group_norms import Norm
from olivelike.model.onnx_messages import numpy_dtype
from olivelike.runtime.pipeline.strips import CutError
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.providers import TENSORRT
from olivelike.runtime.sessions.session import ENGINE_CALLS, Call, Network

Array = np.ndarray[Any, Any]

_ELEMENTS: Final = 1 << 24
"""Elements of a strip's largest value: 64 MB in float32."""
_MARGINS: Final = 8
"""Times as many rows as a margin that a strip has at least: margins are computed twice."""
_VALUES: Final = 6
"""Values of a strip that an engine holds at once, and their copies for input and output."""
_FLOAT_BYTES: Final = 4
_BFLOAT16: Final = 16


def find_cut(
    path: Path, taken: tuple[str, int], made: tuple[str, int], size: tuple[int, int], given: Mapping[str, Array]
) -> Cut:
    """Return how a network is cut. Raises `CutError` if it can't be, or memory has no room for the picture even so.

    Args:
        path: An ONNX file.
        taken: Name and channels of what it takes.
        made: Name and channels of the output that is wanted.
        size: Height and width of what it takes.
        given: Arrays in place of the file's initializers.
    """
    import psutil

    cut = cut_network(path, taken, made, given)
    needed, free = cut.memory(*size) + _VALUES * _ELEMENTS * _FLOAT_BYTES, psutil.virtual_memory().available
    if needed > free:
        raise CutError(f"between its layers the picture takes {bytes_text(needed)}, and {bytes_text(free)} are free")
    return cut


def run_in_strips(network: Network, cut: Cut, given: Array, into: Array) -> None:
    """Run a network on a picture.

    Raises `SessionError` if a segment can't be opened or run, and `Interrupted` if the engine was asked to end early.

    Args:
        network: What is cut.
        cut: How.
        given: What it takes, of shape (1, channels, height, width).
        into: Filled with what it makes, float32.
    """
    size = given.shape[-2], given.shape[-1]
    first = cut.segments[0].inputs[0]
    memory = _Memory()
    held = {first.name: _Rows(first, memory, strips={0: (given, None)})}
    for number, segment in enumerate(cut.segments):
        made = {
            image.name: _Rows(image, memory, into=None if image.name in cut.last_uses else into)
            for image in segment.outputs
        }
        for name, rows in made.items():
            rows.moments = _Moments(cut.norms[name].groups) if name in cut.norms else None
        ending = [held[name] for name in held if cut.last_uses[name] == number]
        _run_segment(network, cut, segment, size, held, made, ending)
        held = {name: rows for name, rows in held.items() if cut.last_uses[name] > number} | made


def _run_segment(
    network: Network,
    cut: Cut,
    segment: Segment,
    size: tuple[int, int],
    held: Mapping[str, _Rows],
    made: Mapping[str, _Rows],
    ending: list[_Rows],
) -> None:
    """Make images of those that are held; rows of those that are ending go."""
    scale = segment.inputs[0].scale
    height, columns = (int(scale * side) for side in size)
    factor = segment.outputs[0].scale / scale
    step, margin = _step_and_margin(segment, height, columns, factor)
    window = min(height, step + 2 * margin)
    shapes = {name: image.shape(*(int(image.scale * side) for side in size)) for name, image in cut.images.items()}
    shapes |= {image.name: image.shape(window, columns) for image in segment.inputs}
    shapes |= {image.name: image.shape(int(factor * window), int(factor * columns)) for image in segment.outputs}
    call = _prepare(network, cut, segment, shapes)
    for norm in segment.norms:
        for name, values in zip(norm.inputs, held[norm.value].factor_and_offset(norm), strict=True):
            call.inputs[name][...] = values.reshape(norm.factor_shape)
    for first in range(0, height, step):
        if ENGINE_CALLS.ended:
            raise Interrupted(f"{network.component}: interrupted between two strips")
        last = min(first + step, height)
        start, following = (min(max(row - margin, 0), height - window) for row in (first, last))
        for image in segment.inputs:
            held[image.name].read(start, call.inputs[image.port])
        call.run()
        for image in segment.outputs:
            place = int((first - start) * factor), int((last - start) * factor)
            rows = _rows(call.outputs[image.port], image.axis, *place)
            made[image.name].write(int(first * factor), rows, int(step * factor))
        for rows_of_input in ending:
            rows_of_input.drop(following if last < height else height)


def _step_and_margin(segment: Segment, height: int, columns: int, factor: Fraction) -> tuple[int, int]:
    """Return how many rows of its inputs a segment takes at once, and how many above and below them.

    `factor` is what it multiplies sides by; where it divides them, all numbers of rows are multiples of that.
    """
    unit = max(1, int(1 / factor))
    if segment.margin is None or height % unit:
        return height, 0
    channels = max(image.channels for image in (*segment.inputs, *segment.outputs))
    row = int(columns * channels * max(Fraction(1), factor * factor))
    count = math.ceil(height / max(_ELEMENTS // row, _MARGINS * segment.margin, 1))
    return unit * math.ceil(height / count / unit), unit * math.ceil(segment.margin / unit)


def _prepare(network: Network, cut: Cut, segment: Segment, shapes: Mapping[str, tuple[int, ...]]) -> Call:
    opened = network.session.opened
    assert opened is not None
    settings = replace(opened.settings, cuda_graph=False, profile=None, dimensions={})
    if settings.provider.name == TENSORRT and len(settings.providers) > 1:
        # It builds engines for minutes, for each of thirty segments.
        settings = replace(settings, providers=settings.providers[1:])
    session = open_session(opened.path, settings, content=cut.model(segment, shapes))
    inputs = {image.port: shapes[image.name] for image in segment.inputs}
    inputs |= {name: norm.factor_shape for norm in segment.norms for name in norm.inputs}
    outputs = {image.port: shapes[image.name] for image in segment.outputs}
    return Network(network.component, session).prepare(inputs, outputs)


@dataclass(eq=False)
class _Rows:
    """Rows of an image, as far as they are made and still needed."""

    image: Image
    memory: _Memory
    strips: dict[int, tuple[Array, Array | None]] = field(default_factory=dict)
    """Strips by the number of their first row, each with its memory that is to be used again."""
    moments: _Moments | None = None
    """Mean and variance of what is normalised."""
    into: Array | None = None
    """Tensor that rows are written to, if not to strips."""

    def read(self, first: int, into: Array) -> None:
        """Fill a tensor with rows, from a first one on."""
        axis = self.image.axis
        last = first + into.shape[axis]
        for start, (strip, _) in self.strips.items():
            above, below = max(first, start), min(last, start + strip.shape[axis])
            if above < below:
                _rows(into, axis, above - first, below - first)[...] = _rows(strip, axis, above - start, below - start)

    def write(self, first: int, rows: Array, most: int) -> None:
        """Keep a copy of rows; `most` is how many there are in other strips."""
        axis = self.image.axis
        if self.into is not None:
            _rows(self.into, axis, first, first + rows.shape[axis])[...] = rows
            return
        dtype = numpy_dtype(self.image.element) if self.image.element == _BFLOAT16 else rows.dtype
        memory = self.memory.take(rows.size // rows.shape[axis] * most * dtype.itemsize)
        strip = memory[: rows.size * dtype.itemsize].view(dtype).reshape(rows.shape)
        strip[...] = rows
        self.strips[first] = strip, memory
        if self.moments is not None:
            self.moments.add(np.moveaxis(strip, self.image.channel_axis, 1))

    def drop(self, before: int) -> None:
        """Let go of strips that end before a row."""
        for first, (strip, memory) in list(self.strips.items()):
            if first + strip.shape[self.image.axis] <= before:
                del self.strips[first]
                self.memory.give(memory)

    def factor_and_offset(self, norm: Norm) -> tuple[Array, Array]:
        """Return what a normalisation multiplies each channel by, and what it adds then, float32."""
        assert self.moments is not None
        weight, bias = (values.astype(np.float64) for values in (norm.weight, norm.bias))
        each = len(weight) // norm.groups
        mean, variance = (
            values.repeat(each) for values in (self.moments.mean, self.moments.squares / self.moments.count)
        )
        factor = weight / np.sqrt(variance + norm.epsilon)
        return factor.astype(np.float32), (bias - mean * factor).astype(np.float32)


def _rows(array: Array, axis: int, first: int, last: int) -> Array:
    """Return rows of an image, as a view."""
    return array[(slice(None),) * axis + (slice(first, last),)]


class _Memory:
    """Memory of strips, for the next ones of the same size; what goes back to the system, the heap would keep."""

    def __init__(self) -> None:
        self._size = 0
        self._free: list[Array] = []

    def take(self, size: int) -> Array:
        """Return bytes, as uint8."""
        if size != self._size:
            self._size, self._free = size, []
        return self._free.pop() if self._free else np.frombuffer(mmap(-1, size), np.uint8)

    def give(self, memory: Array | None) -> None:
        """Take memory back that nobody uses."""
        if memory is not None and len(memory) == self._size:
            self._free.append(memory)


class _Moments:
    """Mean and variance of groups of channels, of parts one after the other.

    By the formula of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances" (1979).
    """

    def __init__(self, groups: int) -> None:
        self.count = 0
        self.mean = np.zeros(groups)
        self.squares = np.zeros(groups)
        """Sums of the squares of differences from the mean."""

    def add(self, part: Array) -> None:
        """Count values of shape (1, channels, rows, columns) in."""
        values = part.reshape(len(self.mean), -1).astype(np.float32, copy=False)
        count = values.shape[1]
        mean = values.mean(axis=1, dtype=np.float64)
        away_from_mean = values - mean.astype(np.float32)[:, None]
        squares = np.square(away_from_mean, out=away_from_mean).sum(axis=1, dtype=np.float64)
        total, away = self.count + count, mean - self.mean
        self.squares += squares + away**2 * (self.count * count / total)
        self.mean += away * (count / total)
        self.count = total

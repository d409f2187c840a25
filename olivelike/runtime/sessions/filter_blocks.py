"""Filters of convolutions in the order in which ONNX Runtime's CPU provider computes with them.

ONNX Runtime keeps such filters in blocks of 8 or 16 channels (NCHWc, as the processor is), and takes 7 of the 10 s that
it opens SD 1.5's UNet in for putting them so. Here it rewrites a twin of the graph, whose filters are as small as they
can be without changing what it decides and hold consecutive numbers, so that where it puts them is seen; the filters
themselves are then put there by threads, while the session opens. The session is the same, to the bit of what it
computes. What can't be seen in this way is left to ONNX Runtime.

The order of a block is that of MLAS (`MlasReorderFilterOIHWBiBo` and `MlasReorderFilterOIHWBo` in its `reorder.cpp`).
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import open_file, read_bytes
from olivelike.errors import SessionError
from olivelike.runtime.sessions.engine_errors import onnxruntime_errors
from olivelike.runtime.sessions.providers import CPU

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model.onnx_messages import ModelProto, TensorProto

    Array = np.ndarray[Any, Any]

_LEAST: Final = 4 << 20
"""Numbers of all filters; ONNX Runtime reorders fewer in less than a tenth of a second."""
_MOST_BYTES: Final = 64 << 20
"""Most bytes of a graph whose weights are in data files."""
_BLOCK: Final = 16
"""Channels of the largest."""
_FIRST: Final = 0x3F800000
"""The bits of 1.0; as many as filters have numbers follow that are float32 and in their order."""
_DIMS: Final = 4
_THREADS: Final = 4
"""More of them wait for memory."""


@dataclass(frozen=True)
class Order:
    """Order of a filter's numbers."""

    block: int
    """Channels of a block: of the output, and of the input too where `both`."""
    both: bool

    def shape(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Return the dimensions of the reordered filter, whose channels are whole blocks."""
        outputs, inputs, *kernel = dims
        return (self._whole(outputs), self._whole(inputs) if self.both else inputs, *kernel)

    def put(self, rows: Array, target: Array) -> None:
        """Put the rows of one block, the first dimension of a filter, into the part of the reordered one for them.

        Args:
            rows: At most `block` rows of `[output, input, height, width]`; what is missing becomes zeros.
            target: As many numbers as a whole block has, in a row.
        """
        import numpy as np

        count, channels, height, width = rows.shape
        if self.both:
            whole = self._whole(channels)
            if whole != channels:
                rows = np.pad(rows, ((0, 0), (0, whole - channels), (0, 0), (0, 0)))
            inner = rows.reshape(count, whole // self.block, self.block, height, width).transpose(1, 3, 4, 2, 0)
        else:
            inner = rows.transpose(1, 2, 3, 0)
        placed = target.reshape(*inner.shape[:-1], self.block)
        placed[..., :count] = inner
        placed[..., count:] = 0

    def _whole(self, channels: int) -> int:
        return -(-channels // self.block) * self.block

    def of(self, filters: Array) -> Array:
        """Return a whole filter in this order."""
        import numpy as np

        shape = self.shape(filters.shape)
        found = np.empty(shape, filters.dtype)
        for number, target in enumerate(found.reshape(shape[0] // self.block, -1)):
            self.put(filters[number * self.block : (number + 1) * self.block], target)
        return found


_ORDERS: Final = tuple(Order(block, both) for block in (16, 8) for both in (True, False))


@dataclass(frozen=True)
class _Filter:
    """A filter of a model, and what stands for it in the twin."""

    tensor: TensorProto
    """Without values."""
    twin: Array
    """Numbers that follow each other, and that no other filter's twin has."""

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(self.tensor.dims)

    @property
    def place(self) -> dict[str, str]:
        """Entries of its external data: file, offset and length."""
        return {entry.key: entry.value for entry in self.tensor.external_data}


@dataclass(frozen=True)
class RewrittenModel:
    """A model as ONNX Runtime has rewritten it, to be opened without further optimisation."""

    content: bytes
    """Serialised; its data files are the model's."""
    filters: Mapping[str, tuple[_Filter, Order]]
    """Filter of the model that each initializer is, and its order."""
    others: Collection[str]
    """Initializers that are in data files as before."""

    @contextmanager
    def filled(self, folder: Path, given: Mapping[str, Array]) -> Iterator[tuple[dict[str, Array], Callable[[], None]]]:
        """Yield arrays for the reordered filters, which threads are filling, and what waits for those.

        The latter raises `SessionError` if a data file can't be read.

        Args:
            folder: Where the data files are.
            given: Arrays in place of the model's filters, by name.
        """
        import numpy as np

        arrays = {name: np.empty(order.shape(one.dims), np.float32) for name, (one, order) in self.filters.items()}
        with ThreadPoolExecutor(max(1, min(_THREADS, (os.cpu_count() or 1) - 1))) as pool:
            work = [
                pool.submit(_fill, folder, one, order, arrays[name], given.get(one.tensor.name))
                for name, (one, order) in self.filters.items()
            ]

            def wait() -> None:
                for part in work:
                    part.result()

            try:
                yield arrays, wait
            finally:
                for part in work:
                    part.cancel()


def _fill(folder: Path, one: _Filter, order: Order, target: Array, given: Array | None) -> None:
    """Fill an array with a reordered filter, block by block: what is read and written of one stays in the cache."""
    import numpy as np

    rows, *inner = one.dims
    blocks = enumerate(target.reshape(target.shape[0] // order.block, -1))
    if given is not None:
        for number, part in blocks:
            order.put(given[number * order.block : (number + 1) * order.block], part)
        return
    buffer = np.empty((order.block, *inner), np.float32)
    data = folder / one.place["location"]
    try:
        with open_file(data) as file:
            file.seek(int(one.place.get("offset", 0)))
            for number, part in blocks:
                taken = buffer[: rows - number * order.block]
                if file.readinto(taken.data.cast("B")) != taken.nbytes:
                    raise SessionError(f"{data}: is cut short in {one.tensor.name}; get the file again")
                order.put(taken, part)
    except OSError as error:
        raise SessionError(f"{data}: can't be read: {error.strerror}; check the file") from error


def rewrite(
    path: Path, content: bytes | None, options: Any, give: Callable[[Collection[str]], object]
) -> RewrittenModel | None:
    """Let ONNX Runtime rewrite a model for the CPU; `None` where that is as quick as it opens the model, or can't be.

    Args:
        path: The model, beside its data files.
        content: What is opened in its place.
        options: `SessionOptions` to open it with, which are changed for the twin.
        give: Puts arrays into the options that stand for initializers; not those with these names.
    """
    if sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file()) < 4 * _LEAST:
        return None  # Without the import of protobuf.

    import onnxruntime
    from google.protobuf.message import DecodeError

    from olivelike.model.onnx_messages import ModelProto

    try:
        model = ModelProto.FromString(read_bytes(path, _MOST_BYTES) if content is None else content)
    except (OSError, DecodeError):
        return None
    filters = _filters(model)
    if sum(prod(one.dims) for one in filters.values()) < _LEAST:
        return None
    give(filters)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / path.name
        options.optimized_model_filepath = str(written)
        options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU])
            rewritten = ModelProto.FromString(read_bytes(written, _MOST_BYTES))
        except (*onnxruntime_errors(), OSError, DecodeError):
            return None
    found = _found(rewritten, filters)
    if not found:
        return None
    tensors = rewritten.graph.initializer
    others = {one.name for one in tensors if one.data_location == one.EXTERNAL} - found.keys()
    return RewrittenModel(rewritten.SerializeToString(), found, others)


def _filters(model: ModelProto) -> dict[str, _Filter]:
    """Return the filters in data files that convolutions alone read, by name, and make them those of the twin.

    None are returned of a model with weights of other types, of which ONNX Runtime may make new ones as it opens it.
    """
    import numpy as np

    from olivelike.model.onnx_messages import TensorProto, from_array

    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    if any(one.data_location == one.EXTERNAL and one.data_type != one.FLOAT for one in graph.initializer):
        return {}
    read = Counter(name for node in graph.node for name in node.input)
    convolved: Counter[str] = Counter()
    grouped = set()
    for node in graph.node:
        if node.op_type == "Conv" and node.domain in ("", "ai.onnx"):
            convolved[node.input[1]] += 1
            if any(attribute.name == "group" and attribute.i != 1 for attribute in node.attribute):
                grouped.add(node.input[1])
    found: dict[str, _Filter] = {}
    seen, first = set(), _FIRST
    for name, times in convolved.items():
        tensor = tensors.get(name)
        if tensor is None or read[name] != times or not _is_filter(tensor):
            continue
        kept = TensorProto.FromString(tensor.SerializeToString())
        outputs, inputs, *kernel = tensor.dims
        few = _BLOCK if tuple(kernel) in seen else 2 * _BLOCK  # Two show in which order blocks are.
        if inputs % few == 0:
            seen.add(tuple(kernel))
        shape = (outputs, inputs if name in grouped or inputs % few else few, *kernel)
        twin = np.arange(first, first + prod(shape), dtype=np.uint32).view(np.float32).reshape(shape)
        first += twin.size
        found[name] = _Filter(kept, twin)
        tensor.CopyFrom(from_array(twin, name))
    return found


def _is_filter(tensor: TensorProto) -> bool:
    """Return whether a tensor is a float32 filter for two dimensions in a file of the model's folder."""
    if tensor.data_type != tensor.FLOAT or len(tensor.dims) != _DIMS or tensor.data_location != tensor.EXTERNAL:
        return False
    place = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(place.get("location", ".."))
    numbers = place.get("offset", "0"), place.get("length", str(4 * prod(tensor.dims)))
    whole = all(number.isdecimal() for number in numbers) and int(numbers[1]) == 4 * prod(tensor.dims)
    return whole and min(tensor.dims) > 0 and not location.is_absolute() and ".." not in location.parts


def _found(model: ModelProto, filters: Mapping[str, _Filter]) -> dict[str, tuple[_Filter, Order]] | None:
    """Find the filters of a rewritten twin, and put what was in the file in their places.

    Returns which filter an initializer is, and its order; `None` if one can't be told, or something else was made of
    one.
    """
    import numpy as np

    from olivelike.model.onnx_messages import TensorProto, to_array

    twins = sorted(filters.values(), key=lambda one: float(one.twin.flat[0]))
    firsts = [float(one.twin.flat[0]) for one in twins]
    found: dict[str, tuple[_Filter, Order]] = {}
    seen = set()
    for tensor in model.graph.initializer:
        if tensor.data_type != tensor.FLOAT or len(tensor.dims) != _DIMS or tensor.data_location == tensor.EXTERNAL:
            continue
        if not (values := to_array(tensor)).size:
            continue
        which = bisect_right(firsts, float(values.max())) - 1
        if which < 0:
            continue
        one = twins[which]
        if tensor.name == one.tensor.name and np.array_equal(values, one.twin):
            tensor.CopyFrom(one.tensor)
        elif order := next((o for o in _ORDERS if np.array_equal(o.of(one.twin), values)), None):
            found[tensor.name] = one, order
            placed = TensorProto(
                name=tensor.name, data_type=tensor.FLOAT, dims=order.shape(one.dims), data_location=tensor.EXTERNAL
            )
            for key, value in {"location": one.place["location"], "offset": "0"}.items():
                placed.external_data.add(key=key, value=value)
            tensor.CopyFrom(placed)
        else:
            continue
        seen.add(one.tensor.name)
    return found if seen == filters.keys() else None

"""Seeded random weights of a sane scale, streamed to safetensors files one tensor at a time."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Dtype = Literal["F32", "F16", "BF16", "I64"]
_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}
_EMBEDDINGS = ("_embedding", "_embedding.weight", "_embeds")


def random_parameter(name: str, shape: tuple[int, ...], seed: int, component: str) -> Array:
    """Return the float32 values of a parameter; they depend on nothing but the arguments.

    Matrices and kernels are normal with variance 1 / fan-in, norms lie near 1, biases near 0 but not at 0,
    so a network of any depth has outputs that neither vanish nor explode, in float16 either.
    """
    import numpy as np

    word = hashlib.sha256(f"{seed}/{component}/{name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(word[:16], "little")))
    values: Array = generator.standard_normal(shape, dtype=np.float32)
    mean, deviation = _distribution(name, shape)
    values *= np.float32(deviation)
    values += np.float32(mean)
    return values


def write_safetensors(
    path: Path,
    tensors: Mapping[str, tuple[Dtype, tuple[int, ...]]],
    value: Callable[[str], Array] | None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file without holding more than two tensors.

    Args:
        path: the file.
        tensors: dtype and shape of each tensor, in the order of their bytes.
        value: returns a tensor by name, in any floating dtype; `None` leaves a hole of the whole size, which reads
            as zeros and takes no room on most disks.
        metadata: further entries of the header's metadata.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * _ITEM_SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    names: Sequence[str] = list(tensors)
    with path.open("wb") as file, ThreadPoolExecutor(max_workers=1) as ahead:
        file.write(struct.pack("<Q", len(text)) + text)
        if value is None:
            file.truncate(8 + len(text) + offset)
            return
        pending = ahead.submit(value, names[0])
        for name, following in zip(names, [*names[1:], None], strict=True):
            array = pending.result()
            if following is not None:
                pending = ahead.submit(value, following)
            file.write(_bytes_of(array, tensors[name][0]))


def _bytes_of(array: Array, dtype: Dtype) -> memoryview:
    import ml_dtypes
    import numpy as np

    names: dict[Dtype, Any] = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "I64": "<i8"}
    converted = array.astype(names[dtype], order="C", copy=False)
    return converted.reshape(-1).view(np.uint8).data


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return mean and standard deviation of a parameter's values."""
    if name.endswith("_embeds_weights"):
        return 0.5, 0.02  # thresholds on a cosine: far above that of two random directions
    if name.endswith(_EMBEDDINGS):
        return 0.0, 0.5
    if len(shape) > 1:
        return 0.0, 1 / math.sqrt(math.prod(shape[1:]))
    return (1.0, 0.1) if name.endswith("weight") else (0.0, 0.05)

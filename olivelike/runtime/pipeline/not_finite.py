"""Reasons that pictures have values that are no numbers: weights that are none, by file and tensor; else a network."""

from __future__ import annotations

import math
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from olivelike._files import file_identity
from olivelike._text import listed, quoted
from olivelike._untrusted import open_file
from olivelike.errors import SessionError
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, read_folder_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np

    from olivelike.model.onnx_messages import TensorProto

_SHOWN: Final = 3
"""Tensors of a network that a message names."""
_PIECE_VALUES: Final = 1 << 22
"""Read at a time."""


def not_finite_error(folder: PipelineFolder, *, from_latents: bool) -> SessionError:
    """Return what to say of a picture with values that are no numbers; reads all weights of the folder.

    Args:
        folder: Where the networks are.
        from_latents: Whether the latents had such values already, before the VAE decoded them.
    """
    spoilt = [told for path in folder.models(safety=False).values() if (told := _spoilt(path, _written(path)))]
    if spoilt:
        return SessionError(
            f"weights are infinite or NaN, so that no picture can be made: {'; '.join(spoilt)}; get the checkpoint "
            "again, or mend what merged or trained it, and convert it anew"
        )
    maker = "the latents that the UNet made have" if from_latents else "the VAE decoder's output has"
    other_vae = "" if from_latents else ", or take another VAE"
    target = read_folder_target(folder.path)
    if target is not None and target.precision == "fp32":
        return SessionError(
            f"{maker} values that are no numbers, though all weights are finite and in float32; compare the networks "
            f"with the original by `olivelike verify {quoted(folder.path)}`{other_vae}"
        )
    return SessionError(
        f"{maker} values that are no numbers, as when half precision overflows (all weights are finite); optimise the "
        f"pipeline with `precision: fp32`{other_vae}"
    )


def _written(path: Path) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return what changes when a network is written anew."""
    with os.scandir(path.parent) as entries:
        stats = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    return tuple(sorted((name, file_identity(found)) for name, found in stats))


@lru_cache(maxsize=64)
def _spoilt(path: Path, _written: object) -> str:
    """Return the weights of a network that are infinite or NaN, in words; nothing if there are none."""
    from olivelike.model.onnx_messages import load_model

    counts: dict[str, int] = {}
    for tensor in load_model(path).graph.initializer:
        # A mask says by -inf what is not looked at.
        count = sum(_count(values) for values in _values(tensor, path.parent))
        if count:
            where = next((f" in {entry.value}" for entry in tensor.external_data if entry.key == "location"), "")
            counts[f"{tensor.name} ({count:,}{where})"] = count
    worst = sorted(counts, key=lambda told: -counts[told])
    return f"{path}: {listed(worst, _SHOWN)}" if worst else ""


def _count(values: np.ndarray[Any, Any]) -> int:
    import numpy as np

    from olivelike.model.finite_values import count_not_finite

    found = count_not_finite(values)
    return found - int(np.count_nonzero(np.isneginf(values.astype(np.float32)))) if found else 0


def _values(tensor: TensorProto, folder: Path) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the values of an initializer of a float type, some at a time."""
    import numpy as np

    from olivelike.model.onnx_messages import dtype_name, dtype_of, to_array

    name = dtype_name(tensor.data_type)
    if "float" not in name or name.startswith("float4"):
        return
    if not tensor.external_data:
        yield to_array(tensor)
        return
    places = {entry.key: entry.value for entry in tensor.external_data}
    left, dtype = math.prod(tensor.dims), dtype_of(tensor)
    with open_file(folder / places["location"]) as file:
        file.seek(int(places.get("offset", 0)))
        while left:
            values = np.fromfile(file, dtype, min(left, _PIECE_VALUES))
            if not values.size:
                return
            yield values
            left -= values.size

"""What the tests of single files share: parameters as the weights table finds them, and renamed files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from olivelike.digest import digest_file
from olivelike.model.tensor_file import read_tensor
from olivelike.sources import Adaptation, Checkpoint, bind
from olivelike.sources.names.adapt import adapt
from olivelike.testing.checkpoints import write_safetensors

_ADAPTED: dict[str, Adaptation] = {}
"""By digest of the layout, as the engine keeps them."""


def adapted(found: Checkpoint) -> Adaptation:
    adaptation = adapt(
        found.component, found.library, found.class_name, found.config, found.shapes, original=found.original
    )
    _ADAPTED[found.layout_digest] = adaptation
    return adaptation


def values(found: Checkpoint) -> dict[str, np.ndarray]:
    """Return every parameter's values, read where the weights table points."""
    digests = {path: digest_file(path) for path in found.files}
    paths = {digest: path for path, digest in digests.items()}
    weights = bind(_ADAPTED.get(found.layout_digest) or adapted(found), found, digests)
    return {name: read_tensor(tensor, paths) for name, tensor in weights.items()}


def renamed(source: Path, target: Path, old: str, new: str) -> Path:
    """Copy a safetensors file with `old` in its tensors' names replaced by `new`."""
    from safetensors.numpy import load_file

    tensors = {name.replace(old, new, 1): array for name, array in load_file(source).items()}
    kinds = {"float32": "F32", "int64": "I64"}
    table = {name: (kinds[str(array.dtype)], array.shape) for name, array in tensors.items()}
    write_safetensors(target, table, tensors.__getitem__)
    return target

"""A stored checkpoint as its library reads it: architecture, and which stored tensor each parameter is."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.digest import canonical_json
from olivelike.errors import SourceError
from olivelike.model import Architecture, Tensor, Weights
from olivelike.model.block_forms import BLOCK_FORMS
from olivelike.model.weights import ITEM_SIZES, stored_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.sources.checkpoint import Checkpoint

_KIND = "adaptation/2"


@dataclass(frozen=True, slots=True)
class StoredView:
    """Place of a parameter in a stored tensor: all of it, or a part in one piece."""

    name: str
    """The stored tensor."""
    shape: tuple[int, ...]
    """Shape of the parameter."""
    start: int = 0
    """First element, in row-major order of the stored tensor."""
    transposed: bool = False
    """The stored part is a matrix of the reversed shape; the parameter is its transpose."""
    rolled: int = 0
    """Rows at the beginning of the stored part that are the parameter's last ones."""


@dataclass(frozen=True)
class Adaptation:
    """The result of `adapt`; it depends on a checkpoint's form (`Checkpoint.layout_digest`), on no weight."""

    architecture: Architecture | None
    """`None` for a graph that someone else exported."""
    names: Mapping[str, StoredView]
    """Parameter → where it is stored."""
    unused: tuple[str, ...]
    """Stored tensors that are no parameter, such as `position_ids`."""

    @property
    def network(self) -> Architecture:
        """The architecture. Raises `TypeError` where none is known."""
        if self.architecture is None:
            raise TypeError("no architecture is known of a graph that someone else exported, nor of a shelf's table")
        return self.architecture

    def to_bytes(self) -> bytes:
        """Serialise as canonical JSON."""
        names = {
            name: [view.name, list(view.shape), view.start, view.transposed, *([view.rolled] if view.rolled else [])]
            for name, view in self.names.items()
        }
        architecture = self.architecture.to_bytes().decode() if self.architecture is not None else None
        return canonical_json([_KIND, architecture, names, list(self.unused)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Adaptation:
        """Read what `to_bytes` wrote."""
        kind, architecture, names, unused = json.loads(data)
        if kind != _KIND:
            raise ValueError(f"expected {_KIND}, found {kind!r}")
        table = {
            name: StoredView(stored, tuple(shape), start, transposed, *rolled)
            for name, (stored, shape, start, transposed, *rolled) in names.items()
        }
        known = Architecture.from_bytes(architecture.encode()) if architecture is not None else None
        return cls(known, table, tuple(unused))


def bind(adaptation: Adaptation, checkpoint: Checkpoint, file_digests: Mapping[Path, str]) -> Weights:
    """Return the weights table: for each parameter, where its bytes lie.

    Raises `SourceError` if a parameter begins within a block of a stored tensor.

    Args:
        adaptation: of a checkpoint with the same `layout_digest`.
        checkpoint: the component.
        file_digests: SHA-256 of each of `checkpoint.files`.
    """
    table: dict[str, Tensor] = {}
    for name, view in adaptation.names.items():
        stored, path = checkpoint.tensors[view.name]
        block = BLOCK_FORMS[stored.dtype].values if stored.dtype in BLOCK_FORMS else 1
        if view.start % block:
            raise SourceError(
                f"{path}: {view.name} is stored in blocks of {block} values ({stored.dtype}), and {name}, a part of "
                "it, begins within one; get the file in bf16, fp16, fp8 or q8_0"
            )
        offset = stored.offset + stored_bytes(stored.dtype, view.start)
        scale = _scale(checkpoint, view, file_digests)
        table[name] = Tensor(
            stored.dtype, view.shape, file_digests[path], offset, view.transposed, scale=scale, rolled=view.rolled
        )
    return Weights(table)


def _scale(checkpoint: Checkpoint, view: StoredView, file_digests: Mapping[Path, str]) -> Tensor | None:
    """Return what a stored tensor is multiplied by: of one number for each row those of a view's rows."""
    if view.name not in checkpoint.scales:
        return None
    raw, path = checkpoint.scales[view.name]
    count, first = math.prod(raw.shape), 0
    if count > 1:
        stored, _ = checkpoint.tensors[view.name]
        columns = math.prod(stored.shape) // count
        count, first = math.prod(view.shape) // columns, view.start // columns
    return Tensor(raw.dtype, (count,), file_digests[path], raw.offset + first * ITEM_SIZES[raw.dtype])

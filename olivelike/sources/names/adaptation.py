"""A stored checkpoint as its library reads it: architecture, and which stored tensor each parameter is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.digest import canonical_json
from olivelike.model import Architecture, Tensor, Weights
from olivelike.model.weights import ITEM_SIZES

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
        names = {name: [v.name, list(v.shape), v.start, v.transposed] for name, v in self.names.items()}
        architecture = self.architecture.to_bytes().decode() if self.architecture is not None else None
        return canonical_json([_KIND, architecture, names, list(self.unused)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Adaptation:
        """Read what `to_bytes` wrote."""
        kind, architecture, names, unused = json.loads(data)
        if kind != _KIND:
            raise ValueError(f"expected {_KIND}, found {kind!r}")
        table = {
            name: StoredView(stored, tuple(shape), start, transposed)
            for name, (stored, shape, start, transposed) in names.items()
        }
        known = Architecture.from_bytes(architecture.encode()) if architecture is not None else None
        return cls(known, table, tuple(unused))


def bind(adaptation: Adaptation, checkpoint: Checkpoint, file_digests: Mapping[Path, str]) -> Weights:
    """Return the weights table: for each parameter, where its bytes lie.

    Args:
        adaptation: of a checkpoint with the same `layout_digest`.
        checkpoint: the component.
        file_digests: SHA-256 of each of `checkpoint.files`.
    """
    table: dict[str, Tensor] = {}
    for name, view in adaptation.names.items():
        stored, path = checkpoint.tensors[view.name]
        offset = stored.offset + view.start * ITEM_SIZES[stored.dtype]
        table[name] = Tensor(stored.dtype, view.shape, file_digests[path], offset, view.transposed)
    return Weights(table)

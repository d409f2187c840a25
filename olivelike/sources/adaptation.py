"""What a stored checkpoint means to its library: architecture, and which stored tensor each parameter is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from olivelike.digest import canonical_json
from olivelike.model import Architecture, Tensor, Weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.sources.checkpoint import Checkpoint

_KIND = "adaptation/1"


@dataclass(frozen=True)
class Adaptation:
    """The result of `adapt`; it depends on a checkpoint's form (`Checkpoint.layout_digest`), on no weight."""

    architecture: Architecture
    names: Mapping[str, tuple[str, tuple[int, ...]]]
    """Parameter → stored name and the parameter's shape."""
    unused: tuple[str, ...]
    """Stored tensors that are no parameter, such as `position_ids`."""

    def to_bytes(self) -> bytes:
        """Serialise as canonical JSON."""
        names = {name: [raw, list(shape)] for name, (raw, shape) in self.names.items()}
        return canonical_json([_KIND, self.architecture.to_bytes().decode(), names, list(self.unused)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Adaptation:
        """Read what `to_bytes` wrote."""
        kind, architecture, names, unused = json.loads(data)
        if kind != _KIND:
            raise ValueError(f"expected {_KIND}, found {kind!r}")
        table = {name: (raw, tuple(shape)) for name, (raw, shape) in names.items()}
        return cls(Architecture.from_bytes(architecture.encode()), table, tuple(unused))


def bind(adaptation: Adaptation, checkpoint: Checkpoint, file_digests: Mapping[Path, str]) -> Weights:
    """Return the weights table: for each parameter, where its bytes lie.

    Args:
        adaptation: of a checkpoint with the same `layout_digest`.
        checkpoint: the component.
        file_digests: SHA-256 of each of `checkpoint.files`.
    """
    table: dict[str, Tensor] = {}
    for name, (raw, shape) in adaptation.names.items():
        stored, path = checkpoint.tensors[raw]
        table[name] = Tensor(stored.dtype, shape, file_digests[path], stored.offset)
    return Weights(table)
